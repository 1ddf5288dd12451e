// The nearest of k centroids to each of n points, as kmeans_tiles.cu finds them, for CUDA devices of compute
// capability 8.0 or more and points of so few columns that a block's points fit shared memory whole.
//
// A block loads its TILE_M points once, k-major, for all centroids. Only tiles of the centroids are on
// their way while others are multiplied, STAGES - 1 of them ahead; packed as they are, they are copied
// by 16 bytes and lie as they are read.
// Per point: 2 d k flops, d elements from memory and TILE_N / TILE_M of the centroids from the L2.
//
// Preconditions. As in kmeans_tiles.cu. Shared memory: TILE_K * steps * PITCH_A + STAGES * TILE_K * TILE_N
// elements, and THREAD_M * THREADS of REAL and int.

#include "matmul_registers.cu"
#include "kmeans_state.cu"
#include "ptx.cu"

#if ALIGNED
#define PIECE WIDTH
#else
#define PIECE 1
#endif
#define STAGE (TILE_K * TILE_N)
#define COPIES (STAGE / (WIDTH * THREADS))
#define READ_FACTORS(set, stage, kk) \
    READ_FACTORS_AT(set, read_x + (kk) * PITCH_A, read_c + (stage) * STAGE + (kk) * TILE_N)
#define TO_NEXT \
    reading = reading + 1 == STAGES ? 0 : reading + 1; \
    read_x += (step + 1 < steps ? TILE_K : TILE_K - steps * TILE_K) * PITCH_A; \
    wait_for_copies(); \
    __syncthreads()
#define COPY_CENTROIDS(stage) \
    UNROLL \
    for (int s = 0; s < COPIES; ++s) \
        copy_piece(to_c + (int)sizeof(REAL) * ((stage) * STAGE + s * WIDTH * THREADS), \
                   from_c + s * WIDTH * THREADS, WIDTH, true); \
    from_c += STAGE

KERNEL(THREADS, RESIDENT)
assign_resident(const REAL *__restrict__ X, const REAL *__restrict__ packed,
                const REAL *__restrict__ norms, int *__restrict__ labels, int *__restrict__ state,
                index_t all, index_t d, index_t tiles LIST)
{
    extern __shared__ __align__(16) REAL shared[];
    if (state[STOPPED]) return;
    const index_t n = HOW_MANY(all), tile_m = (index_t)blockIdx.x * TILE_M;
    if (LISTED && tile_m >= n) return;
    FIND_THREAD
    const int columns = (int)d;
    const int steps = (columns + TILE_K - 1) / TILE_K;
    const int total = steps * (int)tiles;
    REAL *const shared_x = shared;
    REAL *const shared_c = shared_x + steps * TILE_K * PITCH_A;
    REAL *const least = shared_c + STAGES * STAGE;
    int *const nearest = (int *)(least + THREAD_M * THREADS);

    const REAL *from_c = packed + thread * WIDTH;
    const unsigned int to_c = shared_address(shared_c + thread * WIDTH);
    UNROLL
    for (int stage = 0; stage < STAGES - 1; ++stage) {
        if (stage < total) {
            COPY_CENTROIDS(stage);
        }
        end_of_copies();
    }

    // RUN_LENGTH elements of a row by neighbouring threads: full sectors, and few conflicts in storing.
    const int run = RUN_LENGTH / PIECE;
    const int rows = n - tile_m < TILE_M ? (int)(n - tile_m) : TILE_M;
    for (int column = thread % run * PIECE; column < steps * TILE_K; column += RUN_LENGTH) {
        UNROLL
        for (int slot = 0; slot < (TILE_M * RUN_LENGTH - 1) / (PIECE * THREADS) + 1; ++slot) {
            const int row = thread / run + slot * (THREADS / run);
            if (row >= TILE_M) break;
            REAL elements[PIECE] = {0};
            if (row < rows && column < columns) {
                const REAL *const from = X + ROW(tile_m + row) * d + column;
#if ALIGNED
                const VECTOR v = *(const VECTOR *)from;
                UNPACK(elements, v);
#else
                elements[0] = *from;
#endif
            }
            UNROLL
            for (int w = 0; w < PIECE; ++w) shared_x[(column + w) * PITCH_A + row] = elements[w];
        }
    }
    CLEAR_NEAREST(THREAD_M)

    DECLARE_SUMS
    const REAL *read_x = shared_x + warp_m + LANE_M(lane);
    const REAL *const read_c = shared_c + warp_n + LANE_N(lane);

    wait_for_copies();
    __syncthreads();
    int reading = 0, writing = STAGES - 1, left = total - (STAGES - 1);
    READ_FACTORS(0, 0, 0);
    NO_UNROLL
    for (int tile = 0; tile < (int)tiles; ++tile) {
        CLEAR_SUMS
        NO_UNROLL
        for (int step = 0; step < steps; ++step) {
            // The stage read before the last barrier is free.
            if (left > 0) {
                COPY_CENTROIDS(writing);
            }
            --left;
            end_of_copies();
            writing = reading;
            MULTIPLY_TILES
        }
#include "kmeans_least.cu"
    }
#include "kmeans_nearest.cu"
}
