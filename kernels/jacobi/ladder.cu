// A sweep of Jacobi's method for Poisson's equation, kernel after kernel: naive first, one idea each, after Jensen
// (2017), section 2.2. ladder.py has a table of the steps. Of each of rows x columns points with zeros around them
// u_new = (left + right + above + below) / 4 + f_factor f. 3 elements are moved for a point, at least. A block has
// BX x BY threads.

#define GRID                                                                                                \
    GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, GLOBAL REAL *RESTRICT u_new,              \
        index_t rows, index_t columns, double f_factor

DEVICE REAL swept(REAL given, REAL left, REAL right, REAL above, REAL below, double f_factor)
{
    return (REAL)0.25 * (left + right + above + below) + (REAL)f_factor * given;
}

// A point, with its neighbours loaded from memory.
DEVICE void sweep_point(GLOBAL const REAL *u, GLOBAL const REAL *f, GLOBAL REAL *u_new, index_t rows, index_t columns,
                        double f_factor, index_t row, index_t column)
{
    const index_t at = row * columns + column;
    const REAL left = column > 0 ? u[at - 1] : (REAL)0, right = column + 1 < columns ? u[at + 1] : (REAL)0;
    const REAL above = row > 0 ? u[at - columns] : (REAL)0, below = row + 1 < rows ? u[at + columns] : (REAL)0;
    u_new[at] = swept(f[at], left, right, above, below, f_factor);
}

#define FIND_POINT                                                                                          \
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;                                         \
    const index_t across = (columns + BX - 1) / BX;                                                         \
    const index_t row = blockIdx.x / across * BY + y, column = blockIdx.x % across * BX + x;

// -- 1. sequential: one thread goes through all points ----------------------------------------------------------------
KERNEL(1, 1)
jacobi_sequential(GRID)
{
    for (index_t row = 0; row < rows; ++row)
        for (index_t column = 0; column < columns; ++column)
            sweep_point(u, f, u_new, rows, columns, f_factor, row, column);
}

// -- 2. naive: a thread for each point: 5 loads for 6 flops, so that memory is the limit ------------------------------
KERNEL(BX *BY, 1)
jacobi_naive(GRID)
{
    FIND_POINT
    if (row < rows && column < columns) sweep_point(u, f, u_new, rows, columns, f_factor, row, column);
}

// -- 3. shared: a tile and the points around it go to shared memory ---------------------------------------------------
// A point is asked of memory or a cache once for a tile, not once for each neighbour. All loads, that of f too, are
// asked for before the first is waited for: behind tests and the barrier they took 1.5 times as long.
KERNEL(BX *BY, 1)
jacobi_shared(GRID)
{
    SHARED REAL points[BY + 2][BX + 2];
    FIND_POINT
    const index_t at = row * columns + column;
    const int wide = column < columns, high = row < rows, inside = wide && high;
    const REAL given = inside ? f[at] : (REAL)0, own = inside ? u[at] : (REAL)0;
    const REAL left = x == 0 && high && column > 0 ? u[at - 1] : (REAL)0;
    const REAL right = x == BX - 1 && high && column + 1 < columns ? u[at + 1] : (REAL)0;
    const REAL above = y == 0 && wide && row > 0 ? u[at - columns] : (REAL)0;
    const REAL below = y == BY - 1 && wide && row + 1 < rows ? u[at + columns] : (REAL)0;
    points[y + 1][x + 1] = own;
    if (x == 0) points[y + 1][0] = left;
    if (x == BX - 1) points[y + 1][BX + 1] = right;
    if (y == 0) points[0][x + 1] = above;
    if (y == BY - 1) points[BY + 1][x + 1] = below;
    __syncthreads();
    if (inside)
        u_new[at] = swept(given, points[y + 1][x], points[y + 1][x + 2], points[y][x + 1], points[y + 2][x + 1],
                          f_factor);
}

// -- 4. persistent: the loop over sweeps and the swap of u and u_new are on the device --------------------------------
// A launch makes `sweeps` of them, an even number, and its blocks wait for each other after each. So f, which no sweep
// changes, is read once to shared memory and stays there: two of three passes over the memory are left. A block has
// `share` rows; neighbours in rows of other blocks are read past the L1. All blocks run at once: see grid_barrier.cu.
#if STEP == 4
#include "grid_barrier.cu"
#define NEAR(r) ((r) >= first && (r) < end ? u[(r) * columns + c] : FRESH(u + (r) * columns + c))

KERNEL(BX *BY, 1)
jacobi_persistent(GLOBAL REAL *u, GLOBAL const REAL *RESTRICT f, GLOBAL REAL *v, GLOBAL unsigned int *arrivals,
                  index_t rows, index_t columns, index_t share, index_t sweeps, double f_factor)
{
    SHARED REAL held[SHARED_BYTES / sizeof(REAL)];
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;
    const index_t first = blockIdx.x * share, end = first + share < rows ? first + share : rows;
    const unsigned int blocks = (unsigned int)((rows + share - 1) / share);
    for (index_t r = first + y; r < end; r += BY)
        for (index_t c = x; c < columns; c += BX) held[(r - first) * columns + c] = f[r * columns + c];
    // A thread reads what it has put there itself: no barrier is needed.
    for (index_t sweep = 0; sweep < sweeps; ++sweep) {
        for (index_t r = first + y; r < end; r += BY) {
            for (index_t c = x; c < columns; c += BX) {
                const REAL left = c > 0 ? u[r * columns + c - 1] : (REAL)0;
                const REAL right = c + 1 < columns ? u[r * columns + c + 1] : (REAL)0;
                const REAL above = r > 0 ? NEAR(r - 1) : (REAL)0, below = r + 1 < rows ? NEAR(r + 1) : (REAL)0;
                v[r * columns + c] = swept(held[(r - first) * columns + c], left, right, above, below, f_factor);
            }
        }
        GLOBAL REAL *const swapped = u;
        u = v;
        v = swapped;
        MEET(arrivals, (unsigned int)(sweep + 1) * blocks)
    }
}
#endif
