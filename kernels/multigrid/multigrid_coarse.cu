// A V(1,1)-cycle from zero over all the small grids, by one block: it takes the place of some fifty
// launches that would each do next to nothing.
//
// Grids, colors and transfers are those of multigrid.cu. u of all grids is in shared memory, f and r
// in scratch. The threads go together through half sweeps, residual, restriction and interpolation.
// table: 10 integers for each grid: nz, ny, nx; where its points begin in the pool and in scratch;
// where left and weight begin for z, y, x; where first and, times TAPS, taps begin for z, y, x.

#define TAPS 4
#define TABLE 10
#ifdef __OPENCL_VERSION__
#define SYNC() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
#define SYNC() __syncthreads()
#endif

// Sum over the neighbours of w * u.
DEVICE REAL neighbours(LOCAL const REAL *u, int i, int z, int y, int x, int nz, int ny, int nx,
                       REAL wz, REAL wy, REAL wx)
{
    const int plane = ny * nx;
    REAL west = 0, east = 0, north = 0, south = 0, above = 0, below = 0;
    if (x > 0) west = u[i - 1];
    if (x + 1 < nx) east = u[i + 1];
    if (y > 0) north = u[i - nx];
    if (y + 1 < ny) south = u[i + nx];
    if (z > 0) above = u[i - plane];
    if (z + 1 < nz) below = u[i + plane];
    return wx * (west + east) + wy * (north + south) + wz * (above + below);
}

// Half a sweep. 12 flops per point relaxed in 2-D.
DEVICE void relax(LOCAL REAL *u, GLOBAL const REAL *f, int t, int nz, int ny, int nx, REAL wz, REAL wy,
                  REAL wx, REAL omega, int color)
{
    const int pairs = (nx + 1) / 2;
    const REAL inverse = 1 / (2 * (wz + wy + wx));
    for (int k = t; k < nz * ny * pairs; k += THREADS) {
        const int row = k / pairs;
        const int z = row / ny, y = row - z * ny;
        const int x = 2 * (k - row * pairs) + ((color + z + y) & 1);
        if (x < nx) {
            const int i = row * nx + x;
            const REAL near = neighbours(u, i, z, y, x, nz, ny, nx, wz, wy, wx);
            u[i] += omega * (inverse * (f[i] + near) - u[i]);
        }
    }
}

