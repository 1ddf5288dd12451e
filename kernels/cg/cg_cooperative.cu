// Conjugate gradients for -div grad on a small 2-D grid, many iterations in one launch.
//
// All blocks are on the device at once (a cooperative launch), one on a multiprocessor. A block
// owns `strip` rows: its x and r in registers, p in shared memory with two rows of the neighbours on
// each side. An iteration is the one of cg_stencil.cu: r = r' - alpha A p' and p = r + beta p' on its
// rows and one more on each side, which it computes just as the neighbour does; then the sums. Only
// the second row beyond comes from the neighbour, through global memory, together with all blocks'
// sums: one barrier of the whole grid per iteration.
// Per point and iteration: 24 flops; nothing but edges and sums leaves the multiprocessor.
//
// x, r and p are loaded at the start of a launch and stored at its end, after `iterations`
// iterations or where the iteration stops. p of iterate k lies in p0 if k is even, else in p1.
//
// PEERS > 1 devices share the grid, each with rows [first, last), two at least. Each has r, p0 and p1
// of the whole grid, and room for the sums of all blocks. A block writes what others need to the
// memory of their devices, too, and all devices meet (peer_flags.cu). All add the sums in the same
// order, so that all take the same steps, with the same bits. peers: of each device, its own included,
// the addresses of words, r, p0, p1, partial0 and partial1. x is where that of row 0 would be.
//
// Preconditions. blocks = ceil((last - first) / strip); columns <= THREADS; POINTS * (THREADS / columns) >=
// strip + 2; `arrivals` is 0; dynamic shared memory (in OpenCL, SHARED_BYTES): SUMS * THREADS doubles,
// and two planes of (strip + 4) * (columns + 2) elements, rounded up to 8 bytes. OpenCL does not
// promise that blocks run at once: there it is for a single block.

#ifndef REAL
#define REAL double
#endif
#ifndef THREADS
#define THREADS 512
#endif
#ifndef POINTS
#define POINTS 4
#endif
#ifndef PEERS
#define PEERS 1
#endif
#define SUMS 4
#define IN_FLIGHT PEERS // there are about as many sums of a device as threads

#include "grid_barrier.cu"
#if PEERS > 1
#include "peer_flags.cu"
#define ADDRESSES 6
#define PEER(device, type, entry) ((type *)peers[(device) * ADDRESSES + (entry)])
#define ADDRESS_OF_R 1
#define ADDRESS_OF_P 2
#define ADDRESS_OF_PARTIAL 4
#endif
#include "cg_scalars.cu"

// A thread has POINTS neighbouring rows of one column; `at` is a point's place in a plane. What is so
// of which points is kept in bits: it would take a register for each otherwise.
#define EACH_POINT(m, at) \
    UNROLL                \
    for (int m = 0, at = first_at; m < POINTS; ++m, at += pitch)
#define IS(bits) (((bits) >> m) & 1)
#if PEERS > 1
// The block's rows that the devices before and after have copies of, `depth` for each, go there. `value` is an
// element's in column `of_row` of the block's row `row`.
#define GIVE_ROWS(depth, entry, value)                                                                \
    for (int side = 0; side < 2; ++side) {                                                            \
        const int there = (int)rank + 2 * side - 1;                                                   \
        if (there < 0 || there >= PEERS) continue;                                                    \
        const int low = side ? (int)last - (depth) : (int)first, high = low + (depth);                \
        const int from = low > begin ? low - begin : 0, to = high < begin + own ? high - begin : own; \
        for (int i = thread; i < (to - from) * width; i += THREADS) {                                 \
            const int row = from + i / width, of_row = i % width;                                     \
            PEER(there, REAL, entry)[(index_t)(begin + row) * width + of_row] = (value);              \
        }                                                                                             \
    }
#define WAIT_FOR_ALL(awaited)                                                                         \
    __syncthreads();                                                                                  \
    if (thread == 0) {                                                                                \
        __threadfence_system();                                                                       \
        is_last = atomicAdd(arrivals, 1u) == (awaited) - 1;                                           \
    }                                                                                                 \
    __syncthreads();                                                                                  \
    ++meeting;                                                                                        \
    if (thread < PEERS && is_last) tell(PEER(thread, unsigned int, 0), rank, meeting);                \
    lost = __syncthreads_or(thread < PEERS && await(own_words, thread, meeting, patience));
#else
#define WAIT_FOR_ALL(awaited) MEET(arrivals, awaited)
#endif
#define APPLY(p)                                                                          \
    (centre * (p)[at] - c_column * ((p)[at - 1] + (p)[at + 1])                            \
     - c_row * ((p)[at - pitch] + (p)[at + pitch]))

