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
    UNROLLED(i, 4) a[i] = (REAL)((at + i) % 7) / 1024;
    UNROLLED(i, 2) b[i] = (REAL)((at + i) % 5) / 1024;
    UNROLLED(i, 4 * CHAINS) c[i / 4][i % 4] = 0;
    for (index_t round = 0; round < rounds; ++round) {
        UNROLLED(step, STEPS) UNROLLED(i, CHAINS) multiply_float64(c[i], a, b);
    }
    REAL sum = 0;
    UNROLLED(i, 4 * CHAINS) sum += c[i / 4][i % 4];
    out[at] = sum;
}
