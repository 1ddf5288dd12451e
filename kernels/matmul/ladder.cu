// C = A B, kernel after kernel: naive first, one idea each. A is m x k, B k x n, C m x n, all by rows; 2 m n k flops.
// ladder.py has a table of the steps: their ideas, blocks, macros and sources.
//
// A block is BX x BY threads, BX along a row of C; blocks go along the rows of C, then down. A thread makes EACH
// elements of C. Of the kernels with shared memory those of STEP alone are compiled.

#define MATRICES                                                                                            \
    GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT B, GLOBAL REAL *RESTRICT C, index_t m,       \
        index_t n, index_t k

// Where a block that makes `wide` columns and `high` rows of C begins.
#define FIND_BLOCK(wide, high)                                                                              \
    const index_t across = (n + (wide) - 1) / (wide);                                                       \
    const index_t top = blockIdx.x / across * (high), left = blockIdx.x % across * (wide);

// A row of A times a column of B.
DEVICE REAL dot(GLOBAL const REAL *a, GLOBAL const REAL *b, index_t n, index_t k)
{
    REAL sum = 0;
    for (index_t l = 0; l < k; ++l) sum += a[l] * b[l * n];
    return sum;
}

// -- 1. sequential: one thread does everything, as a CPU would --------------------------------------------------------
KERNEL(1, 1)
matmul_sequential(MATRICES)
{
    for (index_t i = 0; i < m; ++i)
        for (index_t j = 0; j < n; ++j) C[i * n + j] = dot(A + i * k, B + j, n, k);
}

// -- 2. naive: a thread for each element of C -------------------------------------------------------------------------
// The threads of a warp lie along a row of C: they read neighbouring elements of B in one go, and one element of A for
// all. uncoalesced (SWAPPED): they lie along a column of C, and read and write elements that are a row apart.
// The patterns that White rejects: a thread makes NX x NY elements one after another. grouped: they are neighbours.
// row, hybrid-row and hybrid-column: they are as far apart as there are threads; DOWN: columns first.
#define WIDE (SWAPPED ? BY : BX)
#define HIGH (SWAPPED ? BX : BY)
KERNEL(BX *BY, 1)
matmul_naive(MATRICES)
{
    const index_t across = (n + NX * WIDE - 1) / (NX * WIDE), down = (m + NY * HIGH - 1) / (NY * HIGH);
    const int along = (int)threadIdx.x % BX, other = (int)threadIdx.x / BX;
    const index_t x = blockIdx.x % across * WIDE + (SWAPPED ? other : along);
    const index_t y = blockIdx.x / across * HIGH + (SWAPPED ? along : other);
    NO_UNROLL
    for (int e = 0; e < NX * NY; ++e) {
        const int ex = DOWN ? e / NY : e % NX, ey = DOWN ? e % NY : e / NX;
        const index_t i = GROUPED ? y * NY + ey : y + ey * down * HIGH;
        const index_t j = GROUPED ? x * NX + ex : x + ex * across * WIDE;
        if (i < m && j < n) C[i * n + j] = dot(A + i * k, B + j, n, k);
    }
}

// -- 3 and 4. rows2, rows4: a thread has EACH elements of a column of C -----------------------------------------------
// An element of B serves EACH products: EACH + 1 loads do what took 2 EACH. Rows beyond the last one repeat it.
KERNEL(BX *BY, 1)
matmul_rows(MATRICES)
{
    FIND_BLOCK(BX, EACH *BY)
    const index_t i = top + threadIdx.x / BX * EACH, j = left + threadIdx.x % BX;
    if (i >= m || j >= n) return;
    GLOBAL const REAL *rows[EACH];
    REAL sums[EACH];
    UNROLLED(r, EACH) {
        rows[r] = A + (i + r < m ? i + r : m - 1) * k;
        sums[r] = 0;
    }
    for (index_t l = 0; l < k; ++l) {
        const REAL b = B[l * n + j];
        UNROLLED(r, EACH) sums[r] += rows[r][l] * b;
    }
    UNROLLED(r, EACH)
        if (i + r < m) C[(i + r) * n + j] = sums[r];
}

