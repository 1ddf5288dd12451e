// Jacobi's method, step 4 of jacobi_rungs.cu. persistent: the loop over sweeps, and the swap of u and u_new, are on the
// device: a launch makes `sweeps` of them, and its blocks wait for each other after each. So f, which no sweep changes,
// is read once to shared memory and stays there, as M. Jensen proposes at the end of his section 2.2: of three passes
// over the memory for a sweep two are left. Results are the same bit for bit.
//
// A block has `share` lines and BX x BY threads, along a line and across; in 3-D the lines of all planes are counted
// through. Neighbours in lines of other blocks are read past the L1. All blocks run at once: see grid_barrier.cu.
// After an odd number of sweeps the result is in `v`, else in `u`.
//
// Dynamic shared memory (in OpenCL, SHARED_BYTES): share * columns elements. Per point and sweep: 2 elements moved.

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
#define BY 32
#endif
#ifndef SHARED_BYTES
#define SHARED_BYTES 49152
#endif

#include "grid_barrier.cu"
#include "jacobi_point.cu"

// An element of u in line l, which is another block's outside of [first, end).
#define NEAR(l, column) \
    ((l) >= first && (l) < end ? u[(l) * pitch + (column)] : FRESH(u + (l) * pitch + (column)))

KERNEL(BX * BY, 1)
jacobi_persistent(GLOBAL REAL *u, GLOBAL const REAL *RESTRICT f, GLOBAL REAL *v, COUNTER arrivals, index_t rows,
                  index_t lines, index_t columns, index_t pitch, index_t share, index_t sweeps, double row_factor,
                  double line_factor, double column_factor, double f_factor)
{
#ifdef __OPENCL_VERSION__
    SHARED REAL held[SHARED_BYTES / sizeof(REAL)];
#else
    extern __shared__ double memory[];
    REAL *const held = (REAL *)memory;
#endif
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;
    const index_t all = rows * lines, first = blockIdx.x * share;
    const index_t end = first + share < all ? first + share : all;
    const unsigned int blocks = (unsigned int)((all + share - 1) / share);
    for (index_t l = first + y; l < end; l += BY)
        for (index_t c = x; c < columns; c += BX) held[(l - first) * columns + c] = f[l * pitch + c];
    // A thread reads what it has put there itself: no barrier is needed.
    for (index_t sweep = 0; sweep < sweeps; ++sweep) {
        for (index_t l = first + y; l < end; l += BY) {
            const index_t row = l / lines, line = l % lines;
            for (index_t c = x; c < columns; c += BX) {
                const REAL left = c > 0 ? u[l * pitch + c - 1] : (REAL)0;
                const REAL right = c + 1 < columns ? u[l * pitch + c + 1] : (REAL)0;
                const REAL above = DIMS == 3 && line > 0 ? NEAR(l - 1, c) : (REAL)0;
                const REAL below = DIMS == 3 && line + 1 < lines ? NEAR(l + 1, c) : (REAL)0;
                const REAL before = row > 0 ? NEAR(l - lines, c) : (REAL)0;
                const REAL after = row + 1 < rows ? NEAR(l + lines, c) : (REAL)0;
                v[l * pitch + c] = swept(held[(l - first) * columns + c], left, right, above, below, before, after,
                                         row_factor, line_factor, column_factor, f_factor);
            }
        }
        GLOBAL REAL *const swapped = u;
        u = v;
        v = swapped;
        MEET(arrivals, (unsigned int)(sweep + 1) * blocks)
    }
}
