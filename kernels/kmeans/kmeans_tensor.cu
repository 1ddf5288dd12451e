// The nearest of k centroids to each of n points in float64, as kmeans_tiles.cu finds them, by the tensor
// cores of CUDA devices of compute capability 8.0, 9.0 and 10.0: they round as other units do. CUDA C only.
//
// The product of matmul_tensor.cu, 16 columns of X in a step: a block has TILE_M points and takes the
// centroids TILE_N at a time, a warp WARP_M x WARP_N of that. Tiles of X and of the packed centroids are
// copied to shared memory asynchronously, STAGES - 1 of them ahead; after the last step of a tile each
// thread keeps for each of its rows the least distance so far and its centroid.
// Per point: 2 d k flops, d elements from memory, and of the L2 d k / TILE_N and TILE_N / TILE_M of the
// centroids.
//
// Which lane holds what: see multiply_float64 in ptx.cu.
//
// Preconditions. As in kmeans_tiles.cu; `packed` has steps of 16. Shared memory: STAGES * STAGE doubles,
// and WARP_M / 8 * THREADS of double and int.

#define TILE_K 16
#include "matmul_fragments.cu"
#include "kmeans_state.cu"

#define THREADS (32 * WARPS_M * WARPS_N)
#define ROWS (WARP_M / 8)

// Where an element lies: see matmul_tensor.cu. A row of the centroids' tile is 4 elements longer than it.
#define PITCH_C (TILE_N + 4)
#define SIZE_X (TILE_M * TILE_K)
#define STAGE (SIZE_X + TILE_K * PITCH_C)
#define SLOT_X (THREADS * PIECE / TILE_K)
#define SLOT_C (THREADS * 2 / TILE_N)

KERNEL(THREADS, RESIDENT)
assign_tensor(const double *__restrict__ X, const double *__restrict__ packed,
              const double *__restrict__ norms, int *__restrict__ labels, int *__restrict__ state,
              index_t n, index_t d, index_t tiles)
{
    extern __shared__ __align__(128) double shared[];
    if (state[STOPPED]) return;

    FIND_THREAD(thread / 32)
    const index_t tile_m = (index_t)blockIdx.x * TILE_M;
    const int columns = (int)d;
    const int steps = (columns + TILE_K - 1) / TILE_K;
    const int total = steps * (int)tiles;
    double *const least = shared + STAGES * STAGE;
    int *const nearest = (int *)(least + ROWS * THREADS);

    // A thread's pieces of X are SLOT_X rows apart, those of the centroids SLOT_C columns of X.
    const int x_k = thread % (TILE_K / PIECE) * PIECE, x_m = thread / (TILE_K / PIECE);
    const int c_k = thread / (TILE_N / 2), c_n = thread % (TILE_N / 2) * 2;
    const int left = (int)(n - tile_m < TILE_M ? n - tile_m : TILE_M) - x_m;
    const double *from_x = X + (tile_m + x_m) * d + x_k;
    const double *from_c = packed + 2 * thread;
    const unsigned int base = shared_address(shared);
    const unsigned int to_x = base + 8 * PLACE_KFAST(x_m, x_k);
    const unsigned int to_c = base + 8 * (SIZE_X + c_k * PITCH_C + c_n);
    int at_k = 0;

    // A step's tiles, and on to the next ones: after the last columns of X come the first ones again.
#define COPY_TILES(stage) \
    { \
        UNROLLED(slot, TILE_M / SLOT_X) \
            copy_piece(to_x + 8 * (STAGE * (stage) + slot * SLOT_X * TILE_K), \
                       from_x + at_k + slot * SLOT_X * d, PIECE, \
                       slot * SLOT_X < left && at_k + x_k < columns); \
        UNROLLED(slot, TILE_K / SLOT_C) \
            copy_piece(to_c + 8 * (STAGE * (stage) + slot * SLOT_C * PITCH_C), \
                       from_c + slot * 2 * THREADS, 2, true); \
        from_c += TILE_K * TILE_N; \
        at_k = at_k + TILE_K < columns ? at_k + TILE_K : 0; \
    }

    UNROLLED(stage, STAGES - 1) {
        if (stage < total) COPY_TILES(stage);
        end_of_copies();
    }
    CLEAR_NEAREST(ROWS)

    DECLARE_SUMS
    const int read_x = PLACE_KFAST(warp_m + g, t);
    const int read_c = SIZE_X + t * PITCH_C + warp_n + g;
#define AT_A(q) (read_x ^ (q) * 4)
#define AT_B(q) (read_c + (q) * 4 * PITCH_C)
#define EIGHT_A (8 * TILE_K)
#define EIGHT_B 8

    wait_for_copies();
    __syncthreads();
    int reading = 0, writing = STAGES - 1, to_come = total - (STAGES - 1);
    READ(0, 0, 0);
    NO_UNROLL
    for (int tile = 0; tile < (int)tiles; ++tile) {
        CLEAR_SUMS;
        NO_UNROLL
        for (int step = 0; step < steps; ++step) {
            // The stage multiplied before the last barrier is free.
            if (to_come > 0) COPY_TILES(writing);
            --to_come;
            end_of_copies();
            writing = reading;
            MULTIPLY_STAGE
        }

        const int column = tile * TILE_N + warp_n + 2 * t;
        UNROLLED(i, ROWS) {
            double smallest = least[i * THREADS + thread];
            int whose = nearest[i * THREADS + thread];
            UNROLLED(j, WARP_N / 8) UNROLLED(c, 2) {
                const double distance = norms[column + 8 * j + c] - 2 * sum[i / 2][j][i % 2 * 2 + c];
                KEEP_NEAREST(smallest, whose, distance, column + 8 * j + c)
            }
            least[i * THREADS + thread] = smallest;
            nearest[i * THREADS + thread] = whose;
        }
    }

#define FIRST_OF_ROW(r) ((r) % WARP_M / 8 * THREADS + (r) / WARP_M * WARPS_N * 32 + (r) % 8 * 4)
#define OF_ROW(other) ((other) / 4 * 32 + (other) % 4)
#include "kmeans_nearest.cu"
}
