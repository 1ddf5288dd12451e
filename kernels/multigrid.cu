// The parts of a multigrid cycle for -div grad u = f on boxes of nz x ny x nx points, zero outside.
//
// Arrays are contiguous, in C order. wz, wy, wx are 1 / spacing^2 of the axes, 0 for one that is not
// there. Points are red where z + y + x is even (color 0), else black (color 1); a point's neighbours
// have the other color, so that half a sweep may run in any order.
// A block works on a piece of one row: blockIdx.x = row * pieces + piece.

#ifndef REAL
#define REAL double
#endif
#ifndef THREADS
#define THREADS 128
#endif
#define TAPS 4

// Sum over the neighbours of w * u; 2-D grids have nz = 1.
DEVICE REAL neighbours(GLOBAL const REAL *u, index_t i, index_t z, index_t y, index_t x, index_t nz,
                       index_t ny, index_t nx, REAL wz, REAL wy, REAL wx)
{
    const index_t plane = ny * nx;
    REAL west = 0, east = 0, north = 0, south = 0, above = 0, below = 0;
    if (x > 0) west = u[i - 1];
    if (x + 1 < nx) east = u[i + 1];
    if (y > 0) north = u[i - nx];
    if (y + 1 < ny) south = u[i + nx];
    if (z > 0) above = u[i - plane];
    if (z + 1 < nz) below = u[i + plane];
    return wx * (west + east) + wy * (north + south) + wz * (above + below);
}

// Half a Gauss-Seidel sweep over the points of one color. pieces = ceil(nx / (2 THREADS)).
// Per point of the grid: u read and half of it written, f read (whole lines).
KERNEL(THREADS, 1)
smooth(GLOBAL REAL *u, GLOBAL const REAL *RESTRICT f, index_t nz, index_t ny, index_t nx, double dz,
       double dy, double dx, index_t pieces, index_t color)
{
    const REAL wz = (REAL)dz, wy = (REAL)dy, wx = (REAL)dx;
    const index_t row = (index_t)(blockIdx.x / (unsigned int)pieces);
    const index_t piece = (index_t)(blockIdx.x % (unsigned int)pieces);
    const index_t z = (index_t)((unsigned int)row / (unsigned int)ny);
    const index_t y = row - z * ny;
    const index_t x = 2 * (piece * THREADS + threadIdx.x) + ((color + z + y) & 1);
    if (x >= nx) return;
    const index_t i = row * nx + x;
    const REAL inverse = 1 / (2 * (wz + wy + wx));
    u[i] = inverse * (f[i] + neighbours(u, i, z, y, x, nz, ny, nx, wz, wy, wx));
}

// A whole sweep, red then black, from u = 0: the red values that a black point needs are f / diagonal.
// pieces = ceil(nx / THREADS). Per point: f read, u written.
KERNEL(THREADS, 1)
smooth_from_zero(GLOBAL REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, index_t nz, index_t ny,
                 index_t nx, double dz, double dy, double dx, index_t pieces)
{
    const REAL wz = (REAL)dz, wy = (REAL)dy, wx = (REAL)dx;
    const index_t row = (index_t)(blockIdx.x / (unsigned int)pieces);
    const index_t piece = (index_t)(blockIdx.x % (unsigned int)pieces);
    const index_t z = (index_t)((unsigned int)row / (unsigned int)ny);
    const index_t y = row - z * ny;
    const index_t x = piece * THREADS + threadIdx.x;
    if (x >= nx) return;
    const index_t i = row * nx + x;
    const REAL inverse = 1 / (2 * (wz + wy + wx));
    REAL value = f[i];
    if ((z + y + x) & 1) value += inverse * neighbours(f, i, z, y, x, nz, ny, nx, wz, wy, wx);
    u[i] = inverse * value;
}

