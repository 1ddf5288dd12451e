// What the kernels share that multiply doubles by tensor cores: reading a lane's factors of 8 of k from a stage of
// the shared tiles, and the product. `shared`, `sum`, fa and fb are the kernel's. Which lane has what: see
// multiply_float64 in ptx.cu. Included by them; they define AT_A(q) and AT_B(q), where the lane's element of
// the quarter q of 16 of k lies, and EIGHT_A and EIGHT_B, how far 8 rows or columns are apart.

#define READ(set, stage, kk) \
    { \
        const double *const from = shared + (stage) * STAGE; \
        UNROLL \
        for (int h = 0; h < 2; ++h) { \
            UNROLL \
            for (int i = 0; i < WARP_M / 8; ++i) \
                fa[set][i / 2][2 * h + i % 2] = from[AT_A(2 * (kk) + h) + EIGHT_A * i]; \
            UNROLL \
            for (int j = 0; j < WARP_N / 8; ++j) \
                fb[set][j][h] = from[AT_B(2 * (kk) + h) + EIGHT_B * j]; \
        } \
    }
#define MULTIPLY(set) \
    UNROLL \
    for (int i = 0; i < WARP_M / 16; ++i) \
        UNROLL \
        for (int j = 0; j < WARP_N / 8; ++j) multiply_float64(sum[i][j], fa[set][i], fb[set][j]);
#define CLEAR_SUMS \
    UNROLL \
    for (int i = 0; i < WARP_M / 16; ++i) \
        UNROLL \
        for (int j = 0; j < WARP_N / 8; ++j) \
            UNROLL \
            for (int c = 0; c < 4; ++c) sum[i][j][c] = 0.0;
// The products of a stage, and the first reading of the next one.
#define MULTIPLY_STAGE \
    READ(1, reading, 1); \
    MULTIPLY(0); \
    reading = reading + 1 == STAGES ? 0 : reading + 1; \
    wait_for_copies(); \
    __syncthreads(); \
    READ(0, reading, 0); \
    MULTIPLY(1);
