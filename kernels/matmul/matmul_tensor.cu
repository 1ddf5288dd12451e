// C = A B for a batch in float64, by the tensor cores of CUDA devices of compute capability 9.0 and
// 10.0 (and 8.0, with a smaller instruction): they multiply and add doubles as other units do. CUDA C only.
//
// A block computes TILE_M x TILE_N of C, a warp WARP_M x WARP_N of that. Tiles of A and B, 16 deep for
// each of SLICES groups of warps, are copied to shared memory asynchronously, STAGES - 1 of them ahead
// of the one multiplied, in the order they have in memory: [outer][k] where k is fast (A_K, B_K), else
// [k][outer]. The groups multiply 16 of k each, and add up at the end: for products with few tiles.
// k is taken in `parts` chunks: with parts > 1, C is the scratch buffer, contiguous, one result per
// part, and sum_partials (partial.cu) follows.
// Per product: 2 m n k flops; a tile moves (TILE_M + TILE_N) k elements from global memory.
//
// Which lane holds what: see multiply_float64 in ptx.cu.
//
// Preconditions. ALIGNED = 0: none. ALIGNED = 1: the fast stride is 1; and the other strides, the
// fast extent, and the address, of A and of B, are even (16 bytes). c_vector = 1: the same holds of C
// with n fast. chunk is a multiple of TILE_K; chunk * parts >= k > chunk * (parts - 1).

#define TILE_K (16 * SLICES)
#include "matmul_blocks.cu"
#include "matmul_fragments.cu"

#define THREADS (32 * WARPS_M * WARPS_N * SLICES)

// Where an element lies. With k slow a row is 4 elements longer than the tile, with k fast see PLACE_KFAST. So the
// 16 lanes that read together, 4 rows by 4 of k, meet 32 banks.
#define PITCH(fast, tile) ((fast) ? TILE_K : (tile) + 4)
#define SIZE(fast, tile) ((fast) ? (tile) * TILE_K : TILE_K * ((tile) + 4))
#define STAGE (SIZE(A_K, TILE_M) + SIZE(B_K, TILE_N))
#define PLACE(fast, tile, outer, k) ((fast) ? PLACE_KFAST(outer, k) : (k) * PITCH(fast, tile) + (outer))

#define LOADS(tile) ((tile) * TILE_K / (PIECE * THREADS))
#define SLOT(fast, tile) (THREADS * PIECE / ((fast) ? TILE_K : (tile)))

// Pieces of a tile are numbered so that neighbouring threads copy neighbours; a thread has the pieces
// thread + slot * THREADS. With powers of two, and slots of 4 rows or more, each slot lies at a fixed
// distance from the first.
#define PER_ROW (TILE_K / PIECE)
#define FIRST_K(fast, piece, tile) \
    ((fast) ? thread % PER_ROW * (piece) : thread / ((tile) / (piece)))
#define FIRST_OUTER(fast, piece, tile) \
    ((fast) ? thread / PER_ROW : thread % ((tile) / (piece)) * (piece))

