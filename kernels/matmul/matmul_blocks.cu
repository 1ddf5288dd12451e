// What a block of the matmul kernels has to do, and what all of them are compiled with. Included by them;
// sizes of tiles may be macros that follow.

// What follows the operands among a kernel's arguments.
#define SIZES \
    index_t m, index_t n, index_t k, index_t parts, index_t chunk, index_t a_batch, index_t a_row, \
    index_t a_col, index_t b_batch, index_t b_row, index_t b_col, index_t c_part, index_t c_batch, \
    index_t c_row, index_t c_col, index_t c_vector

// Blocks in flight cover a band of this many tiles in height, so that they share what the L2 holds.
#define BAND 16

// Declares the block's part of k and matrix b of the batch; its tile's first row and column, tile_m and
// tile_n; where its k begins, in how many steps of TILE_K it is taken, and how much of it the first step
// has: the one that may be short comes first, so that no later load needs a test.
#define FIND_BLOCK \
    const unsigned int tiles_m = (unsigned int)((m + TILE_M - 1) / TILE_M); \
    const unsigned int tiles_n = (unsigned int)((n + TILE_N - 1) / TILE_N); \
    const unsigned int tile = blockIdx.x % (tiles_m * tiles_n); \
    const unsigned int part = blockIdx.x / (tiles_m * tiles_n) % (unsigned int)parts; \
    const unsigned int b = blockIdx.x / (tiles_m * tiles_n) / (unsigned int)parts; \
    const unsigned int band = tile / (BAND * tiles_n) * BAND; \
    const unsigned int height = tiles_m - band < BAND ? tiles_m - band : BAND; \
    const unsigned int in_band = tile % (BAND * tiles_n); \
    const index_t tile_m = (index_t)(band + in_band % height) * TILE_M; \
    const index_t tile_n = (index_t)(in_band / height) * TILE_N; \
    const index_t begin = part * chunk; \
    const index_t length = begin + chunk < k ? chunk : k - begin; \
    const int steps = (int)((length + TILE_K - 1) / TILE_K); \
    const int first = (int)(length - (index_t)(steps - 1) * TILE_K);

#define A_K_STRIDE (ALIGNED && A_K ? 1 : a_col)
#define A_M_STRIDE (ALIGNED && !A_K ? 1 : a_row)
#define B_K_STRIDE (ALIGNED && B_K ? 1 : b_row)
#define B_N_STRIDE (ALIGNED && !B_K ? 1 : b_col)
// A thread's first piece of each operand, by FIRST_K and FIRST_OUTER (fast, piece, tile); how many
// rows and columns are left from it on; and to that piece.
#define GO_TO_FIRST(piece_a, piece_b) \
    const int a_k = FIRST_K(A_K, piece_a, TILE_M), a_m = FIRST_OUTER(A_K, piece_a, TILE_M); \
    const int b_k = FIRST_K(B_K, piece_b, TILE_N), b_n = FIRST_OUTER(B_K, piece_b, TILE_N); \
    const int left_m = (int)(m - tile_m < TILE_M ? m - tile_m : TILE_M) - a_m; \
    const int left_n = (int)(n - tile_n < TILE_N ? n - tile_n : TILE_N) - b_n; \
    A += b * a_batch + (begin + a_k) * A_K_STRIDE + (tile_m + a_m) * A_M_STRIDE; \
    B += b * b_batch + (begin + b_k) * B_K_STRIDE + (tile_n + b_n) * B_N_STRIDE;
// On to the next tiles, after one of this depth.
#define GO_ON(depth) \
    A += (depth) * A_K_STRIDE; \
    B += (depth) * B_K_STRIDE;

// Of kernels that copy to STAGES stages by COPY_TILES(stage, depth): what goes before the steps,
// and what each begins with. The stage read before the last barrier is free.
#define BEGIN_COPIES \
    COPY_TILES(0, first); \
    end_of_copies(); \
    UNROLLED_RANGE(stage, 1, STAGES - 1, 1) { \
        if (stage < steps) COPY_TILES(stage, TILE_K); \
        end_of_copies(); \
    }
#define COPY_NEXT \
    if (step + STAGES - 1 < steps) COPY_TILES(writing, TILE_K); \
    end_of_copies(); \
    writing = reading;
