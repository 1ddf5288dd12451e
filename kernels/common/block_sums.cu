// Sums over all blocks, without atomics: the same bits every time.
//
// A kernel leaves SUMS partial sums per block, partial[block * SUMS + sum]. Every block of the next
// kernel adds all of them up for itself, in an order that depends on their number and on THREADS
// alone. So all blocks hold the same totals, bit for bit, and so do several devices that were given
// each other's partial sums.
// FRESH reads memory that other blocks of the same launch may have written.
// Precondition: SUMS and THREADS are powers of two, THREADS >= 4 * SUMS.

#ifndef IN_FLIGHT
#define IN_FLIGHT 8
#endif
#ifndef FRESH
#define FRESH(pointer) (*(pointer))
#endif

// Every thread gives SUMS values; thread 0 gets the block's sums in them. `scratch`: SUMS * THREADS.
DEVICE void add_up_threads(double *sums, LOCAL double *scratch, int thread)
{
    UNROLL
    for (int s = 0; s < SUMS; ++s) scratch[s * THREADS + thread] = sums[s];
    UNROLL
    for (int width = THREADS; width > 1; width = width >= 4 ? width / 4 : 1) {
        const int next = width >= 4 ? width / 4 : 1;
        __syncthreads();
        if (thread < next) {
            UNROLL
            for (int s = 0; s < SUMS; ++s) {
                UNROLL
                for (int other = next; other < width; other += next)
                    sums[s] += scratch[s * THREADS + thread + other];
                scratch[s * THREADS + thread] = sums[s];
            }
        }
    }
}

// The same; thread 0 writes the block's sums.
DEVICE void write_block_sums(const double *values, LOCAL double *scratch, GLOBAL double *partial,
                             int thread, index_t block)
{
    double sums[SUMS];
    UNROLL
    for (int s = 0; s < SUMS; ++s) sums[s] = values[s];
    add_up_threads(sums, scratch, thread);
    if (thread == 0) {
        UNROLL
        for (int s = 0; s < SUMS; ++s) partial[block * SUMS + s] = sums[s];
    }
}

// A thread gives the sum of entries that are all of one of the SUMS sums, that of its number modulo
// SUMS. All threads get the totals in scratch[0 ... SUMS). `scratch`: THREADS. Ends with a barrier,
// and another must pass before the scratch is used again.
DEVICE void add_up_entries(double sum, LOCAL double *scratch, int thread)
{
    scratch[thread] = sum;
    UNROLL
    for (int width = THREADS; width > SUMS; width = width >= 4 * SUMS ? width / 4 : SUMS) {
        const int next = width >= 4 * SUMS ? width / 4 : SUMS;
        __syncthreads();
        if (thread < next) {
            UNROLL
            for (int other = next; other < width; other += next) sum += scratch[thread + other];
            scratch[thread] = sum;
        }
    }
    __syncthreads();
}

// The totals of all blocks' sums; see `add_up_entries`.
DEVICE void add_up_blocks(GLOBAL const double *partial, index_t blocks, LOCAL double *scratch,
                          int thread)
{
    const int entries = (int)blocks * SUMS;
    double sum = 0;
    for (int at = thread; at < entries; at += IN_FLIGHT * THREADS) {
        double loaded[IN_FLIGHT];
        UNROLL
        for (int u = 0; u < IN_FLIGHT; ++u) {
            loaded[u] = 0;
            if (at + u * THREADS < entries) loaded[u] = FRESH(partial + at + u * THREADS);
        }
        UNROLL
        for (int u = 0; u < IN_FLIGHT; ++u) sum += loaded[u];
    }
    add_up_entries(sum, scratch, thread);
}
