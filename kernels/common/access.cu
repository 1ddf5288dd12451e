// What patterns of access cost, where a kernel does nothing else: after A. White, "Modeling and Optimization of Parallel
// Matrix-based Computations on GPU", Auburn University, 2013, listings 3.1 and 3.2.
//
// strided  Every element of `data` once, in the order in which a matrix with `stride` pieces of PIECE elements in a
//          row is read by columns. The bytes are the same for each stride. PIECE = 1: neighbouring threads read
//          elements `stride` apart. PIECE = 64: 256 bytes stay together, as a partition of the Tesla T10 has them,
//          and what runs at a time reads pieces `stride` apart.
// banks    The threads of a warp read elements of shared memory `stride` apart; 0: all the same one.
//
// Preconditions: 2^shift rows, so `data` has stride PIECE 2^shift elements, and the grid has THREADS STEPS of them for
// each block; 0 <= stride <= 64 for banks. `out` has an element for each thread.

#define STEPS 16
#define SIZE 2048  // elements of shared memory: 32 of them 64 apart are different ones
#define READS 32

KERNEL(THREADS, 1)
strided(GLOBAL const float *RESTRICT data, GLOBAL float *RESTRICT out, index_t shift, index_t stride)
{
    const index_t first = (index_t)blockIdx.x * (THREADS * STEPS) + threadIdx.x, last = ((index_t)1 << shift) - 1;
    float sum = 0;
    UNROLLED(step, STEPS) {
        const index_t at = first + step * THREADS, piece = at / PIECE;
        sum += data[((piece & last) * stride + (piece >> shift)) * PIECE + at % PIECE];
    }
    out[(index_t)blockIdx.x * THREADS + threadIdx.x] = sum;
}

// Per thread: READS rounds reads. All threads move on by the same number of elements, so that those which meet in a
// bank go on meeting.
KERNEL(THREADS, 1)
banks(GLOBAL float *RESTRICT out, index_t stride, index_t rounds)
{
    SHARED float held[SIZE + READS];
    for (int at = (int)threadIdx.x; at < SIZE + READS; at += THREADS) held[at] = (float)at;
    __syncthreads();
    float sum = 0;
    int at = (int)threadIdx.x % 32 * (int)stride;
    for (index_t round = 0; round < rounds; ++round) {
        UNROLLED(read, READS) sum += held[at + read];
        at = (at + READS) % SIZE;
    }
    out[(index_t)blockIdx.x * THREADS + threadIdx.x] = sum;
}
