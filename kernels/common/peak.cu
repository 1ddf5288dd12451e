// The roof that arithmetic has: multiply-adds on registers alone, as many as a device begins, which nothing
// waits for. Each thread has CHAINS sums that do not depend on each other, so that the latency of one is
// covered by the others. Per thread: 2 CHAINS STEPS rounds flops, one element written.
//
// Precondition: as many elements in `out` as there are threads.

#define CHAINS 8
#define STEPS 32

KERNEL(THREADS, 1)
peak(GLOBAL REAL *RESTRICT out, index_t rounds)
{
    const index_t at = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const REAL x = (REAL)1 - (REAL)(at % 7 + 1) / 1024, y = (REAL)(at % 5) / 1024;
    REAL sums[CHAINS];
    UNROLLED(c, CHAINS) sums[c] = (REAL)(at % 3 + c);
    for (index_t round = 0; round < rounds; ++round) {
        UNROLLED(step, STEPS) UNROLLED(c, CHAINS) sums[c] = sums[c] * x + y;
    }
    REAL sum = 0;
    UNROLLED(c, CHAINS) sum += sums[c];
    out[at] = sum;
}
