// C = A B step by step; matmul_rungs.cu has the steps before, and the words.
//
// 5 shared  the block brings a tile of A and a tile of B to shared memory, and multiplies there: each element
//           of A is asked of memory once for BX columns of C, each of B once for ROWS BY rows. What is read
//           again comes at fixed distances, without an address of 64 bits to reckon. As in rows4 a thread has
//           ROWS elements of C, and reads several elements of a row of A at once.
//
// The tile of A has ROWS BY rows and DEPTH columns (and one more, so that threads of a warp in different rows
// read different banks), that of B DEPTH rows and BX columns. Two barriers a step: the tile is there, it is no
// longer needed.

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
#define ROWS 4
#endif
#ifndef DEPTH
#define DEPTH 32
#endif
#define PITCH (DEPTH + 1)

#include "matmul_rungs_arguments.cu"

// Per element of C: 2 k flops, k / BX elements of A and k / (ROWS BY) of B asked of memory or a cache,
// (1 / 4 + 1 / ROWS) k reads of shared memory in float32, (1 / 2 + 1 / ROWS) k in float64.
KERNEL(BX *BY, 1)
matmul_shared(MATRICES)
{
    SHARED REAL held_a[ROWS * BY * PITCH] __attribute__((aligned(16)));  // for reads of 16 bytes
    SHARED REAL held_b[DEPTH * BX];
    const index_t across = (n + BX - 1) / BX, down = (m + ROWS * BY - 1) / (ROWS * BY);
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t top = block / across * (ROWS * BY), left = block % across * BX;
    const int thread = (int)threadIdx.x, x = thread % BX, y = thread / BX * ROWS;
    REAL sums[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) sums[r] = 0;
    for (index_t first = 0; first < k; first += DEPTH) {
        for (int at = thread; at < ROWS * BY * DEPTH; at += BX * BY) {
            const index_t i = top + at / DEPTH, l = first + at % DEPTH;
            held_a[at / DEPTH * PITCH + at % DEPTH] = i < m && l < k ? AT(A, a, item, i, l) : (REAL)0;
        }
        for (int at = thread; at < DEPTH * BX; at += BX * BY) {
            const index_t l = first + at / BX, j = left + at % BX;
            held_b[at] = l < k && j < n ? AT(B, b, item, l, j) : (REAL)0;
        }
        __syncthreads();
        UNROLL
        for (int l = 0; l < DEPTH; ++l) {
            const REAL b = held_b[l * BX + x];
            UNROLL
            for (int r = 0; r < ROWS; ++r) sums[r] += held_a[(y + r) * PITCH + l] * b;
        }
        __syncthreads();
    }
    UNROLL
    for (int r = 0; r < ROWS; ++r)
        if (top + y + r < m && left + x < n) AT(C, c, item, top + y + r, left + x) = sums[r];
}
