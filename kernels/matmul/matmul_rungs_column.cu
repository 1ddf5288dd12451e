// C = A B step by step, after the procedure of White (2013, chapter 4); matmul_rungs.cu has the steps before.
//
// 6 column    one matrix in shared memory, not two. A thread has ROWS elements of one column of C, the threads
//             of a block all have the same rows. So an element of B comes straight from memory to the one
//             thread that needs it, once, and serves ROWS times; an element of A is the same for all threads:
//             shared memory broadcasts it to a warp, several at a time. Loads overlap with sums.
//             Per product: 1 / ROWS loads from memory, 1 / 4 from shared memory, where `shared` took 1 / 2.
// 7 rotated   the blocks begin at different tiles of k, so that not all of them ask for the same part of
//             memory at once. The Tesla T10 had 8 partitions, each for 256 bytes in turn, and blocks that
//             march in step met in one of them. Today addresses are hashed: nothing should be gained.
// 8 unrolled  fine-tuning (FINE): a pointer moves along B instead of products of indices, an element of B is loaded
//             once and kept, and whole tiles have a loop of their own, unrolled. Compilers do much of that today.
// 9 tuned     the block's shape and ROWS are derived for the card and the sizes, not chosen once.
//
// A block is BX x BY threads in one line of BX BY columns. A tile of A has ROWS rows and BX columns.

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 32
#endif
#ifndef BY
#define BY 8
#endif
#ifndef ROWS
#define ROWS 16
#endif
#ifndef ROTATED  // partitions that blocks are spread over; 0: none
#define ROTATED 0
#endif
#define PARTITION_BYTES 256
#ifndef RESIDENT  // blocks that find registers on a multiprocessor
#define RESIDENT 1
#endif
#ifndef FINE  // 1: after fine-tuning
#define FINE 0
#endif
#ifndef STEP  // columns of a tile of A with unrolled products; divides BX
#define STEP (BX < 8 ? BX : 8)
#endif

#include "matmul_rungs_arguments.cu"

// Per element of C: 2 k flops, k / ROWS elements of B and k / (BX BY) of A asked of memory or a cache.
KERNEL(BX *BY, RESIDENT)
matmul_column(MATRICES)
{
    SHARED REAL held[ROWS * BX] __attribute__((aligned(16)));  // for reads of 16 bytes
    const index_t across = (n + BX * BY - 1) / (BX * BY), down = (m + ROWS - 1) / ROWS;
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t top = block / across * ROWS;
    const int thread = (int)threadIdx.x;
    const index_t j = block % across * (BX * BY) + thread;
    GLOBAL const REAL *a = &AT(A, a, item, top, 0), *b = &AT(B, b, item, 0, j < n ? j : n - 1);
    const int rows = m - top < ROWS ? (int)(m - top) : ROWS;
    REAL sums[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) sums[r] = 0;
    const index_t tiles = (k + BX - 1) / BX;
    index_t tile = 0;
#if ROTATED
    tile = blockIdx.x % ROTATED * PARTITION_BYTES / (index_t)sizeof(REAL) / BX % tiles;
#endif
    for (index_t step = 0; step < tiles; ++step) {
        const index_t first = tile * BX;
        const int length = k - first < BX ? (int)(k - first) : BX;
        for (int at = thread; at < ROWS * BX; at += BX * BY) {
            const int r = at / BX, l = at % BX;
            held[at] = r < rows && l < length ? a[r * a_row + (first + l) * a_column] : (REAL)0;
        }
        __syncthreads();
#if !FINE
        for (int l = 0; l < length; ++l)
            for (int r = 0; r < ROWS; ++r) sums[r] += held[r * BX + l] * b[(first + l) * b_row];
#else
        GLOBAL const REAL *next = b + first * b_row;
        if (length == BX) {
            NO_UNROLL
            for (int begin = 0; begin < BX; begin += STEP) {
                UNROLL
                for (int l = 0; l < STEP; ++l, next += b_row) {
                    const REAL x = *next;
                    UNROLL
                    for (int r = 0; r < ROWS; ++r) sums[r] += held[r * BX + begin + l] * x;
                }
            }
        } else {
            NO_UNROLL
            for (int l = 0; l < length; ++l, next += b_row) {
                const REAL x = *next;
                UNROLL
                for (int r = 0; r < ROWS; ++r) sums[r] += held[r * BX + l] * x;
            }
        }
#endif
        __syncthreads();
        tile = tile + 1 < tiles ? tile + 1 : 0;
    }
    if (j >= n) return;
    UNROLL
    for (int r = 0; r < ROWS; ++r)
        if (r < rows) AT(C, c, item, top + r, j) = sums[r];
}
