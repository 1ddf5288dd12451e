// Discrete sine transforms (DST-I) through a real Fourier transform of the odd extension, for solving
// -div grad u = f on a box directly; between the kernels runs a library's FFT, in place.
//
// A row of n values x becomes a row of 2 (n + 2) reals, of which 2 (n + 1) are
//     0, x_1 ... x_n, 0, -x_n ... -x_1.
// Its Fourier coefficient k is -2 i S_k, with S_k = sum over j of x_j sin(pi j k / (n + 1)). The
// coefficients, n + 2 complex numbers, lie where the row was.
// Rows are taken in chunks that stay in the cache: first is the chunk's first row of all.

#define TILE 32
#define SUMS 2
#include "block_sums.cu"
#define TILE_ROWS (THREADS / TILE)

// extended[r] = odd extension of x[first + r], for r < rows. x is (all rows, n), contiguous.
// Per value: 1 read twice, 2 written.
KERNEL(THREADS, 1)
extend_odd(GLOBAL const REAL *RESTRICT x, GLOBAL REAL *RESTRICT extended, index_t first, index_t rows,
           index_t n)
{
    const index_t length = 2 * (n + 2);
    const index_t total = rows * length;
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= total) return;
    const index_t row = i / length;
    const index_t j = i - row * length;
    GLOBAL const REAL *from = x + (first + row) * n;
    REAL value = 0;
    if (j >= 1 && j <= n) value = from[j - 1];
    if (j >= n + 2 && j <= 2 * n + 1) value = -from[2 * n + 1 - j];
    extended[i] = value;
}

// out[k - 1, first + r] = scale * imaginary part of coefficient k of row r, for k = 1 ... n: the sine
// transform, transposed, so that the next axis becomes the contiguous one. out is (n, all).
// A block moves a tile of TILE x TILE through shared memory, so that both sides are coalesced.
KERNEL(THREADS, 1)
take_transposed(GLOBAL const REAL *RESTRICT coefficients, GLOBAL REAL *RESTRICT out, index_t first,
                index_t rows, index_t n, index_t all, double scale)
{
    SHARED REAL tile[TILE][TILE + 1];
    const index_t across = (n + TILE - 1) / TILE;
    const index_t row0 = (index_t)(blockIdx.x / across) * TILE;
    const index_t k0 = (index_t)(blockIdx.x % across) * TILE;
    const int lane = (int)(threadIdx.x % TILE);
    const int line = (int)(threadIdx.x / TILE);
    for (int r = line; r < TILE; r += TILE_ROWS) {
        if (row0 + r < rows && k0 + lane < n)
            tile[r][lane] = coefficients[(row0 + r) * 2 * (n + 2) + 2 * (k0 + lane + 1) + 1];
    }
    __syncthreads();
    for (int k = line; k < TILE; k += TILE_ROWS) {
        if (row0 + lane < rows && k0 + k < n)
            out[(k0 + k) * all + first + row0 + lane] = (REAL)scale * tile[lane][k];
    }
}

// v[z, y, x] /= eigenvalues of the three axes added up. 2-D: nz = 1 and its eigenvalue 0.
KERNEL(THREADS, 1)
divide_by_eigenvalues(GLOBAL REAL *RESTRICT v, GLOBAL const REAL *RESTRICT eigenvalues, index_t nz,
                      index_t ny, index_t nx)
{
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= nz * ny * nx) return;
    const index_t x = i % nx;
    const index_t y = i / nx % ny;
    const index_t z = i / nx / ny;
    v[i] /= eigenvalues[z] + eigenvalues[nz + y] + eigenvalues[nz + ny + x];
}

// r = f - A u, and the sums of r^2 and of f^2 of each block. The weights are 1 / spacing^2 by axis.
// Blocks walk over the grid with a fixed stride, so that the order of the additions depends on their
// number alone. Per point: 2 reads (neighbours from the cache), 1 write.
KERNEL(THREADS, 1)
residual_sums(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, GLOBAL REAL *RESTRICT r,
              GLOBAL double *RESTRICT sums, index_t nz, index_t ny, index_t nx, double wz, double wy,
              double wx, index_t blocks)
{
    SHARED double scratch[SUMS * THREADS];
    double sums_of_thread[SUMS] = {0, 0};
    const index_t points = nz * ny * nx;
    const index_t plane = ny * nx;
    const REAL az = (REAL)wz, ay = (REAL)wy, ax = (REAL)wx;
    for (index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x; i < points; i += blocks * THREADS) {
        const index_t x = i % nx;
        const index_t y = i / nx % ny;
        const index_t z = i / plane;
        const REAL here = u[i];
        const REAL west = x > 0 ? u[i - 1] : 0, east = x + 1 < nx ? u[i + 1] : 0;
        const REAL north = y > 0 ? u[i - nx] : 0, south = y + 1 < ny ? u[i + nx] : 0;
        const REAL above = z > 0 ? u[i - plane] : 0, below = z + 1 < nz ? u[i + plane] : 0;
        const REAL rhs = f[i];
        const REAL value = rhs - ax * (2 * here - west - east) - ay * (2 * here - north - south) -
                           az * (2 * here - above - below);
        r[i] = value;
        sums_of_thread[0] += (double)value * value;
        sums_of_thread[1] += (double)rhs * rhs;
    }
    write_block_sums(sums_of_thread, scratch, sums, (int)threadIdx.x, blockIdx.x);
}

// u += e.
KERNEL(THREADS, 1)
add_to(GLOBAL REAL *RESTRICT u, GLOBAL const REAL *RESTRICT e, index_t n)
{
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i < n) u[i] += e[i];
}
