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

#define LOADS(tile) ((tile) * TILE_K / (PIECE * THREADS))

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
#define SLOT_K(s, fast, tile) piece_k((s) * THREADS, fast, tile)
#define SLOT_OUTER(s, fast, tile) piece_outer((s) * THREADS, fast, tile)
// Loads those of a thread's pieces of an operand's tile that are there: of `left` rows or columns, and of k by `there`,
// where `own` of it is before the thread's. At first the others become zero.
#define LOAD_PIECES(next, from, fast, tile, k_stride, stride, at_first, left, own, there) \
    UNROLLED(s, LOADS(tile)) { \
        if (at_first) CLEAR_PIECE(next[s]); \
        if (SLOT_OUTER(s, fast, tile) < left && (!at_first || own + SLOT_K(s, fast, tile) < there)) \
            next[s] = LOAD(from + SLOT_K(s, fast, tile) * k_stride + SLOT_OUTER(s, fast, tile) * stride); \
    }
#define LOAD_NEXT(at_first, left_a, left_b) \
    LOAD_PIECES(next_a, A, A_K, TILE_M, A_K_STRIDE, A_M_STRIDE, at_first, left_a, a_k, first) \
    LOAD_PIECES(next_b, B, B_K, TILE_N, B_K_STRIDE, B_N_STRIDE, at_first, left_b, b_k, first)
#define STORE_PIECES(next, to, fast, tile, pitch, buffer) \
    UNROLLED(s, LOADS(tile)) \
        store_piece(to + (buffer) * (TILE_K * pitch) + SLOT_K(s, fast, tile) * pitch + SLOT_OUTER(s, fast, tile), \
                    pitch, fast, next[s])
#define STORE_NEXT(buffer) \
    STORE_PIECES(next_a, to_a, A_K, TILE_M, PITCH_A, buffer); \
    STORE_PIECES(next_b, to_b, B_K, TILE_N, PITCH_B, buffer)
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

    LOADED next_a[LOADS(TILE_M)];
    LOADED next_b[LOADS(TILE_N)];
    LOAD_NEXT(true, left_m, left_n)
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
        LOAD_NEXT(false, rows_left, columns_left)
        GO_ON(TILE_K)

        // The other buffer is free: its last reading came before the last barrier.
        MULTIPLY_TILES
    }

    STORE_SUMS
}
