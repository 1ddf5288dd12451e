// What the kernels share that multiply in registers: their sizes, which lane has what of a tile, the
// product of one k, and the way to C. Included by them.

#include "matmul_blocks.cu"

#include "pack.cu"

// A warp's part of the tile is 8 * THREAD_M x 4 * THREAD_N.
#define TILE_M (8 * THREAD_M * WARPS_M)
#define TILE_N (4 * THREAD_N * WARPS_N)
#define THREADS (32 * WARPS_M * WARPS_N)

// Elements of k that neighbouring threads take where k is fast.
#define RUN_LENGTH 8
// One vector more than the tile: what a warp writes across k then meets no bank twice.
#define PITCH_A (TILE_M + WIDTH)
#define PITCH_B (TILE_N + WIDTH)
// A thread's first row and column, of 8 x 4 vectors. Lanes i and i^1 share rows, i and i^2 share
// columns: so pairs of vector reads of shared memory can merge.
#define LANE_M(lane) (((lane) >> 1 & 7) * WIDTH)
#define LANE_N(lane) (((lane) & 1 | (lane) >> 4 << 1) * WIDTH)

// Declares the thread's place, and its warp's in the tile.
#define FIND_THREAD \
    const int thread = (int)threadIdx.x; \
    const int lane = thread % 32; \
    const int warp = thread / 32; \
    const int warp_m = warp / WARPS_N * (8 * THREAD_M); \
    const int warp_n = warp % WARPS_N * (4 * THREAD_N);
// A thread's sums, and two sets of its factors: one is read from shared memory while the other is
// multiplied.
#define DECLARE_SUMS \
    REAL sum[THREAD_M][THREAD_N]; \
    REAL factors_a[2][THREAD_M]; \
    REAL factors_b[2][THREAD_N];
#define CLEAR_SUMS \
    UNROLLED(i, THREAD_M) UNROLLED(j, THREAD_N) sum[i][j] = 0;

// A thread's factors of one k, from two places in k-major shared tiles.
#define READ_FACTORS_AT(set, from_a, from_b) \
    UNROLLED_RANGE(i, 0, THREAD_M, WIDTH) \
        READ(factors_a[set] + i, (LOCAL const VECTOR *)((from_a) + i * 8)); \
    UNROLLED_RANGE(j, 0, THREAD_N, WIDTH) \
        READ(factors_b[set] + j, (LOCAL const VECTOR *)((from_b) + j * 4));
#define MULTIPLY_FACTORS(set) \
    UNROLLED(i, THREAD_M) UNROLLED(j, THREAD_N) sum[i][j] += factors_a[set][i] * factors_b[set][j];
// The products of the tiles in a buffer or stage, `reading`. TO_NEXT goes on to the next one: the last product
// covers the barrier and the first reading of that. READ_FACTORS(set, buffer, kk) is the kernel's as well.
#define MULTIPLY_TILES \
    UNROLLED(kk, TILE_K) { \
        if (kk + 1 < TILE_K) { \
            READ_FACTORS(kk + 1 & 1, reading, kk + 1); \
        } else { \
            TO_NEXT; \
            READ_FACTORS(kk + 1 & 1, reading, 0); \
        } \
        MULTIPLY_FACTORS(kk & 1); \
    }
#define STORE_SUMS \
    C += part * c_part + b * c_batch; \
    UNROLLED(i, THREAD_M) { \
        const index_t row = tile_m + warp_m + LANE_M(lane) + i / WIDTH * (8 * WIDTH) + i % WIDTH; \
        if (row < m) { \
            UNROLLED_RANGE(j, 0, THREAD_N, WIDTH) { \
                const index_t col = tile_n + warp_n + LANE_N(lane) + j * 4; \
                if (c_vector) { \
                    if (col < n) WRITE((GLOBAL VECTOR *)(C + row * c_row + col), sum[i] + j); \
                } else { \
                    UNROLLED(w, WIDTH) \
                        if (col + w < n) C[row * c_row + (col + w) * c_col] = sum[i][j + w]; \
                } \
            } \
        } \
    }
