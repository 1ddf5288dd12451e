// -div grad on a box, Dirichlet: the product of the operator with a vector, and sums with it.
//
// rows x lines x columns points, lines = 1 in 2-D, contiguous but for the rows of r and p, which are
// `pitch` elements apart. A u = sum over axes of weight (2 u - u_before - u_after), zero outside.
// A block takes whole lines in turn. Neighbours in other lines come from the caches.
// Per point: 4 DIMS + 8 flops.
//
// stencil_residual: r = b - A x; p = r; sums r.r, b.b. 4 passes.
// stencil_product: q = A p; sums p.q, p.p. 2 passes.
// stencil_squares: the sums of stencil_residual alone, in double, over rows `first_row` to `last_row` - 1 of `rows`,
// which are `pitch` elements apart. 2 passes.
//
// `low` and `high`: whether the neighbouring rows -1 and `rows` are there in memory (`halo` rows lie
// before row 0 of x, and of p in a product); else they are zero.
// The product's sums begin at `first_block` in `partial`.
// Precondition: THREADS is a power of two.

#define SUMS 2
#include "block_sums.cu"

// A times u at a point, computed in type T; u points at the first element of the point's line.
#define PRODUCT(T, u, row, line, column)                                                         \
    ((T)(2 * (row_weight + line_weight + column_weight)) * (T)(u)[column]                        \
     - (T)row_weight * (((row) > 0 || low ? (T)(u)[(column) - plane] : 0)                        \
                        + ((row) < rows - 1 || high ? (T)(u)[(column) + plane] : 0))             \
     - (DIMS == 3 ? (T)line_weight * (((line) > 0 ? (T)(u)[(column) - columns] : 0)              \
                                      + ((line) < lines - 1 ? (T)(u)[(column) + columns] : 0))   \
                  : 0)                                                                           \
     - (T)column_weight * (((column) > 0 ? (T)(u)[(column) - 1] : 0)                             \
                           + ((column) < columns - 1 ? (T)(u)[(column) + 1] : 0)))

// Does `body` at all points of rows `begin` to `end` - 1, by lines; u is at a line's first element.
#define FOR_POINTS(thread, begin, end, from, body) \
    SHARED double scratch[SUMS * THREADS]; \
    double sums[SUMS] = {0, 0}; \
    for (index_t along = (begin) * lines + blockIdx.x; along < (end) * lines; along += blocks) { \
        const index_t row = along / lines, line = along % lines; \
        GLOBAL const REAL *u = from; \
        const index_t at = row * pitch + line * columns; \
        for (index_t column = thread; column < columns; column += THREADS) body \
    }

KERNEL(THREADS, 1)
stencil_residual(GLOBAL const REAL *RESTRICT x, GLOBAL const REAL *RESTRICT b,
                 GLOBAL REAL *RESTRICT r, GLOBAL REAL *p, GLOBAL double *RESTRICT partial,
                 index_t rows, index_t lines, index_t columns, index_t halo, index_t low,
                 index_t high, index_t r_start, index_t p_start, index_t pitch, index_t blocks,
                 double row_weight, double line_weight, double column_weight)
{
    const int thread = (int)threadIdx.x;
    const index_t plane = lines * columns;
    FOR_POINTS(thread, 0, rows, x + halo * plane + along * columns, {
        const REAL given = b[along * columns + column];
        const REAL left = given - PRODUCT(REAL, u, row, line, column);
        r[r_start + at + column] = left;
        p[p_start + at + column] = left;
        sums[0] += (double)left * left;
        sums[1] += (double)given * given;
    })
    write_block_sums(sums, scratch, partial, thread, blockIdx.x);
}

KERNEL(THREADS, 1)
stencil_product(GLOBAL const REAL *RESTRICT p, GLOBAL REAL *RESTRICT q,
                GLOBAL double *RESTRICT partial, index_t first_block, index_t rows, index_t lines,
                index_t columns, index_t halo, index_t low, index_t high, index_t blocks,
                double row_weight, double line_weight, double column_weight)
{
    const int thread = (int)threadIdx.x;
    const index_t plane = lines * columns, pitch = plane;
    FOR_POINTS(thread, 0, rows, p + halo * plane + along * columns, {
        const REAL product = PRODUCT(REAL, u, row, line, column);
        q[along * columns + column] = product;
        sums[0] += (double)u[column] * product;
        sums[1] += (double)u[column] * u[column];
    })
    write_block_sums(sums, scratch, partial, thread, first_block + blockIdx.x);
}

KERNEL(THREADS, 1)
stencil_squares(GLOBAL const REAL *RESTRICT x, GLOBAL const REAL *RESTRICT b, GLOBAL double *RESTRICT partial,
                index_t rows, index_t lines, index_t columns, index_t pitch, index_t first_row, index_t last_row,
                index_t blocks, double row_weight, double line_weight, double column_weight)
{
    const index_t plane = pitch;
    const int low = 0, high = 0;
    FOR_POINTS(threadIdx.x, first_row, last_row, x + (row * pitch + line * columns), {
        const double given = b[at + column];
        const double left = given - PRODUCT(double, u, row, line, column);
        sums[0] += left * left;
        sums[1] += given * given;
    })
    write_block_sums(sums, scratch, partial, (int)threadIdx.x, blockIdx.x);
}
