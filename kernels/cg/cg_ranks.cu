// Vector operations of conjugate gradients. The host knows their scalars, because they are sums over
// the ranks of an MPI communicator.
//
// ranks_dot: x.y, 2 passes, 2 n flops. ranks_add: y = scale y + x, 3 passes. ranks_subtract:
// y -= scale x, 3 passes. ranks_reduce: r -= alpha q with r.r and 0 (x + alpha p), which is NaN where
// x would not be finite; 5 passes, 6 n flops. ranks_times: z = m x.
//
// Preconditions. THREADS is a power of two, at least 8. y and x, or z and x, may be the same.

#define SUMS 2
#include "vectors.cu"
#include "block_sums.cu"

KERNEL(THREADS, 1)
ranks_dot(GLOBAL const REAL *x, GLOBAL const REAL *y, GLOBAL double *RESTRICT partial,
          index_t n, index_t blocks)
{
    SHARED double scratch[SUMS * THREADS];
    double sums[SUMS] = {0, 0};
    GRID_STRIDE(at) sums[0] += (double)x[at] * y[at];
    write_block_sums(sums, scratch, partial, (int)threadIdx.x, blockIdx.x);
}

KERNEL(THREADS, 1)
ranks_reduce(GLOBAL const REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL const REAL *RESTRICT p,
             GLOBAL const REAL *RESTRICT q, GLOBAL double *RESTRICT partial, double scale,
             index_t n, index_t blocks)
{
    SHARED double scratch[SUMS * THREADS];
    double sums[SUMS] = {0, 0};
    const REAL alpha = (REAL)scale;
    GRID_STRIDE(at)
    {
        const REAL left = r[at] - alpha * q[at];
        r[at] = left;
        sums[0] += (double)left * left;
        sums[1] += (x[at] + alpha * p[at]) * (REAL)0;
    }
    write_block_sums(sums, scratch, partial, (int)threadIdx.x, blockIdx.x);
}

KERNEL(THREADS, 1)
ranks_add(GLOBAL REAL *y, GLOBAL const REAL *x, double scale, index_t n, index_t blocks)
{
    const REAL factor = (REAL)scale;
    GRID_STRIDE(at) y[at] = factor * y[at] + x[at];
}

KERNEL(THREADS, 1)
ranks_subtract(GLOBAL REAL *y, GLOBAL const REAL *x, double scale, index_t n, index_t blocks)
{
    const REAL factor = (REAL)scale;
    GRID_STRIDE(at) y[at] -= factor * x[at];
}

KERNEL(THREADS, 1)
ranks_times(GLOBAL REAL *z, GLOBAL const REAL *m, GLOBAL const REAL *x, index_t n, index_t blocks)
{
    GRID_STRIDE(at) z[at] = m[at] * x[at];
}