// u = M f, one cycle, over `grids` grids. spacings: 1 / spacing^2 along z, y, x of each grid.
// The second smoothing takes the colors in reverse if `symmetric`. One block.
KERNEL(THREADS, 1)
coarse_cycle(GLOBAL const REAL *f, GLOBAL REAL *u, GLOBAL REAL *scratch_f, GLOBAL REAL *scratch_r,
             GLOBAL const int *table, GLOBAL const REAL *spacings, GLOBAL const int *lefts,
             GLOBAL const REAL *weights, GLOBAL const int *firsts, GLOBAL const REAL *taps,
             GLOBAL const REAL *inverse, index_t grids, double relaxation, index_t symmetric)
{
    SHARED REAL pool[POOL];
    const int t = (int)threadIdx.x;
    const REAL omega = (REAL)relaxation;
    const int last = (int)grids - 1;

    for (int level = 0; level < last; ++level) {
        GLOBAL const int *g = table + level * TABLE;
        const int nz = g[0], ny = g[1], nx = g[2], points = nz * ny * nx;
        const REAL wz = spacings[3 * level], wy = spacings[3 * level + 1], wx = spacings[3 * level + 2];
        LOCAL REAL *v = pool + g[3];
        GLOBAL const REAL *rhs = level ? scratch_f + g[3] : f;
        const REAL diagonal = 2 * (wz + wy + wx);
        // First color from zero; the second is zero yet.
        for (int i = t; i < points; i += THREADS) {
            const int row = i / nx;
            const int color = (row / ny + row % ny + (i - row * nx)) & 1;
            v[i] = color ? 0 : omega / diagonal * rhs[i];
        }
        SYNC();
        relax(v, rhs, t, nz, ny, nx, wz, wy, wx, omega, 1);
        SYNC();
        for (int i = t; i < points; i += THREADS) {
            const int row = i / nx;
            const int z = row / ny, y = row - z * ny;
            scratch_r[i] = rhs[i] - diagonal * v[i] +
                           neighbours(v, i, z, y, i - row * nx, nz, ny, nx, wz, wy, wx);
        }
        SYNC();
        const int mz = g[TABLE], my = g[TABLE + 1], mx = g[TABLE + 2];
        for (int i = t; i < mz * my * mx; i += THREADS) {
            const int row = i / mx;
            const int z0 = row / my, y0 = row - z0 * my, x0 = i - row * mx;
            REAL sum = 0;
            for (int a = 0; a < TAPS; ++a) {
                const REAL tap_z = taps[(g[7] + z0) * TAPS + a];
                const int z = firsts[g[7] + z0] + a;
                for (int b = 0; b < TAPS; ++b) {
                    const REAL tap = tap_z * taps[(g[8] + y0) * TAPS + b];
                    const int y = firsts[g[8] + y0] + b;
                    if (tap == 0) continue;
                    for (int c = 0; c < TAPS; ++c) {
                        const REAL tap_x = taps[(g[9] + x0) * TAPS + c];
                        const int x = firsts[g[9] + x0] + c;
                        if (tap_x != 0) sum += tap * tap_x * scratch_r[(z * ny + y) * nx + x];
                    }
                }
            }
            scratch_f[g[TABLE + 3] + i] = sum;
        }
        SYNC();
    }

    {
        GLOBAL const int *g = table + last * TABLE;
        const int points = g[0] * g[1] * g[2];
        GLOBAL const REAL *rhs = last ? scratch_f + g[3] : f;
        for (int i = t; i < points; i += THREADS) {
            REAL sum = 0;
            for (int j = 0; j < points; ++j) sum += inverse[j * points + i] * rhs[j];  // symmetric
            pool[g[3] + i] = sum;
        }
        SYNC();
    }

    for (int level = last - 1; level >= 0; --level) {
        GLOBAL const int *g = table + level * TABLE;
        const int nz = g[0], ny = g[1], nx = g[2];
        const int mz = g[TABLE], my = g[TABLE + 1], mx = g[TABLE + 2];
        const REAL wz = spacings[3 * level], wy = spacings[3 * level + 1], wx = spacings[3 * level + 2];
        LOCAL REAL *v = pool + g[3];
        LOCAL const REAL *coarse = pool + g[TABLE + 3];
        GLOBAL const REAL *rhs = level ? scratch_f + g[3] : f;
        for (int i = t; i < nz * ny * nx; i += THREADS) {
            const int row = i / nx;
            const int z = row / ny, y = row - z * ny, x = i - row * nx;
            const int left = lefts[g[6] + x];
            const REAL right_weight = weights[g[6] + x];
            REAL sum = 0;
            for (int a = 0; a < 2; ++a) {
                const int z0 = lefts[g[4] + z] + a;
                const REAL weight_z = a ? weights[g[4] + z] : 1 - weights[g[4] + z];
                if (z0 < 0 || z0 >= mz || weight_z == 0) continue;
                for (int b = 0; b < 2; ++b) {
                    const int y0 = lefts[g[5] + y] + b;
                    const REAL weight = weight_z * (b ? weights[g[5] + y] : 1 - weights[g[5] + y]);
                    if (y0 < 0 || y0 >= my || weight == 0) continue;
                    LOCAL const REAL *line = coarse + (z0 * my + y0) * mx;
                    if (left >= 0) sum += weight * (1 - right_weight) * line[left];
                    if (left + 1 < mx) sum += weight * right_weight * line[left + 1];
                }
            }
            v[i] += sum;
        }
        SYNC();
        relax(v, rhs, t, nz, ny, nx, wz, wy, wx, omega, symmetric ? 1 : 0);
        SYNC();
        relax(v, rhs, t, nz, ny, nx, wz, wy, wx, omega, symmetric ? 0 : 1);
        SYNC();
    }
    const int points = table[0] * table[1] * table[2];
    for (int i = t; i < points; i += THREADS) u[i] = pool[table[3] + i];
}
