// Sums over all blocks, without atomics: the same bits every time.
//
// A kernel leaves SUMS partial sums per block, partial[block * SUMS + sum]. Every block of the next
// kernel adds all of them up for itself, in an order that depends on their number and on THREADS
// alone. So all blocks hold the same totals, bit for bit, and so do several devices that were given
// each other's partial sums.
// Precondition: SUMS and THREADS are powers of two, THREADS >= 4 * SUMS.

#include "tree.cu"

#ifndef IN_FLIGHT
#define IN_FLIGHT 8
#endif

// Every thread gives SUMS values; thread 0 gets the block's sums in them. `scratch`: SUMS * THREADS.
DEVICE void add_up_threads(double *sums, LOCAL double *scratch, int thread)
{
    UNROLLED(s, SUMS) scratch[s * THREADS + thread] = sums[s];
    ADD_TREE(THREADS, 1, thread, UNROLLED(s, SUMS) {
        OTHERS sums[s] += scratch[s * THREADS + thread + other];
        scratch[s * THREADS + thread] = sums[s];
    })
}

// The same; thread 0 writes the block's sums.
DEVICE void write_block_sums(const double *values, LOCAL double *scratch, GLOBAL double *partial,
                             int thread, index_t block)
{
    double sums[SUMS];
    UNROLLED(s, SUMS) sums[s] = values[s];
    add_up_threads(sums, scratch, thread);
    if (thread == 0) {
        UNROLLED(s, SUMS) partial[block * SUMS + s] = sums[s];
    }
}

// A thread gives the sum of entries that are all of one of the SUMS sums, that of its number modulo
// SUMS. All threads get the totals in scratch[0 ... SUMS). `scratch`: THREADS. Ends with a barrier,
// and another must pass before the scratch is used again.
DEVICE void add_up_entries(double sum, LOCAL double *scratch, int thread)
{
    scratch[thread] = sum;
    ADD_TREE(THREADS, SUMS, thread, {
        OTHERS sum += scratch[thread + other];
        scratch[thread] = sum;
    })
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
        UNROLLED(u, IN_FLIGHT) {
            loaded[u] = 0;
            if (at + u * THREADS < entries) loaded[u] = *(partial + at + u * THREADS);
        }
        UNROLLED(u, IN_FLIGHT) sum += loaded[u];
    }
    add_up_entries(sum, scratch, thread);
}
