// C = A B step by step, to be read in this order: what each step of the way to the other kernels of this
// family brings. Every kernel takes any shape, any strides and a batch.
//
// 1 sequential  one thread does everything, as a CPU would: what one lane of a GPU is worth. It issues a few
//               per cent of what one multiprocessor could, and the others do nothing.
// 2 naive       a thread for each element of C: all multiprocessors work, and the threads of a warp, which lie
//               along a row of C, read neighbouring elements of B in one go, and one element of A for all.
// 3 rows2       a thread has two elements of C, one below the other: an element of B that it loads serves
//               twice, so that 3 loads do what took 4.
// 4 rows4       four elements: 5 loads do what took 8. Fewer threads are left to hide latency, and beyond four
//               little is saved: n elements take (n + 1) / n loads each.
//
// It goes on in matmul_rungs_shared.cu (5), matmul_rungs_column.cu (6, 7, 8) and matmul_rungs_registers.cu (9,
// 10, 11).
// A block is BX x BY threads, BX along a row of C; blocks go along rows of C, then down, then to the next
// matrix of the batch.

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 32
#endif
#ifndef BY
#define BY 8
#endif
#ifndef ROWS  // of C, that a thread has
#define ROWS 2
#endif

#include "matmul_rungs_arguments.cu"

// sequential. 2 m n k flops, 2 m n k elements asked for, by one thread.
KERNEL(1, 1)
matmul_sequential(MATRICES, index_t batch)
{
    for (index_t item = 0; item < batch; ++item)
        for (index_t i = 0; i < m; ++i)
            for (index_t j = 0; j < n; ++j) {
                REAL sum = 0;
                for (index_t l = 0; l < k; ++l) sum += AT(A, a, item, i, l) * AT(B, b, item, l, j);
                AT(C, c, item, i, j) = sum;
            }
}

// naive. Per element of C: 2 k flops, 2 k elements asked of memory or a cache.
KERNEL(BX *BY, 1)
matmul_naive(MATRICES)
{
    const index_t across = (n + BX - 1) / BX, down = (m + BY - 1) / BY;
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t i = block / across * BY + threadIdx.x / BX;
    const index_t j = block % across * BX + threadIdx.x % BX;
    if (i >= m || j >= n) return;
    GLOBAL const REAL *a = &AT(A, a, item, i, 0), *b = &AT(B, b, item, 0, j);
    REAL sum = 0;
    for (index_t l = 0; l < k; ++l) sum += a[l * a_column] * b[l * b_row];
    AT(C, c, item, i, j) = sum;
}

// rows2, rows4. Per element of C: 2 k flops, (1 + 1 / ROWS) k elements asked of memory or a cache.
KERNEL(BX *BY, 1)
matmul_rows(MATRICES)
{
    const index_t across = (n + BX - 1) / BX, down = (m + ROWS * BY - 1) / (ROWS * BY);
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t i = (block / across * BY + threadIdx.x / BX) * ROWS;
    const index_t j = block % across * BX + threadIdx.x % BX;
    if (i >= m || j >= n) return;
    GLOBAL const REAL *a = &AT(A, a, item, i, 0), *b = &AT(B, b, item, 0, j);
    const int rows = m - i < ROWS ? (int)(m - i) : ROWS;
    REAL sums[ROWS];
    UNROLL
    for (int r = 0; r < ROWS; ++r) sums[r] = 0;
    if (rows == ROWS) {
        for (index_t l = 0; l < k; ++l) {
            const REAL x = b[l * b_row];
            UNROLL
            for (int r = 0; r < ROWS; ++r) sums[r] += a[r * a_row + l * a_column] * x;
        }
    } else {
        for (index_t l = 0; l < k; ++l) {
            const REAL x = b[l * b_row];
            UNROLL
            for (int r = 0; r < ROWS; ++r)
                if (r < rows) sums[r] += a[r * a_row + l * a_column] * x;
        }
    }
    UNROLL
    for (int r = 0; r < ROWS; ++r)
        if (r < rows) AT(C, c, item, i + r, j) = sums[r];
}