// coarse = R (f - A u), where the residual is zero at black points: a black half sweep came last.
// A coarse point takes from up to TAPS fine ones along each axis. coarse is mz x my x mx;
// pieces = ceil(mx / THREADS).
KERNEL(THREADS, 1)
restrict_residual(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f,
                  GLOBAL REAL *RESTRICT coarse, index_t nz, index_t ny, index_t nx, double dz,
                  double dy, double dx, index_t pieces, index_t my, index_t mx,
                  GLOBAL const int *RESTRICT z_first, GLOBAL const REAL *RESTRICT z_taps,
                  GLOBAL const int *RESTRICT y_first, GLOBAL const REAL *RESTRICT y_taps,
                  GLOBAL const int *RESTRICT x_first, GLOBAL const REAL *RESTRICT x_taps)
{
    const REAL wz = (REAL)dz, wy = (REAL)dy, wx = (REAL)dx;
    const REAL diagonal = 2 * (wz + wy + wx);
    const index_t row = (index_t)(blockIdx.x / (unsigned int)pieces);
    const index_t piece = (index_t)(blockIdx.x % (unsigned int)pieces);
    const index_t z0 = (index_t)((unsigned int)row / (unsigned int)my);
    const index_t y0 = row - z0 * my;
    const index_t x0 = piece * THREADS + threadIdx.x;
    if (x0 >= mx) return;
    REAL sum = 0;
    for (int a = 0; a < TAPS; ++a) {
        const REAL weight_z = z_taps[z0 * TAPS + a];
        if (weight_z == 0) continue;
        const index_t z = z_first[z0] + a;
        for (int b = 0; b < TAPS; ++b) {
            const REAL weight_y = weight_z * y_taps[y0 * TAPS + b];
            if (weight_y == 0) continue;
            const index_t y = y_first[y0] + b;
            UNROLL
            for (int c = 0; c < TAPS; ++c) {
                const REAL weight = x_taps[x0 * TAPS + c];
                const index_t x = x_first[x0] + c;
                if (weight == 0 || ((z + y + x) & 1)) continue;
                const index_t i = (z * ny + y) * nx + x;
                const REAL r = f[i] - diagonal * u[i] +
                               neighbours(u, i, z, y, x, nz, ny, nx, wz, wy, wx);
                sum += weight_y * weight * r;
            }
        }
    }
    coarse[row * mx + x0] = sum;
}

// u += P coarse at the points of one color; those of the other are solved for next and need it not.
// pieces = ceil(nx / (2 THREADS)).
KERNEL(THREADS, 1)
prolong(GLOBAL REAL *RESTRICT u, GLOBAL const REAL *RESTRICT coarse, index_t ny, index_t nx,
        index_t pieces, index_t color, index_t mz, index_t my, index_t mx,
        GLOBAL const int *RESTRICT z_left, GLOBAL const REAL *RESTRICT z_weight,
        GLOBAL const int *RESTRICT y_left, GLOBAL const REAL *RESTRICT y_weight,
        GLOBAL const int *RESTRICT x_left, GLOBAL const REAL *RESTRICT x_weight)
{
    const index_t row = (index_t)(blockIdx.x / (unsigned int)pieces);
    const index_t piece = (index_t)(blockIdx.x % (unsigned int)pieces);
    const index_t z = (index_t)((unsigned int)row / (unsigned int)ny);
    const index_t y = row - z * ny;
    const index_t x = 2 * (piece * THREADS + threadIdx.x) + ((color + z + y) & 1);
    if (x >= nx) return;
    const index_t left = x_left[x];
    const REAL right_weight = x_weight[x];
    REAL sum = 0;
    for (int a = 0; a < 2; ++a) {
        const index_t z0 = z_left[z] + a;
        const REAL weight_z = a ? z_weight[z] : 1 - z_weight[z];
        if (z0 < 0 || z0 >= mz || weight_z == 0) continue;
        for (int b = 0; b < 2; ++b) {
            const index_t y0 = y_left[y] + b;
            const REAL weight = weight_z * (b ? y_weight[y] : 1 - y_weight[y]);
            if (y0 < 0 || y0 >= my || weight == 0) continue;
            GLOBAL const REAL *line = coarse + (z0 * my + y0) * mx;
            REAL value = 0;
            if (left >= 0) value = (1 - right_weight) * line[left];
            if (left + 1 < mx) value += right_weight * line[left + 1];
            sum += weight * value;
        }
    }
    u[row * nx + x] += sum;
}

// sums[2 b], sums[2 b + 1] = squares of f - A u and of f that block b met. Blocks walk over the rows
// with a fixed stride, so that the order of the additions depends on their number alone.
KERNEL(THREADS, 1)
squares(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, GLOBAL double *RESTRICT sums,
        index_t nz, index_t ny, index_t nx, double dz, double dy, double dx, index_t blocks)
{
    SHARED double shared_r[THREADS];
    SHARED double shared_f[THREADS];
    const REAL wz = (REAL)dz, wy = (REAL)dy, wx = (REAL)dx;
    const REAL diagonal = 2 * (wz + wy + wx);
    const int t = (int)threadIdx.x;
    double sum_r = 0, sum_f = 0;
    for (index_t row = blockIdx.x; row < nz * ny; row += blocks) {
        const index_t z = (index_t)((unsigned int)row / (unsigned int)ny);
        const index_t y = row - z * ny;
        for (index_t x = t; x < nx; x += THREADS) {
            const index_t i = row * nx + x;
            const REAL rhs = f[i];
            const REAL r =
                rhs - diagonal * u[i] + neighbours(u, i, z, y, x, nz, ny, nx, wz, wy, wx);
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