// -- 5. shared: tiles of A and of B in shared memory ------------------------------------------------------------------
// White's listing 4.8: a thread has one element of C. The block brings a tile of A, BY x BX, and one of B, BX x BX, and
// multiplies them there: an element of A is asked of memory once for BX columns of C, one of B once for BY rows. Two
// barriers a step: the tiles are there; they are no longer needed.
// tiles2, tiles4: TILES tiles of B for each one of A, a thread has an element of C in each. shared4: EACH rows.
#if STEP == 5
KERNEL(BX *BY, 1)
matmul_shared(MATRICES)
{
    SHARED REAL tile_a[ROWS * BY][BX];
    SHARED REAL tile_b[BX][TILES * BX];
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;
    FIND_BLOCK(TILES *BX, ROWS *BY)
    REAL sums[ROWS][TILES];
    UNROLLED(e, ROWS * TILES) sums[e / TILES][e % TILES] = 0;
    for (index_t first = 0; first < k; first += BX) {
        for (int r = y; r < ROWS * BY; r += BY)
            tile_a[r][x] = top + r < m && first + x < k ? A[(top + r) * k + first + x] : (REAL)0;
        for (int l = y; l < BX; l += BY) {
            for (int c = x; c < TILES * BX; c += BX)
                tile_b[l][c] = first + l < k && left + c < n ? B[(first + l) * n + left + c] : (REAL)0;
        }
        __syncthreads();
        UNROLLED(l, BX) {
            UNROLLED(e, ROWS * TILES)
                sums[e / TILES][e % TILES] += tile_a[y * ROWS + e / TILES][l] * tile_b[l][e % TILES * BX + x];
        }
        __syncthreads();
    }
    UNROLLED(e, ROWS * TILES) {
        const index_t i = top + y * ROWS + e / TILES, j = left + e % TILES * BX + x;
        if (i < m && j < n) C[i * n + j] = sums[e / TILES][e % TILES];
    }
}
#endif

// -- 6 to 9. column, rotated, unrolled, tuned: only A in shared memory ------------------------------------------------
// White's listing 4.10: BX BY threads in one line, each with EACH elements of its own column of C. An element of B
// comes from memory to the one thread that needs it, once; a tile of A, EACH x BX, is the same for all threads, and
// shared memory gives an element of it to a whole warp. Loads of B overlap with sums.
// rotated (listing 4.12): blocks begin at different tiles of k, so that not all of them ask the same partition of
// memory at once. The T10 had 8 of 256 bytes in turn; today addresses are hashed.
// unrolled, tuned (listing 4.17): a pointer moves along B in place of products of indices, an element of B is loaded
// once and kept, whole tiles have a loop of their own, PIECE columns at a time.
#if STEP >= 6
#define PARTITIONS (STEP > 6 ? 8 : 1)
#define PIECE (BX < 32 / (int)sizeof(REAL) ? BX : 32 / (int)sizeof(REAL))
KERNEL(BX *BY, 1)
matmul_column(MATRICES)
{
    SHARED REAL tile[EACH][BX] __attribute__((aligned(STEP < 8 ? sizeof(REAL) : 16)));
    const int thread = (int)threadIdx.x;
    FIND_BLOCK(BX *BY, EACH)
    const index_t j = left + thread < n ? left + thread : n - 1, tiles = (k + BX - 1) / BX;
    REAL sums[EACH];
    UNROLLED(r, EACH) sums[r] = 0;
    index_t at = blockIdx.x % PARTITIONS * 256 / (index_t)sizeof(REAL) / BX % tiles;
    for (index_t step = 0; step < tiles; ++step) {
        const index_t first = at * BX;
        const int length = k - first < BX ? (int)(k - first) : BX;
        for (int e = thread; e < EACH * BX; e += BX * BY)
            tile[e / BX][e % BX] =
                top + e / BX < m && e % BX < length ? A[(top + e / BX) * k + first + e % BX] : (REAL)0;
        __syncthreads();
#if STEP < 8
        for (int l = 0; l < length; ++l)
            for (int r = 0; r < EACH; ++r) sums[r] += tile[r][l] * B[(first + l) * n + j];
#else
        GLOBAL const REAL *b = B + first * n + j;
        int l = 0;
        NO_UNROLL
        for (; l + PIECE <= length; l += PIECE) {
            UNROLL for (int u = 0; u < PIECE; ++u, b += n) {
                const REAL one = *b;
                UNROLLED(r, EACH) sums[r] += tile[r][l + u] * one;
            }
        }
        NO_UNROLL
        for (; l < length; ++l, b += n) {
            const REAL one = *b;
            UNROLLED(r, EACH) sums[r] += tile[r][l] * one;
        }
#endif
        __syncthreads();
        at = at + 1 < tiles ? at + 1 : 0;
    }
    UNROLLED(r, EACH)
        if (top + r < m && left + thread < n) C[(top + r) * n + j] = sums[r];
}
#endif
