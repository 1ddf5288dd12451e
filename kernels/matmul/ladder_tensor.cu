// C = A B in float32 on tensor cores, kernel after kernel: what comes before tensor_product.cu, which is the last one. For
// compute capability 9.0; CUDA C only. ladder.py has a table of the steps. A and B are there as two pieces of float16
// for each number (tensor_split.cu); arguments are those of multiply_pieces, for one matrix.
//
// 10. wgmma (AHEAD 0): a block makes PANEL x PANEL of C. For each STEP of k its threads copy the pieces of A and of B to
//     shared memory, its two groups of four warps multiply 64 rows each, and all wait for the products.
// 11. ahead: one thread asks for bulk copies, AHEAD steps ahead of the products.
// 12. groups: multiply_pieces with a block for each tile. A group of warps copies and does not multiply: no barrier of
//     all threads is left, and products of one step begin before those of the step before are done.
// What is left to `tensor` itself: a block for each multiprocessor, which copies for its next tile while it writes one.

#include "tensor_product.cu"

#define BOTH_BYTES (2 * PIECE_BYTES)  // of the pieces of an operand for a step

KERNEL(256, 1)
matmul_pieces(float *C, const unsigned char *partial, index_t m, index_t n, index_t steps, index_t batch,
              index_t a_tiles, index_t b_tiles, index_t a_exponents_at, index_t b_exponents_at, index_t a_at,
              index_t b_at, index_t c_batch, index_t c_row, index_t c_col, index_t c_vector)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long barriers[AHEAD + 1];
    const int thread = (int)threadIdx.x, group = __shfl_sync(~0u, thread / 128, 0);
    const index_t across = (n + PANEL - 1) / PANEL, row = blockIdx.x / across, column = blockIdx.x % across;
    const unsigned char *a = partial + a_at + row * steps * BOTH_BYTES, *b = partial + b_at + column * steps * BOTH_BYTES;
    const unsigned int first = (shared_place(memory) + 1023) & ~1023u, full = shared_place(barriers);
    float total[64], leading[64], others[64];
    UNROLLED(i, 64) total[i] = others[i] = 0.0f;
    if (thread == 0) {
        for (int i = 0; i <= AHEAD; ++i) new_barrier(full + 8 * i, 1);
        fence_barriers();
    }
    __syncthreads();
    for (index_t step = -AHEAD; step < steps; ++step) {
        const index_t next = step + AHEAD;
        const unsigned int to = first + next % (AHEAD + 1) * 2 * BOTH_BYTES, barrier = full + next % (AHEAD + 1) * 8;
#if AHEAD
        if (thread == 0 && next < steps) {
            expect(barrier, 2 * BOTH_BYTES);
            copy_bulk(to, a + next * BOTH_BYTES, BOTH_BYTES, barrier);
            copy_bulk(to + BOTH_BYTES, b + next * BOTH_BYTES, BOTH_BYTES, barrier);
        }
        if (step < 0) continue;
        await(full + step % (AHEAD + 1) * 8, step / (AHEAD + 1) & 1);
#else
        uint4 *const there = (uint4 *)(memory + (to - shared_place(memory)));
        for (int i = thread; i < BOTH_BYTES / 16; i += 256) {
            there[i] = ((const uint4 *)(a + step * BOTH_BYTES))[i];
            there[BOTH_BYTES / 16 + i] = ((const uint4 *)(b + step * BOTH_BYTES))[i];
        }
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // products read what threads have written
        __syncthreads();
#endif
        const unsigned int at = first + step % (AHEAD + 1) * 2 * BOTH_BYTES;
        multiply_pairs<2, 1>(leading, at + group * (64 * STEP * 2), at + BOTH_BYTES, 0, 1, false);
        multiply_pairs<2, 1>(others, at + group * (64 * STEP * 2), at + BOTH_BYTES, 1, 3, true);
        await_products<1>(leading);
        await_products<0>(others);
        UNROLLED(i, 64) total[i] += leading[i];
        __syncthreads();
    }
    UNROLLED(i, 64) total[i] = fmaf(others[i], 1.0f / LIFT, total[i]);
    write_sums(C, total, (const int *)(partial + a_exponents_at), (const int *)(partial + b_exponents_at),
               row * PANEL + thread / 32 * 16, column * PANEL, m, n, c_row, c_col, c_vector);
}