KERNEL(THREADS, 1)
cg_persist(GLOBAL REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL REAL *p0, GLOBAL REAL *p1,
           GLOBAL double *partial0, GLOBAL double *partial1, GLOBAL const double *before,
           GLOBAL double *after, COUNTER arrivals,
#if PEERS > 1
           const index_t *RESTRICT peers, index_t rank, index_t patience,
#endif
           index_t rows, index_t columns, index_t first, index_t last, index_t strip,
           index_t blocks, index_t first_block, index_t all_blocks, index_t iterations,
           double row_weight, double column_weight)
{
#ifdef __OPENCL_VERSION__
    SHARED double memory[SHARED_BYTES / 8];
#else
    extern __shared__ double memory[];
#endif
    const int thread = (int)threadIdx.x;
    const int width = (int)columns, height = (int)rows, pitch = width + 2;
    const int begin = (int)(first + blockIdx.x * strip);
    const int own = begin + (int)strip < (int)last ? (int)strip : (int)last - begin;
    const int plane = ((int)strip + 4) * pitch;
    LOCAL double *scratch = memory;
    LOCAL REAL *old_p = (LOCAL REAL *)(memory + SUMS * THREADS);
    LOCAL REAL *new_p = old_p + plane;
    const REAL c_row = (REAL)row_weight, c_column = (REAL)column_weight;
    const REAL centre = (REAL)(2 * (row_weight + column_weight));

    const int first_row = thread / width * POINTS - 1, column = thread % width;
    const int first_at = (first_row + 2) * pitch + 1 + column;
    // Points that are in the grid; of those, the block's own; and of those, what neighbours read.
    int exists = 0, is_own = 0, is_edge = 0;
    if (thread / width < THREADS / width) {
        UNROLL
        for (int m = 0; m < POINTS; ++m) {
            const int row = first_row + m;
            exists |= (row <= own && begin + row >= 0 && begin + row < height) << m;
            is_own |= (row >= 0 && row < own) << m;
            is_edge |= (row >= 0 && row < own && (row < 2 || row >= own - 2)) << m;
        }
    }
    const index_t first_place = (index_t)(begin + first_row) * width + column;

    int status = (int)before[STATUS];
    int count = (int)before[COUNT];
    const double target = before[TARGET];
    int turn = count & 1;
#if PEERS > 1
    __shared__ int is_last;
    unsigned int *own_words = PEER(rank, unsigned int, 0);
    unsigned int meeting = own_words[MEETINGS];
    int lost = 0;
    if (fresh_word(own_words + LOST)) return;
#endif

    for (int at = thread; at < 2 * plane; at += THREADS) old_p[at] = 0;
    __syncthreads();
    GLOBAL REAL *saved = turn ? p1 : p0;
    for (int i = thread; i < (own + 4) * width; i += THREADS) {
        const int row = i / width - 2, of_row = i % width;
        if (begin + row >= 0 && begin + row < height)
            old_p[(row + 2) * pitch + 1 + of_row] = saved[(index_t)(begin + row) * width + of_row];
    }
    REAL my_x[POINTS], my_r[POINTS];
    UNROLL
    for (int m = 0; m < POINTS; ++m) {
        const index_t place = first_place + m * width;
        my_x[m] = IS(is_own) ? x[place] : 0;
        my_r[m] = IS(exists) ? r[place] : 0;
    }

    unsigned int awaited = 0;
    for (int done = 0; status == RUNNING; ++done) {
        double step, growth;
        add_up_blocks(turn ? partial1 : partial0, all_blocks, scratch, thread);
        status = next_step(count, target, scratch, &step, &growth);
        if (status != RUNNING || done == (int)iterations) break;
        const REAL alpha = (REAL)step, beta = (REAL)growth;
        ++count;
        turn ^= 1;
        GLOBAL REAL *published = turn ? p1 : p0;

        EACH_POINT(m, at)
        {
            if (IS(exists)) {
                const REAL p_before = old_p[at];
                my_r[m] -= alpha * APPLY(old_p);
                const REAL p = my_r[m] + beta * p_before;
                new_p[at] = p;
                if (IS(is_own)) my_x[m] += alpha * p_before;
                if (IS(is_edge)) published[first_place + m * width] = p;
            }
        }
        __syncthreads();
#if PEERS > 1
        GIVE_ROWS(2, ADDRESS_OF_P + turn, new_p[(row + 2) * pitch + 1 + of_row])
#endif

        double sums[SUMS];
        UNROLL
        for (int s = 0; s < SUMS; ++s) sums[s] = 0;
        EACH_POINT(m, at)
        {
            if (IS(is_own)) {
                const REAL q = APPLY(new_p);
                sums[P_Q] += (double)new_p[at] * q;
                sums[Z_Q] += (double)my_r[m] * q;
                sums[Q_MQ] += (double)q * q;
                sums[R_Z] += (double)my_r[m] * my_r[m];
            }
        }
        write_block_sums(sums, scratch, turn ? partial1 : partial0, thread, first_block + blockIdx.x);
#if PEERS > 1
        if (thread == 0) {
            for (int device = 0; device < PEERS; ++device)
                for (int s = 0; s < SUMS && device != rank; ++s)
                    PEER(device, double, ADDRESS_OF_PARTIAL + turn)
                    [(first_block + blockIdx.x) * SUMS + s] = scratch[s * THREADS];
        }
#endif

        awaited += (unsigned int)blocks;
        WAIT_FOR_ALL(awaited)
#if PEERS > 1
        if (lost) return;
#endif

        for (int i = thread; i < 2 * width; i += THREADS) {
            const int row = i < width ? -2 : own + 1, of_row = i < width ? i : i - width;
            if (begin + row >= 0 && begin + row < height)
                new_p[(row + 2) * pitch + 1 + of_row]
                    = FRESH(published + (index_t)(begin + row) * width + of_row);
        }
        LOCAL REAL *swapped = old_p;
        old_p = new_p;
        new_p = swapped;
    }

    saved = turn ? p1 : p0;
    EACH_POINT(m, at)
    {
        if (IS(is_own)) {
            const index_t place = first_place + m * width;
            x[place] = my_x[m];
            r[place] = my_r[m];
            saved[place] = old_p[at];
        }
    }
#if PEERS > 1
    // The next launch reads the neighbours' rows.
    __syncthreads();
    GIVE_ROWS(1, ADDRESS_OF_R, r[(index_t)(begin + row) * width + of_row])
    WAIT_FOR_ALL(awaited + (unsigned int)blocks)
    if (lost) return;
    if (blockIdx.x == 0 && thread == 0) own_words[MEETINGS] = meeting;
#endif
    if (blockIdx.x == 0 && thread == 0) {
        after[STATUS] = status;
        after[COUNT] = count;
        after[TARGET] = target;
    }
}
