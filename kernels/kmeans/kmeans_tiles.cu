// The nearest of k centroids to each of n points: labels[i] = argmin over c of |c|^2 - 2 x_i.c, the lowest
// c of several. The distances stay in registers.
//
// The product of matmul.cu: a block has TILE_M points and takes the centroids TILE_N at a time, d in steps
// of TILE_K, by two buffers in shared memory. After the last step of a tile each thread has THREAD_M x
// THREAD_N scalar products, and keeps for each of its rows the least distance so far and its centroid;
// in shared memory, for registers are full. At the end threads that share a row compare.
// X is (n, d), contiguous. `packed` has the centroids as tiles of (steps * TILE_K, TILE_N), with zeros where
// there is no column or centroid; norms[c] = |c|^2, infinite where there is none.
// Per point: 2 d k flops, d elements from memory and TILE_N / TILE_M of the centroids from the L2.
//
// Preconditions. ALIGNED = 1: d and the address of X are multiples of WIDTH elements. `packed` always is.

#define TILE_K 8

#include "matmul_registers.cu"
#include "matmul_buffers.cu"
#include "kmeans_state.cu"

// Threads that have a row's TILE_K elements; a thread's rows are APART from each other.
#define RUN (TILE_K / PIECE)
#define APART (THREADS / RUN)
#define LOADS_X (TILE_M / APART)
#define LOADS_C (TILE_N * TILE_K / (WIDTH * THREADS))

#define READ_FACTORS(set, buffer, kk) \
    READ_FACTORS_AT(set, read_x + (buffer) * (TILE_K * PITCH_A) + (kk) * PITCH_A, \
                    read_c + (buffer) * (TILE_K * TILE_N) + (kk) * TILE_N)

KERNEL(THREADS, RESIDENT)
assign_tiles(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT packed,
             GLOBAL const REAL *RESTRICT norms, GLOBAL int *RESTRICT labels,
             GLOBAL int *RESTRICT state, index_t all, index_t d, index_t tiles LIST)
{
    SHARED VECTOR shared_x[2 * TILE_K * PITCH_A / WIDTH];
    SHARED VECTOR shared_c[2 * TILE_K * TILE_N / WIDTH];
    SHARED REAL least[THREAD_M * THREADS];
    SHARED int nearest[THREAD_M * THREADS];
    if (state[STOPPED]) return;
    const index_t n = HOW_MANY(all), tile_m = (index_t)blockIdx.x * TILE_M;
    FIND_THREAD
    const int steps = (int)((d + TILE_K - 1) / TILE_K);

    // A thread's first piece of X, and how many rows are left from it on.
    const int x_k = thread % RUN * PIECE;
    const int x_m = thread / RUN;
    const int left = (int)(n - tile_m < TILE_M ? n - tile_m : TILE_M) - x_m;
#if LISTED
    if (tile_m >= n) return;
    GLOBAL const REAL *rows_of_x[LOADS_X];
    UNROLLED(s, LOADS_X) rows_of_x[s] = X + (s * APART < left ? ROW(tile_m + x_m + s * APART) * d : 0) + x_k;
#define ROW_OF_X(s) rows_of_x[s]
#else
    X += (tile_m + x_m) * d + x_k;
#define ROW_OF_X(s) (X + (s) * APART * d)
#endif
    LOCAL REAL *const to_x = (LOCAL REAL *)shared_x + x_k * PITCH_A + x_m;
    GLOBAL const VECTOR *from_c = (GLOBAL const VECTOR *)packed + thread;

    LOADED next_x[LOADS_X];
    VECTOR next_c[LOADS_C];
    UNROLLED(s, LOADS_X) {
        CLEAR_PIECE(next_x[s]);
        if (s * APART < left && x_k < d) next_x[s] = LOAD(ROW_OF_X(s));
    }
    UNROLLED(s, LOADS_C) next_c[s] = from_c[s * THREADS];
    CLEAR_NEAREST(THREAD_M)

    DECLARE_SUMS
    LOCAL const REAL *const read_x = (LOCAL const REAL *)shared_x + warp_m + LANE_M(lane);
    LOCAL const REAL *const read_c = (LOCAL const REAL *)shared_c + warp_n + LANE_N(lane);

#define STORE_NEXT(buffer) \
    UNROLLED(s, LOADS_X) store_piece(to_x + (buffer) * (TILE_K * PITCH_A) + s * APART, PITCH_A, 1, next_x[s]); \
    UNROLLED(s, LOADS_C) \
        shared_c[(buffer) * (TILE_K * TILE_N / WIDTH) + s * THREADS + thread] = next_c[s]

    STORE_NEXT(0);
    __syncthreads();
    READ_FACTORS(0, 0, 0);
    int reading = 0;
    NO_UNROLL
    for (int tile = 0; tile < (int)tiles; ++tile) {
        CLEAR_SUMS
        NO_UNROLL
        for (int step = 0; step < steps; ++step) {
            // The tile's last step loads the first one of the next tile. After the very last nothing
            // is loaded, by the bounds alone: a branch would let the compiler move the loads.
            const int next = step + 1 < steps ? (step + 1) * TILE_K : 0;
            const int more = step + 1 < steps || tile + 1 < (int)tiles;
            const int rows = more && next + x_k < d ? left : 0;
            UNROLLED(s, LOADS_X)
                if (s * APART < rows) next_x[s] = LOAD(ROW_OF_X(s) + next);
            from_c += TILE_K * TILE_N / WIDTH;
            UNROLLED(s, LOADS_C)
                if (more) next_c[s] = from_c[s * THREADS];

            MULTIPLY_TILES
        }
        // The least distance of each of a thread's rows.
        REAL smallest[THREAD_M];
        int whose[THREAD_M];
        const int column = tile * TILE_N + warp_n + LANE_N(lane);
        UNROLLED(i, THREAD_M) {
            smallest[i] = least[i * THREADS + thread];
            whose[i] = nearest[i * THREADS + thread];
        }
        UNROLLED_RANGE(j, 0, THREAD_N, WIDTH) {
            REAL norm[WIDTH];
            READ(norm, (GLOBAL const VECTOR *)(norms + column + j * 4));
            UNROLLED(w, WIDTH) UNROLLED(i, THREAD_M) {
                const REAL distance = norm[w] - 2 * sum[i][j + w];
                KEEP_NEAREST(smallest[i], whose[i], distance, column + j * 4 + w)
            }
        }
        UNROLLED(i, THREAD_M) {
            least[i * THREADS + thread] = smallest[i];
            nearest[i * THREADS + thread] = whose[i];
        }
    }
#define IN_WARP(r) ((r) % (8 * THREAD_M))
#define FIRST_OF_ROW(r) \
    ((IN_WARP(r) / (8 * WIDTH) * WIDTH + IN_WARP(r) % WIDTH) * THREADS + (r) / (8 * THREAD_M) * WARPS_N * 32 \
     + IN_WARP(r) % (8 * WIDTH) / WIDTH * 2)
#define OF_ROW(other) ((other) / 4 * 32 + ((other) & 1) + ((other) >> 1 & 1) * 16)
#include "kmeans_nearest.cu"
}
