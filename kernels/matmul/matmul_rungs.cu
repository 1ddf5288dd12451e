// C = A B step by step, to be read in this order: what each step of the way to the other kernels of this
// family brings. Every kernel takes any shape, any strides and a batch.
//
// 2 naive  a thread for each element of C: all multiprocessors work, and threads of a warp, which lie along
//          a row of C, read neighbouring elements of B in one go and one element of A for all of them.
//
// A block is BX x BY threads, BX along a row of C. Precondition: BX BY = THREADS of the launch.

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 16
#endif
#ifndef BY
#define BY 16
#endif

// naive. Per element of C: 2 k flops, 2 k elements asked of memory or a cache.
KERNEL(BX *BY, 1)
matmul_naive(GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT B, GLOBAL REAL *RESTRICT C, index_t m,
             index_t n, index_t k, index_t a_batch, index_t a_row, index_t a_column, index_t b_batch,
             index_t b_row, index_t b_column, index_t c_batch, index_t c_row, index_t c_column)
{
    const index_t across = (n + BX - 1) / BX, down = (m + BY - 1) / BY;
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t i = block / across * BY + threadIdx.x / BX;
    const index_t j = block % across * BX + threadIdx.x % BX;
    if (i >= m || j >= n) return;
    GLOBAL const REAL *a = A + item * a_batch + i * a_row;
    GLOBAL const REAL *b = B + item * b_batch + j * b_column;
    REAL sum = 0;
    for (index_t l = 0; l < k; ++l) sum += a[l * a_column] * b[l * b_row];
    C[item * c_batch + i * c_row + j * c_column] = sum;
}
