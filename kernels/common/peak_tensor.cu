// As peak.cu, by tensor cores: products of 16 x 8 by 8 x 8 float64 elements on registers alone. Per warp:
// 2048 CHAINS STEPS rounds flops. Compute capability 8.0, 9.0, 10.0.

#define REAL double
#define STAGES 2
#define CHAINS 4
#define STEPS 8

#include "ptx.cu"

KERNEL(THREADS, 1)
peak_tensor(GLOBAL REAL *RESTRICT out, index_t rounds)
{
    const index_t at = (index_t)blockIdx.x * THREADS + threadIdx.x;
    REAL a[4], b[2], c[CHAINS][4];
    UNROLL
    for (int i = 0; i < 4; ++i) a[i] = (REAL)((at + i) % 7) / 1024;
    UNROLL
    for (int i = 0; i < 2; ++i) b[i] = (REAL)((at + i) % 5) / 1024;
    UNROLL
    for (int i = 0; i < 4 * CHAINS; ++i) c[i / 4][i % 4] = 0;
    for (index_t round = 0; round < rounds; ++round) {
        UNROLL
        for (int step = 0; step < STEPS; ++step) {
            UNROLL
            for (int i = 0; i < CHAINS; ++i) multiply_float64(c[i], a, b);
        }
    }
    REAL sum = 0;
    UNROLL
    for (int i = 0; i < 4 * CHAINS; ++i) sum += c[i / 4][i % 4];
    out[at] = sum;
}