KERNEL(THREADS, RESIDENT)
matmul(const double *__restrict__ A, const double *__restrict__ B, double *__restrict__ C, SIZES)
{
    extern __shared__ __align__(128) double shared[];

    FIND_THREAD(thread / 32 % (WARPS_M * WARPS_N))

    FIND_BLOCK

    // A thread's pieces are SLOT apart along the slow dimension: with k fast they are rows, of which
    // those past the edge are not there; else they are steps of k, and all of them are there or none.
    GO_TO_FIRST(PIECE, PIECE)
    const index_t slot_a = SLOT(A_K, TILE_M) * (A_K ? A_M_STRIDE : A_K_STRIDE);
    const index_t slot_b = SLOT(B_K, TILE_N) * (B_K ? B_N_STRIDE : B_K_STRIDE);
    const int there_a = A_K ? left_m : left_m > 0 ? TILE_K : 0;
    const int there_b = B_K ? left_n : left_n > 0 ? TILE_K : 0;
    const unsigned int base = shared_address(shared);
    const unsigned int to_a = base + 8 * PLACE(A_K, TILE_M, a_m, a_k);
    const unsigned int to_b = base + 8 * (SIZE(A_K, TILE_M) + PLACE(B_K, TILE_N, b_n, b_k));

    // A stage's tiles, of which `depth` of k are there; and on to the next ones.
#define COPY_OPERAND(from, to, fast, tile, step, there, own_k, stage, depth) \
    { \
        const double *piece = from; \
        UNROLLED(slot, LOADS(tile)) { \
            const int apart = slot * SLOT(fast, tile); \
            copy_piece(to + 8 * (STAGE * (stage) + apart * PITCH(fast, tile)), piece, PIECE, \
                       apart < there && ((depth) == TILE_K || own_k + ((fast) ? 0 : apart) < (depth))); \
            piece += step; \
        } \
    }
#define COPY_TILES(stage, depth) \
    { \
        COPY_OPERAND(A, to_a, A_K, TILE_M, slot_a, there_a, a_k, stage, depth) \
        COPY_OPERAND(B, to_b, B_K, TILE_N, slot_b, there_b, b_k, stage, depth) \
        GO_ON(depth) \
    }

    BEGIN_COPIES

    DECLARE_SUMS
    CLEAR_SUMS;

    // With k fast, another quarter of a row is the first one's place with bits changed.
    const int k_a = A_K ? 1 : PITCH(A_K, TILE_M), k_b = B_K ? 1 : PITCH(B_K, TILE_N);
    const int read_a = PLACE(A_K, TILE_M, warp_m + g, t) + slice * 16 * k_a;
    const int read_b = SIZE(A_K, TILE_M) + PLACE(B_K, TILE_N, warp_n + g, t) + slice * 16 * k_b;
#define AT_A(q) (A_K ? read_a ^ (q) * 4 : read_a + (q) * 4 * k_a)
#define AT_B(q) (B_K ? read_b ^ (q) * 4 : read_b + (q) * 4 * k_b)
#define EIGHT_A (8 * (A_K ? TILE_K : 1))
#define EIGHT_B (8 * (B_K ? TILE_K : 1))

    wait_for_copies();
    __syncthreads();
    int reading = 0, writing = STAGES - 1;
    READ(0, 0, 0);
    NO_UNROLL
    for (int step = 0; step < steps; ++step) {
        COPY_NEXT
        MULTIPLY_STAGE
    }

#if SLICES > 1
    // The groups of warps sum up what each has of the same tile, in their order.
#define SUMS (WARP_M * WARP_N / 32)
    double *const place = shared + warp * 32 + lane;
    double *const mine = &sum[0][0][0];
    UNROLLED_RANGE(s, 1, SLICES, 1) {
        __syncthreads();
        if (slice == s) {
            UNROLLED(i, SUMS) place[i * (THREADS / SLICES)] = mine[i];
        }
        __syncthreads();
        if (slice == 0) {
            UNROLLED(i, SUMS) mine[i] += place[i * (THREADS / SLICES)];
        }
    }
    if (slice > 0) return;
#endif

    C += part * c_part + b * c_batch;
    UNROLLED(i, WARP_M / 8) {
        const index_t row = tile_m + warp_m + 8 * i + g;
        if (row < m) {
            UNROLLED(j, WARP_N / 8) {
                const index_t col = tile_n + warp_n + 8 * j + 2 * t;
                const double *const two = sum[i / 2][j] + i % 2 * 2;
                double *const to = C + row * c_row + col * c_col;
                if (c_vector) {
                    if (col < n) *(double2 *)to = make_double2(two[0], two[1]);
                } else {
                    if (col < n) to[0] = two[0];
                    if (col + 1 < n) to[c_col] = two[1];
                }
            }
        }
    }
}
