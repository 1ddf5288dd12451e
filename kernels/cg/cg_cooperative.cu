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
// Preconditions. blocks = ceil(rows / strip); columns <= THREADS; POINTS * (THREADS / columns) >=
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
#define SUMS 4
#define IN_FLIGHT 1 // there are about as many sums as threads

#include "grid_barrier.cu"
#include "cg_scalars.cu"

// A thread has POINTS neighbouring rows of one column; `at` is a point's place in a plane. What is so
// of which points is kept in bits: it would take a register for each otherwise.
#define EACH_POINT(m, at) \
    UNROLL                \
    for (int m = 0, at = first_at; m < POINTS; ++m, at += pitch)
#define IS(bits) (((bits) >> m) & 1)
#define APPLY(p)                                                                          \
    (centre * (p)[at] - c_column * ((p)[at - 1] + (p)[at + 1])                            \
     - c_row * ((p)[at - pitch] + (p)[at + pitch]))

KERNEL(THREADS, 1)
cg_persist(GLOBAL REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL REAL *p0, GLOBAL REAL *p1,
           GLOBAL double *partial0, GLOBAL double *partial1, GLOBAL const double *before,
           GLOBAL double *after, COUNTER arrivals, index_t rows, index_t columns, index_t strip,
           index_t blocks, index_t iterations, double row_weight, double column_weight)
{
#ifdef __OPENCL_VERSION__
    SHARED double memory[SHARED_BYTES / 8];
#else
    extern __shared__ double memory[];
#endif
    const int thread = (int)threadIdx.x;
    const int width = (int)columns, height = (int)rows, pitch = width + 2;
    const int begin = (int)(blockIdx.x * strip);
    const int own = begin + (int)strip < height ? (int)strip : height - begin;
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
        add_up_blocks(turn ? partial1 : partial0, blocks, scratch, thread);
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
        write_block_sums(sums, scratch, turn ? partial1 : partial0, thread, blockIdx.x);

        awaited += (unsigned int)blocks;
        MEET(arrivals, awaited)

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
    if (blockIdx.x == 0 && thread == 0) {
        after[STATUS] = status;
        after[COUNT] = count;
        after[TARGET] = target;
    }
}
