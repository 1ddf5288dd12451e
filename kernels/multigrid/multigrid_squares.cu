// Squares of f - A u and of f, A = -div grad on a box of nz x ny x nx points, zero outside.

#ifndef REAL
#define REAL double
#endif
#ifndef THREADS
#define THREADS 128
#endif

// sums[2 b], sums[2 b + 1] = squares of f - A u and of f that block b met, in rows `first` to `last` - 1
// of the nz * ny there are. Blocks walk over the rows with a fixed stride, so that the order of the additions depends on their number alone. wz, wy, wx
// are 1 / spacing^2 of the axes. Per point: u and f read; 16 flops in 3-D.
KERNEL(THREADS, 1)
squares(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, GLOBAL double *RESTRICT sums,
        index_t nz, index_t ny, index_t nx, double dz, double dy, double dx, index_t first, index_t last,
        index_t blocks)
{
    SHARED double shared_r[THREADS];
    SHARED double shared_f[THREADS];
    const REAL wz = (REAL)dz, wy = (REAL)dy, wx = (REAL)dx;
    const REAL diagonal = 2 * (wz + wy + wx);
    const index_t plane = ny * nx;
    const int t = (int)threadIdx.x;
    double sum_r = 0, sum_f = 0;
    for (index_t row = first + blockIdx.x; row < last; row += blocks) {
        const index_t z = (index_t)((unsigned int)row / (unsigned int)ny);
        const index_t y = row - z * ny;
        for (index_t x = t; x < nx; x += THREADS) {
            const index_t i = row * nx + x;
            REAL west = 0, east = 0, north = 0, south = 0, above = 0, below = 0;
            if (x > 0) west = u[i - 1];
            if (x + 1 < nx) east = u[i + 1];
            if (y > 0) north = u[i - nx];
            if (y + 1 < ny) south = u[i + nx];
            if (z > 0) above = u[i - plane];
            if (z + 1 < nz) below = u[i + plane];
            const REAL near = wx * (west + east) + wy * (north + south) + wz * (above + below);
            const REAL rhs = f[i];
            const REAL r = rhs - diagonal * u[i] + near;
            sum_r += (double)r * r;
            sum_f += (double)rhs * rhs;
        }
    }
    shared_r[t] = sum_r;
    shared_f[t] = sum_f;
    for (int half_width = THREADS / 2; half_width > 0; half_width /= 2) {
        __syncthreads();
        if (t < half_width) {
            shared_r[t] += shared_r[t + half_width];
            shared_f[t] += shared_f[t + half_width];
        }
    }
    if (t == 0) {
        sums[2 * blockIdx.x] = shared_r[0];
        sums[2 * blockIdx.x + 1] = shared_f[0];
    }
}
