// Discrete sine transforms (DST-I) through a real Fourier transform of the odd extension, for solving
// -div grad u = f on a box directly; between the kernels runs a library's FFT, in place.
//
// A row of n values x becomes a row of 2 (n + 2) reals, of which 2 (n + 1) are
//     0, x_1 ... x_n, 0, -x_n ... -x_1.
// Its Fourier coefficient k is -2 i S_k, with S_k = sum over j of x_j sin(pi j k / (n + 1)). The
// coefficients, n + 2 complex numbers, lie where the row was.
// Rows are taken in chunks that stay in the cache: first is the chunk's first row of all.

#define TILE 32
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
// transform, transposed, so that the next axis becomes the contiguous one. out is (n, all). If `more`,
// that is added to what out holds.
// A block moves a tile of TILE x TILE through shared memory, so that both sides are coalesced.
KERNEL(THREADS, 1)
take_transposed(GLOBAL const REAL *RESTRICT coefficients, GLOBAL REAL *RESTRICT out, index_t first,
                index_t rows, index_t n, index_t all, double scale, index_t more)
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
        if (row0 + lane < rows && k0 + k < n) {
            const index_t at = (k0 + k) * all + first + row0 + lane;
            out[at] = (more ? out[at] : 0) + (REAL)scale * tile[lane][k];
        }
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
