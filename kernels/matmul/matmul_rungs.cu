// C = A B step by step, to be read in this order: what each step of the way to the other kernels of this
// family brings. Every kernel takes any shape, any strides and a batch.
//
// 1 sequential  one thread does everything, as a CPU would: what one lane of a GPU is worth. It issues a few
//               per cent of what one multiprocessor could, and the others do nothing.
// 2 naive       a thread for each element of C: all multiprocessors work, and the threads of a warp, which lie
//               along a row of C, read neighbouring elements of B in one go, and one element of A for all.
// 2 or uncoalesced    rows and columns swapped (SWAPPED): the threads of a warp lie along a column of C, and read
//                     and write elements that are a row apart, each in a sector of its own.
// 2 or grouped        White (2013, figures 4.8 and 4.9) asks which elements a thread should make that makes four,
//                     one after another. 2 x 2 neighbours: a warp reads every other element of B.
// 2 or row            four of a row, as many columns apart as there are threads: reads are as naive's.
// 2 or hybrid-row     2 x 2 elements so far apart, the next one of the row first.
// 2 or hybrid-column  2 x 2, the next one of the column first (DOWN). He takes columns, and saves loads by them.
// 3 rows2       a thread has two elements of C, one below the other: an element of B that it loads serves
//               twice, so that 3 loads do what took 4.
// 4 rows4       four elements: 5 loads do what took 8. Fewer threads are left to hide latency, and beyond four
//               little is saved: n elements take (n + 1) / n loads each.
//
// It goes on in matmul_rungs_shared.cu (5), matmul_rungs_column.cu (6 to 9) and matmul_rungs_registers.cu (10 to
// 12).
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

#ifndef SWAPPED  // 1: neighbouring threads lie along a column of C
#define SWAPPED 0
#endif
#ifndef NX  // columns and rows of a pattern
#define NX 2
#define NY 2
#endif
#ifndef GROUPED  // 1: elements of a pattern are neighbours
#define GROUPED 0
#endif
#ifndef RESIDENT  // blocks of a pattern that find registers on a multiprocessor
#define RESIDENT 1
#endif
#ifndef DOWN  // 1: a pattern's columns are gone down first
#define DOWN 0
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

// A row of A times a column of B.
DEVICE REAL dot(GLOBAL const REAL *a, GLOBAL const REAL *b, index_t k, index_t a_column, index_t b_row)
{
    REAL sum = 0;
    for (index_t l = 0; l < k; ++l) sum += a[l * a_column] * b[l * b_row];
    return sum;
}

// naive, uncoalesced. Per element of C: 2 k flops, 2 k elements asked of memory or a cache.
KERNEL(BX *BY, 1)
matmul_naive(MATRICES)
{
    const int wide = SWAPPED ? BY : BX, high = SWAPPED ? BX : BY;
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;
    const index_t across = (n + wide - 1) / wide, down = (m + high - 1) / high;
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t i = block / across * high + (SWAPPED ? x : y);
    const index_t j = block % across * wide + (SWAPPED ? y : x);
    if (i < m && j < n)
        AT(C, c, item, i, j) = dot(&AT(A, a, item, i, 0), &AT(B, b, item, 0, j), k, a_column, b_row);
}

// grouped, row, hybrid-row, hybrid-column. Loads as naive: what one element needs is not kept for the next one.
KERNEL(BX *BY, RESIDENT)
matmul_pattern(MATRICES)
{
    const index_t across = (n + NX * BX - 1) / (NX * BX), down = (m + NY * BY - 1) / (NY * BY);
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t x = block % across * BX + threadIdx.x % BX, y = block / across * BY + threadIdx.x / BX;
    NO_UNROLL
    for (int e = 0; e < NX * NY; ++e) {
        const int ex = DOWN ? e / NY : e % NX, ey = DOWN ? e % NY : e / NX;
        const index_t i = GROUPED ? y * NY + ey : y + ey * down * BY;
        const index_t j = GROUPED ? x * NX + ex : x + ex * across * BX;
        if (i < m && j < n)
            AT(C, c, item, i, j) = dot(&AT(A, a, item, i, 0), &AT(B, b, item, 0, j), k, a_column, b_row);
    }
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
