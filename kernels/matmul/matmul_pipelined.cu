// C = A B for a batch: A is m x k, B is k x n, C is m x n, each with any strides (in elements).
//
// The product of matmul.cu with another way into shared memory, for CUDA devices of compute capability
// 8.0 or more: tiles of A and B are copied there while others are multiplied, STAGES - 1 of them ahead,
// and pass through no registers. Shared tiles are k-major, so that a thread reads the elements of one k
// by vectors; what has k fast in memory is therefore copied element by element.
// k is taken in `parts` chunks: with parts > 1, C is the scratch buffer, contiguous, one result per
// part, and sum_partials (partial.cu) follows.
// Per product: 2 m n k flops; a tile moves (TILE_M + TILE_N) k elements from global memory.
//
// A_K, B_K: 1 where the operand's fast dimension is k, 0 where it is m or n. This orders the loads.
// GUARD: nothing is done unless `who` has this value, which an earlier kernel notes. Then sums over CHUNK of k are added
// up, which rounds less.
// Preconditions. ALIGNED = 0: none. ALIGNED = 1: the fast stride is 1; and the other strides, the
// fast extent, and the address, of A and of B, are multiples of WIDTH. c_vector = 1: the same holds
// of C with n fast. chunk is a multiple of TILE_K; chunk * parts >= k > chunk * (parts - 1).

#define CHUNK 128

#include "matmul_registers.cu"

// Elements that are copied at once. With k fast they are taken one by one, since what comes to lie
// k-major does not lie together.
#define PIECE_A (ALIGNED && !A_K ? WIDTH : 1)
#define PIECE_B (ALIGNED && !B_K ? WIDTH : 1)

#include "ptx.cu"

// A tile is cut into pieces, numbered so that a warp's copies coalesce: with k fast, RUN_LENGTH of k for
// each row in turn, and the next of k when the rows are through; else along the row. A thread's pieces
// are APART rows from each other, or APART elements of k where k is slow.
#define APART(piece, fast, tile) ((fast) ? THREADS / RUN_LENGTH : THREADS * (piece) / (tile))
#define FIRST_K(fast, piece, tile) \
    ((fast) ? thread % RUN_LENGTH + thread / (RUN_LENGTH * (tile)) * RUN_LENGTH \
            : thread / ((tile) / (piece)))
#define FIRST_OUTER(fast, piece, tile) \
    ((fast) ? thread / RUN_LENGTH % (tile) : thread % ((tile) / (piece)) * (piece))
#define STAGE (TILE_K * (PITCH_A + PITCH_B))
#define BYTES (int)sizeof(REAL)

// Copy a thread's pieces of one operand's tile; from its own on, `left` rows belong to the matrix. Of k
// `depth` are there, and its own is the k-th.
#define COPY_OPERAND(from, to, fast, piece, tile, pitch, k_step, step, left, depth, k) \
    { \
        const REAL *at = from; \
        const int apart = APART(piece, fast, tile), loads = (tile) * TILE_K / ((piece) * THREADS); \
        const int in_turn = (fast) ? (tile) / apart : loads; \
        UNROLLED(slot, loads) { \
            const int row = (fast) ? slot % in_turn * apart : 0; \
            const int of_k = (fast) ? slot / in_turn * RUN_LENGTH : slot * apart; \
            copy_piece((to) + BYTES * (row + of_k * (pitch)), at, piece, \
                       row < (left) && ((depth) == TILE_K || (k) + of_k < (depth))); \
            at += step; \
            if ((fast) && slot % in_turn == in_turn - 1) \
                at += RUN_LENGTH * (k_step) - in_turn * (step); \
        } \
    }
// A stage's tiles, of which `depth` of k are there; and on to the next ones.
#define COPY_TILES(stage, depth) \
    { \
        COPY_OPERAND(A, to_a + BYTES * STAGE * (stage), A_K, PIECE_A, TILE_M, PITCH_A, A_K_STRIDE, \
                     step_a, left_m, depth, a_k) \
        COPY_OPERAND(B, to_b + BYTES * STAGE * (stage), B_K, PIECE_B, TILE_N, PITCH_B, B_K_STRIDE, \
                     step_b, left_n, depth, b_k) \
        GO_ON(depth) \
    }
#define READ_FACTORS(set, stage, kk) \
    READ_FACTORS_AT(set, read_a + (stage) * STAGE + (kk) * PITCH_A, \
                    read_b + (stage) * STAGE + (kk) * PITCH_B)
#define TO_NEXT \
    reading = reading + 1 == STAGES ? 0 : reading + 1; \
    wait_for_copies(); \
    __syncthreads()

KERNEL(THREADS, RESIDENT)
matmul(const REAL *__restrict__ A, const REAL *__restrict__ B, REAL *__restrict__ C,
#ifdef GUARD
       const int *who,
#endif
       SIZES)
{
    extern __shared__ __align__(16) REAL shared[];

#ifdef GUARD
    if (*who != GUARD) return;
#endif
    FIND_THREAD

    FIND_BLOCK

    // A thread's first piece, and how many rows (columns) of the matrix are left from it on. Past the
    // end of k, and past the edge, zeros come in their place.
    GO_TO_FIRST(PIECE_A, PIECE_B)
    const index_t step_a = APART(PIECE_A, A_K, TILE_M) * (A_K ? A_M_STRIDE : A_K_STRIDE);
    const index_t step_b = APART(PIECE_B, B_K, TILE_N) * (B_K ? B_N_STRIDE : B_K_STRIDE);
    const unsigned int to_a = shared_address(shared) + BYTES * (a_k * PITCH_A + a_m);
    const unsigned int to_b =
        shared_address(shared) + BYTES * (TILE_K * PITCH_A + b_k * PITCH_B + b_n);

    BEGIN_COPIES

    DECLARE_SUMS
    CLEAR_SUMS

#ifdef GUARD
    REAL total[THREAD_M][THREAD_N] = {};
#endif
    const REAL *const read_a = shared + warp_m + LANE_M(lane);
    const REAL *const read_b = shared + TILE_K * PITCH_A + warp_n + LANE_N(lane);

    wait_for_copies();
    __syncthreads();
    int reading = 0, writing = STAGES - 1;
    READ_FACTORS(0, 0, 0);
    NO_UNROLL
    for (int step = 0; step < steps; ++step) {
        COPY_NEXT
        MULTIPLY_TILES
#ifdef GUARD
        if (step % (CHUNK / TILE_K) != 0 && step + 1 < steps) continue;
        UNROLLED(i, THREAD_M) UNROLLED(j, THREAD_N) {
            sum[i][j] = total[i][j] += sum[i][j];
            if (step + 1 < steps) sum[i][j] = 0;
        }
#endif
    }

    STORE_SUMS
}
