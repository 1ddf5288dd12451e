// C = A B for a batch: A is m x k, B is k x n, C is m x n, each with any strides (in elements).
//
// A block computes a TILE_M x TILE_N tile of C from tiles of A and B, TILE_K deep, in shared memory; a
// thread computes THREAD_M x THREAD_N of it in registers. While one tile is multiplied the next is
// on its way from global memory to registers, and goes to the other shared buffer: one barrier per
// TILE_K. Shared tiles are stored k-major, so that a thread reads the elements of one k by vectors.
// k is taken in `parts` chunks: with parts > 1, C is the scratch buffer, contiguous, one result per
// part, and sum_partials (partial.cu) follows.
// Per product: 2 m n k flops; a tile moves (TILE_M + TILE_N) k elements from global memory.
//
// A_K, B_K: 1 where the operand's fast dimension is k, 0 where it is m or n. This orders the loads.
// Preconditions. ALIGNED = 0: none. ALIGNED = 1: the fast stride is 1; and the other strides, the
// fast extent, and the address, of A and of B, are multiples of WIDTH. c_vector = 1: the same holds
// of C with n fast. chunk is a multiple of TILE_K; chunk * parts >= k > chunk * (parts - 1).

#include "matmul_registers.cu"
#include "matmul_buffers.cu"

#define LOADS_A (TILE_M * TILE_K / (PIECE * THREADS))
#define LOADS_B (TILE_N * TILE_K / (PIECE * THREADS))

// A tile is cut into pieces, numbered so that a warp's loads coalesce; a thread has the pieces
// thread + slot * THREADS. A piece's first element is at (k, outer), where outer is the row of A or
// the column of B. With k fast, RUN_LENGTH elements of k make a run of full sectors. All sizes are powers of
// two, so the position of thread + slot * THREADS is the sum of theirs: each slot lies at a fixed
// distance from the first.
#define RUN (RUN_LENGTH / PIECE)
DEVICE int piece_k(int piece, int k_fast, int tile)
{
    return k_fast ? (piece % RUN + piece / (RUN * tile) * RUN) * PIECE : piece / (tile / PIECE);
}

DEVICE int piece_outer(int piece, int k_fast, int tile)
{
    return k_fast ? piece / RUN % tile : piece % (tile / PIECE) * PIECE;
}

#define FIRST_K(fast, piece, tile) piece_k(thread, fast, tile)
#define FIRST_OUTER(fast, piece, tile) piece_outer(thread, fast, tile)
#define SLOT_AK(s) piece_k((s) * THREADS, A_K, TILE_M)
#define SLOT_M(s) piece_outer((s) * THREADS, A_K, TILE_M)
#define SLOT_BK(s) piece_k((s) * THREADS, B_K, TILE_N)
#define SLOT_N(s) piece_outer((s) * THREADS, B_K, TILE_N)
// Loads those of a thread's pieces of both tiles that are there; at first the others become zero.
#define LOAD_NEXT(at_first, there_a, there_b) \
    UNROLLED(s, LOADS_A) { \
        if (at_first) CLEAR_PIECE(next_a[s]); \
        if (there_a) next_a[s] = LOAD(A + SLOT_AK(s) * A_K_STRIDE + SLOT_M(s) * A_M_STRIDE); \
    } \
    UNROLLED(s, LOADS_B) { \
        if (at_first) CLEAR_PIECE(next_b[s]); \
        if (there_b) next_b[s] = LOAD(B + SLOT_BK(s) * B_K_STRIDE + SLOT_N(s) * B_N_STRIDE); \
    }
#define STORE_NEXT(buffer) \
    UNROLLED(s, LOADS_A) \
        store_piece(to_a + (buffer) * (TILE_K * PITCH_A) + SLOT_AK(s) * PITCH_A + SLOT_M(s), \
                    PITCH_A, A_K, next_a[s]); \
    UNROLLED(s, LOADS_B) \
        store_piece(to_b + (buffer) * (TILE_K * PITCH_B) + SLOT_BK(s) * PITCH_B + SLOT_N(s), \
                    PITCH_B, B_K, next_b[s])
#define READ_FACTORS(set, buffer, kk) \
    READ_FACTORS_AT(set, read_a + (buffer) * (TILE_K * PITCH_A) + (kk) * PITCH_A, \
                    read_b + (buffer) * (TILE_K * PITCH_B) + (kk) * PITCH_B)

KERNEL(THREADS, RESIDENT)
matmul(GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT B, GLOBAL REAL *RESTRICT C, SIZES)
{
    SHARED VECTOR shared_a[2 * TILE_K * PITCH_A / WIDTH];
    SHARED VECTOR shared_b[2 * TILE_K * PITCH_B / WIDTH];

    FIND_THREAD

    FIND_BLOCK

    // A thread's first piece, and how many rows (columns) of the matrix are left from it on: pieces
    // past the edge are never loaded and stay zero. Past the end of k both operands are zero: an
    // infinity meets no zero that isn't the caller's, save in results that aren't stored.
    GO_TO_FIRST(PIECE, PIECE)
    LOCAL REAL *const to_a = (LOCAL REAL *)shared_a + a_k * PITCH_A + a_m;
    LOCAL REAL *const to_b = (LOCAL REAL *)shared_b + b_k * PITCH_B + b_n;

    LOADED next_a[LOADS_A];
    LOADED next_b[LOADS_B];
    LOAD_NEXT(true, SLOT_M(s) < left_m && a_k + SLOT_AK(s) < first,
              SLOT_N(s) < left_n && b_k + SLOT_BK(s) < first)
    GO_ON(first)

    DECLARE_SUMS
    CLEAR_SUMS

    LOCAL const REAL *const read_a = (LOCAL const REAL *)shared_a + warp_m + LANE_M(lane);
    LOCAL const REAL *const read_b = (LOCAL const REAL *)shared_b + warp_n + LANE_N(lane);

    STORE_NEXT(0);
    __syncthreads();
    READ_FACTORS(0, 0, 0);
    NO_UNROLL
    for (int step = 0; step < steps; ++step) {
        int reading = step & 1;
        // After the last tile nothing is loaded, but all else is done as ever: a branch around it
        // would let the compiler move the loads down to their use, and their latency would show.
        const int rows_left = step + 1 < steps ? left_m : 0;
        const int columns_left = step + 1 < steps ? left_n : 0;
        LOAD_NEXT(false, SLOT_M(s) < rows_left, SLOT_N(s) < columns_left)
        GO_ON(TILE_K)

        // The other buffer is free: its last reading came before the last barrier.
        MULTIPLY_TILES
    }

    STORE_SUMS
}
