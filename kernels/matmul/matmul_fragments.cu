// What the kernels share that multiply doubles by tensor cores: reading a lane's factors of 8 of k from a stage of
// the shared tiles, and the product. Which lane has what: see multiply_float64 in ptx.cu. Included by them; TILE_K and
// `shared` are the kernel's, and so are AT_A(q) and AT_B(q), where the lane's element of the quarter q of 16 of k lies,
// and EIGHT_A and EIGHT_B, how far 8 rows or columns are apart.

#define REAL double
#include "ptx.cu"

#define TILE_M (WARP_M * WARPS_M)
#define TILE_N (WARP_N * WARPS_N)
#define PIECE (ALIGNED ? 2 : 1)  // elements that are copied at once
// Where an element lies with k fast: a row begins at bank 0, and its quarters change places from row to row.
#define PLACE_KFAST(outer, k) ((outer) * TILE_K + ((k) ^ ((outer) & 3) << 2))

// Declares the thread's place; its slice, a group of warps that have the whole tile; and the place there of its warp,
// which is that number.
#define FIND_THREAD(number) \
    const int thread = (int)threadIdx.x; \
    const int lane = thread % 32; \
    const int g = lane >> 2; \
    const int t = lane & 3; \
    const int slice = thread / (32 * WARPS_M * WARPS_N); \
    const int warp = number; \
    const int warp_m = warp / WARPS_N * WARP_M; \
    const int warp_n = warp % WARPS_N * WARP_N;
// A thread's sums, and two sets of its factors: one is read from shared memory while the other is multiplied.
#define DECLARE_SUMS \
    double sum[WARP_M / 16][WARP_N / 8][4]; \
    double fa[2][WARP_M / 16][4]; \
    double fb[2][WARP_N / 8][2];
#define READ(set, stage, kk) \
    { \
        const double *const from = shared + (stage) * STAGE; \
        UNROLLED(h, 2) { \
            UNROLLED(i, WARP_M / 8) fa[set][i / 2][2 * h + i % 2] = from[AT_A(2 * (kk) + h) + EIGHT_A * i]; \
            UNROLLED(j, WARP_N / 8) fb[set][j][h] = from[AT_B(2 * (kk) + h) + EIGHT_B * j]; \
        } \
    }
#define MULTIPLY(set) \
    UNROLLED(i, WARP_M / 16) UNROLLED(j, WARP_N / 8) multiply_float64(sum[i][j], fa[set][i], fb[set][j]);
#define CLEAR_SUMS \
    UNROLLED(i, WARP_M / 16) UNROLLED(j, WARP_N / 8) UNROLLED(c, 4) sum[i][j][c] = 0.0;
// The products of a stage, and the first reading of the next one.
#define MULTIPLY_STAGE \
    READ(1, reading, 1); \
    MULTIPLY(0); \
    reading = reading + 1 == STAGES ? 0 : reading + 1; \
    wait_for_copies(); \
    __syncthreads(); \
    READ(0, reading, 0); \
    MULTIPLY(1);
