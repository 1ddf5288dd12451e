// u = A^-1 f on the coarsest grid of multigrid.cu, by one block.
//
// Along each axis a product with the symmetric, orthogonal matrix of sines, sqrt(2 / (n + 1)) sin(pi j k / (n + 1)),
// then a division by the eigenvalues, and the same products once more. `sines` has the matrices of x, y and z one after
// the other; `inverse` the reciprocals of the eigenvalues. The grid has at most POOL points.
// Per point: 4 (nz + ny + nx) flops.

#define EACH ((POOL + THREADS - 1) / THREADS)
#define FOR_POINTS(e, i) UNROLL for (int e = 0, i = t; e < EACH; ++e, i += THREADS) if (i < points)

// v = the product along an axis of n points, `stride` apart.
DEVICE void transform(LOCAL REAL *v, GLOBAL const REAL *sines, int t, int points, int n, int stride)
{
    REAL sums[EACH];
    FOR_POINTS(e, i) {
        const int k = i / stride % n;
        LOCAL const REAL *line = v + (i - k * stride);
        REAL sum = 0;
        for (int j = 0; j < n; ++j) sum += sines[j * n + k] * line[j * stride];
        sums[e] = sum;
    }
    __syncthreads();
    FOR_POINTS(e, i) v[i] = sums[e];
    __syncthreads();
}

KERNEL(THREADS, 1)
solve_coarsest(GLOBAL const REAL *RESTRICT f, GLOBAL REAL *RESTRICT u, GLOBAL const REAL *RESTRICT sines,
               GLOBAL const REAL *RESTRICT inverse, index_t nz, index_t ny, index_t nx)
{
    SHARED REAL v[POOL];
    const int t = (int)threadIdx.x, points = (int)(nz * ny * nx);
    FOR_POINTS(e, i) v[i] = f[i];
    __syncthreads();
    for (int back = 0; back < 2; ++back) {
        transform(v, sines, t, points, (int)nx, 1);
        if (ny > 1) transform(v, sines + nx * nx, t, points, (int)ny, (int)nx);
        transform(v, sines + nx * nx + ny * ny, t, points, (int)nz, (int)(ny * nx));
        FOR_POINTS(e, i) v[i] *= back ? 1 : inverse[i];
        __syncthreads();
    }
    FOR_POINTS(e, i) u[i] = v[i];
}
