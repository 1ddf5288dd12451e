// A sweep of Jacobi's method step by step: the way from one thread to jacobi.cu, after M. Jensen,
// "High-Performance Computing, Assignment 2", Technical University of Denmark, 2017, section 2.2. 5 points in 2-D, 7 in
// 3-D. Buffers, and the order of a point's operations: see jacobi.cu; results are the same bit for bit.
//
// 1 sequential  one thread goes through all points: that the method is right, and what a single thread is worth
// 2 naive       a thread for each point: 2 DIMS + 1 loads for 2 DIMS + 2 flops, so that memory is the limit
// 3 shared      a tile of points and the points around it go to shared memory, so that a point is asked of memory
//               or a cache once for a tile, not once for each neighbour
//
// After these come several sweeps in one pass over the memory (jacobi.cu), and several devices.
//
// rows x lines x columns points, lines = 1 in 2-D; a line's elements lie together, lines `pitch` apart.
// Per point: 3 elements moved at least, u and f read, u written.

#ifndef REAL
#define REAL float
#endif
#ifndef DIMS
#define DIMS 2
#endif
#ifndef BX
#define BX 32
#endif
#ifndef BY
#define BY 8
#endif

#define ARGUMENTS                                                                               \
    GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, GLOBAL REAL *RESTRICT u_new,  \
        index_t rows, index_t lines, index_t columns, index_t pitch, index_t across,            \
        index_t down, double row_factor, double line_factor, double column_factor,              \
        double f_factor

#include "jacobi_point.cu"

// A point, with its neighbours loaded from memory.
DEVICE void sweep_point(ARGUMENTS, index_t row, index_t line, index_t column)
{
    const index_t plane = lines * pitch, at = row * plane + line * pitch + column;
    const REAL left = column > 0 ? u[at - 1] : (REAL)0;
    const REAL right = column + 1 < columns ? u[at + 1] : (REAL)0;
    const REAL above = line > 0 ? u[at - pitch] : (REAL)0;
    const REAL below = line + 1 < lines ? u[at + pitch] : (REAL)0;
    const REAL before = row > 0 ? u[at - plane] : (REAL)0;
    const REAL after = row + 1 < rows ? u[at + plane] : (REAL)0;
    u_new[at] = swept(f[at], left, right, above, below, before, after, row_factor, line_factor,
                      column_factor, f_factor);
}

#define SWEEP_POINT(row, line, column)                                                          \
    sweep_point(u, f, u_new, rows, lines, columns, pitch, across, down, row_factor, line_factor, \
                column_factor, f_factor, row, line, column)

// 1. sequential. One block of one thread.
KERNEL(1, 1)
jacobi_sequential(ARGUMENTS)
{
    for (index_t row = 0; row < rows; ++row)
        for (index_t line = 0; line < lines; ++line)
            for (index_t column = 0; column < columns; ++column) SWEEP_POINT(row, line, column);
}

// Where a block of BX x BY threads works: a tile of a grid's rows and columns in 2-D, of a plane's lines and columns
// in 3-D. `down` tiles of a plane, `across` of a line.
#define FIND_TILE                                                                               \
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;                             \
    const unsigned int tile = blockIdx.x / (unsigned int)across;                                \
    const index_t column = (index_t)(blockIdx.x % (unsigned int)across) * BX + x;               \
    const index_t along = (index_t)(tile % (unsigned int)down) * BY + y;                        \
    const index_t row = DIMS == 3 ? (index_t)(tile / (unsigned int)down) : along;               \
    const index_t line = DIMS == 3 ? along : 0;                                                 \
    const int inside = column < columns && row < rows && line < lines;

// 2. naive.
KERNEL(BX * BY, 1)
jacobi_naive(ARGUMENTS)
{
    FIND_TILE
    if (inside) SWEEP_POINT(row, line, column);
}

// 3. shared. The tile lies in the middle of (BX + 2) x (BY + 2) elements. Each thread fetches its point, those at the
// tile's edges the adjacent points too; zeros are outside of the grid. In 3-D the planes before and after are read from
// memory, as by naive.
KERNEL(BX * BY, 1)
jacobi_shared(ARGUMENTS)
{
    SHARED REAL points[(BY + 2) * (BX + 2)];
    FIND_TILE
    const index_t plane = lines * pitch, step = DIMS == 3 ? pitch : plane;
    const index_t most = DIMS == 3 ? lines : rows;
    const index_t at = row * plane + line * pitch + column;
    LOCAL REAL *const here = points + (y + 1) * (BX + 2) + x + 1;
    const int across_inside = column < columns, down_inside = along < most;
    // All loads, f's too, are asked for before the first is waited for: behind tests and the barrier, one after
    // the other, they took 1.5 times as long.
    const REAL given = inside ? f[at] : (REAL)0, own = inside ? u[at] : (REAL)0;
    const REAL left = x == 0 && down_inside && column > 0 ? u[at - 1] : (REAL)0;
    const REAL right = x == BX - 1 && down_inside && column + 1 < columns ? u[at + 1] : (REAL)0;
    const REAL over = y == 0 && across_inside && along > 0 ? u[at - step] : (REAL)0;
    const REAL under = y == BY - 1 && across_inside && along + 1 < most ? u[at + step] : (REAL)0;
    here[0] = own;
    if (x == 0) here[-1] = left;
    if (x == BX - 1) here[1] = right;
    if (y == 0) here[-(BX + 2)] = over;
    if (y == BY - 1) here[BX + 2] = under;
    __syncthreads();
    if (inside) {
        const REAL above = here[-(BX + 2)], below = here[BX + 2];
        REAL before = above, after = below;
        if (DIMS == 3) {
            before = row > 0 ? u[at - plane] : (REAL)0;
            after = row + 1 < rows ? u[at + plane] : (REAL)0;
        }
        u_new[at] = swept(given, here[-1], here[1], above, below, before, after, row_factor, line_factor,
                          column_factor, f_factor);
    }
}
