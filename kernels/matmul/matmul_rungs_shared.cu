// C = A B step by step; matmul_rungs.cu has the steps before, and the words.
//
// 5 shared     the block brings a tile of A and a tile of B to shared memory, and multiplies there: each element
//           of A is asked of memory once for BX columns of C, each of B once for ROWS BY rows. What is read
//           again comes at fixed distances, without an address of 64 bits to reckon. As in rows4 a thread has
//           ROWS elements of C, and reads several elements of a row of A at once.
// 5 or tiles2  TILES = 2 tiles of B, side by side, for each tile of A, after the project of the course 18-645 (2014,
//              "tile buffering"): a thread has ROWS elements in each, and what it reads of A serves twice.
// 5 or tiles4  four tiles of B.
//
// The tile of A has ROWS BY rows and DEPTH columns (and 16 bytes more, so that threads of a warp in different
// rows read different banks), a tile of B DEPTH rows and BX columns. Two barriers a step: the tile is there, it
// is no longer needed. Between them a block waits for memory or for its last warp, and only other blocks of the
// multiprocessor multiply: RESIDENT of them must find registers there.

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 64
#endif
#ifndef BY
#define BY 8
#endif
#ifndef ROWS
#define ROWS 4
#endif
#ifndef DEPTH
#define DEPTH 32
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif
#ifndef TILES  // of B, for each tile of A
#define TILES 1
#endif
#define THREADS (BX * BY)
#define WIDE (TILES * BX)
#define PITCH (DEPTH + 16 / (int)sizeof(REAL))

#include "matmul_rungs_arguments.cu"

// Per element of C: 2 k flops, k / WIDE elements of A and k / (ROWS BY) of B asked of memory or a cache,
// (1 / (4 TILES) + 1 / ROWS) k reads of shared memory in float32, (1 / (2 TILES) + 1 / ROWS) k in float64.
KERNEL(THREADS, RESIDENT)
matmul_shared(MATRICES)
{
    SHARED REAL held_a[ROWS * BY * PITCH] __attribute__((aligned(16)));  // for reads of 16 bytes
    SHARED REAL held_b[DEPTH * WIDE];
    const index_t across = (n + WIDE - 1) / WIDE, down = (m + ROWS * BY - 1) / (ROWS * BY);
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t top = block / across * (ROWS * BY), left = block % across * WIDE;
    const int thread = (int)threadIdx.x, x = thread % BX, y = thread / BX * ROWS;
    GLOBAL const REAL *a = &AT(A, a, item, top, 0), *b = &AT(B, b, item, 0, left);
    const int rows = m - top < ROWS * BY ? (int)(m - top) : ROWS * BY;
    const int columns = n - left < WIDE ? (int)(n - left) : WIDE;
    REAL sums[TILES * ROWS];
    UNROLL
    for (int i = 0; i < TILES * ROWS; ++i) sums[i] = 0;
    for (index_t first = 0; first < k; first += DEPTH, a += DEPTH * a_column, b += DEPTH * b_row) {
        const int length = k - first < DEPTH ? (int)(k - first) : DEPTH;
        for (int begin = 0; begin < ROWS * BY * DEPTH; begin += THREADS) {
            const int r = (begin + thread) / DEPTH, l = (begin + thread) % DEPTH;
            if (r < ROWS * BY)
                held_a[r * PITCH + l] = r < rows && l < length ? a[r * a_row + l * a_column] : (REAL)0;
        }
        for (int begin = 0; begin < DEPTH * WIDE; begin += THREADS) {
            const int l = (begin + thread) / WIDE, j = (begin + thread) % WIDE;
            if (l < DEPTH)
                held_b[begin + thread] = l < length && j < columns ? b[l * b_row + j * b_column] : (REAL)0;
        }
        __syncthreads();
        UNROLL
        for (int l = 0; l < DEPTH; ++l) {
            UNROLL
            for (int i = 0; i < TILES * ROWS; ++i)
                sums[i] += held_a[(y + i % ROWS) * PITCH + l] * held_b[l * WIDE + i / ROWS * BX + x];
        }
        __syncthreads();
    }
    UNROLL
    for (int i = 0; i < TILES * ROWS; ++i) {
        const int r = y + i % ROWS, j = i / ROWS * BX + x;
        if (r < rows && j < columns) AT(C, c, item, top + r, left + j) = sums[i];
    }
}
