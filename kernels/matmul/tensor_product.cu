// C = A B in float32 by tensor cores, from 16-bit pieces of A and B (tensor_pieces.cu): compute capability 9.0. CUDA C only.
//
// A block of three groups of four warps computes PANEL x PANEL of C at a time, and goes on to other tiles. One thread
// of the first group asks for blocks of pieces, which come to shared memory by bulk copies, STAGES ahead; each other
// group multiplies 64 rows by wgmma. With pieces a0, a1, ... of A and b0, b1, ... of B the products are
//   two of float16:    a0 b0 + (a0 b1 + a1 b0) / 2^11
//   three of bfloat16: a0 b0 + a0 b1 + a1 b0 + a0 b2 + a2 b0 + a1 b1
// and what is left out is below 2^-22 of |a||b|. A tensor core cuts the sums that it adds to off, so a0 b0 is added to
// ordinary float32 registers every 64 of k (32 with three pieces); the others are so small that they keep accumulators
// of their own from begin to end. Terms and order are fixed: the same bits each time.
//
// Per tile: 2 PANEL^2 k flops, in three or six products; 4 PANEL k PIECES bytes come from the L2 cache or memory.
//
// Preconditions. `partial` begins with who computes: neither float16 nor bfloat16, nothing is done. Offsets are in bytes,
// steps in blocks of STEP, an even number. c_vector: C's column stride is 1, and its row and batch strides and its
// address are multiples of 8 bytes. a_tiles and b_tiles: PANELs from a matrix of the batch to the next, 0 if it repeats.

#include "tensor_pieces.cu"

#define STAGES_BYTES (6 * 4 * PIECE_BYTES)  // six stages of two pieces, or four of three, of A and B
#define MOST_STAGES 6
#define THREADS 384
#define BAND 16          // rows of tiles that are computed column by column: they share what the L2 holds
#define FEW_REGISTERS 40 // of a thread that copies, and of one that multiplies
#define MANY_REGISTERS 232

#include "wgmma.cu"

struct Tiles {           // where the tiles of C are, and those of A and B
    index_t batch, down, across, a_between, b_between;
};

DEVICE void tile_at(const Tiles &all, index_t number, index_t *matrix, index_t *row, index_t *column)
{
    const index_t each = all.down * all.across, within = number % each, band = within / (BAND * all.across);
    const index_t first = band * BAND, rows = min((index_t)BAND, all.down - first), at = within - first * all.across;
    *matrix = number / each;
    *row = first + at % rows;
    *column = at / rows;
}

// The turn of a stage: which one, and the parity of its barriers.
struct Turn {
    int stage;
    unsigned int parity;
    __device__ __forceinline__ void next(int stages)
    {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

template <int PIECES>
DEVICE void copy_tiles(const unsigned char *A, const unsigned char *B, const Tiles &all, index_t steps,
                       unsigned int shared, unsigned int full, unsigned int empty)
{
    const int stages = STAGES_BYTES / (2 * PIECES * PIECE_BYTES), bytes = PIECES * PIECE_BYTES;
    Turn turn = {0, 0};
    for (index_t number = blockIdx.x; number < all.batch * all.down * all.across; number += gridDim.x) {
        index_t matrix, row, column;
        tile_at(all, number, &matrix, &row, &column);
        const unsigned char *a = A + (matrix * all.a_between + row) * steps * bytes;
        const unsigned char *b = B + (matrix * all.b_between + column) * steps * bytes;
        for (index_t step = 0; step < steps; ++step, turn.next(stages)) {
            const unsigned int to = shared + turn.stage * 2 * bytes, barrier = full + 8 * turn.stage;
            await(empty + 8 * turn.stage, turn.parity ^ 1);
            expect(barrier, 2 * bytes);
            copy_bulk(to, a + step * bytes, bytes, barrier);
            copy_bulk(to + bytes, b + step * bytes, bytes, barrier);
        }
    }
}

// sum += pieces of A times pieces of B, in stages from one on: of the pairs of pieces first to last.
template <int PIECES, int DEPTH>
DEVICE void multiply_pairs(float (&sum)[64], unsigned int a, unsigned int b, int first, int last, bool adds)
{
    const int order[6][2] = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 1}};
    begin_products();
    UNROLL
    for (int pair = first; pair < last; ++pair)
        UNROLL
        for (int slice = 0; slice < 2 * DEPTH; ++slice) {
            const int at = slice / 2 * 2 * PIECES * PIECE_BYTES + slice % 2 * 32;
            multiply<PIECES == 2>(sum, tile_descriptor(a + at + order[pair][0] * PIECE_BYTES),
                                  tile_descriptor(b + at + order[pair][1] * PIECE_BYTES),
                                  adds || pair > first || slice > 0);
        }
    end_products();
}

template <int PIECES>
DEVICE void multiply_tiles(float *C, const int *a_exponents, const int *b_exponents, const Tiles &all, index_t steps,
                           unsigned int shared, unsigned int full, unsigned int empty, index_t m, index_t n,
                           index_t c_batch, index_t c_row, index_t c_col, bool c_vector)
{
    const int depth = PIECES == 2 ? 2 : 1;  // stages that are multiplied at a time
    const int stages = STAGES_BYTES / (2 * PIECES * PIECE_BYTES), pairs = PIECES == 2 ? 3 : 6;
    const int warp = (int)threadIdx.x / 32 - 4, lane = (int)threadIdx.x % 32;
    const float lowered = PIECES == 2 ? 1.0f / LIFT : 1.0f;
    Turn turn = {0, 0};
    for (index_t number = blockIdx.x; number < all.batch * all.down * all.across; number += gridDim.x) {
        index_t matrix, row, column;
        tile_at(all, number, &matrix, &row, &column);
        float total[64], leading[64], others[64];
        UNROLL
        for (int i = 0; i < 64; ++i) total[i] = others[i] = 0.0f;
        int before = -1;  // the stage that the products under way read
        for (index_t step = 0; step < steps; step += depth) {
            UNROLL
            for (int i = 0; i < depth; ++i) await(full + 8 * (turn.stage + i), turn.parity);
            const unsigned int a = shared + turn.stage * 2 * PIECES * PIECE_BYTES + warp / 4 * (64 * STEP * 2);
            const unsigned int b = shared + (turn.stage * 2 + 1) * PIECES * PIECE_BYTES;
            multiply_pairs<PIECES, depth>(leading, a, b, 0, 1, false);
            multiply_pairs<PIECES, depth>(others, a, b, 1, pairs, true);
            await_products<1>(leading);
            if (before >= 0)
                UNROLL
                for (int i = 0; i < depth; ++i)
                    if (lane == 0) arrive(empty + 8 * (before + i));
            UNROLL
            for (int i = 0; i < 64; ++i) total[i] += leading[i];
            before = turn.stage;
            UNROLL
            for (int i = 0; i < depth; ++i) turn.next(stages);
        }
        await_products<0>(others);
        UNROLL
        for (int i = 0; i < depth; ++i)
            if (lane == 0) arrive(empty + 8 * (before + i));

        const index_t left = column * PANEL + lane % 4 * 2;
        const int *across = b_exponents + matrix * all.b_between * PANEL;
        UNROLL
        for (int half = 0; half < 2; ++half) {
            const index_t r = row * PANEL + warp * 16 + lane / 4 + 8 * half;
            if (r >= m) continue;
            float *to = C + matrix * c_batch + r * c_row;
            const int down = a_exponents[matrix * all.a_between * PANEL + r] - 2 * TOP;
            UNROLL
            for (int j = 0; j < 16; ++j) {
                const index_t c = left + 8 * j;
                const int i = 4 * j + 2 * half;
                const int2 e = *(const int2 *)(across + c);
                const float x = scaled(fmaf(others[i], lowered, total[i]), down + e.x);
                const float y = scaled(fmaf(others[i + 1], lowered, total[i + 1]), down + e.y);
                if (c_vector && c + 1 < n) {
                    *(float2 *)(to + c) = make_float2(x, y);
                } else {
                    if (c < n) to[c * c_col] = x;
                    if (c + 1 < n) to[(c + 1) * c_col] = y;
                }
            }
        }
    }
}

KERNEL(THREADS, 1)
multiply_pieces(float *C, unsigned char *partial, index_t m, index_t n, index_t steps, index_t batch, index_t a_tiles,
                index_t b_tiles, index_t a_exponents_at, index_t b_exponents_at, index_t a_at, index_t b_at,
                index_t c_batch, index_t c_row, index_t c_col, index_t c_vector)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long barriers[2 * MOST_STAGES];
    const int who = *(const int *)partial;
    if (who == BY_TILED) return;
    const unsigned int full = shared_place(barriers), empty = full + 8 * MOST_STAGES;
    const unsigned int shared = (shared_place(memory) + 1023) & ~1023u;
    if (threadIdx.x == 0) {
        for (int i = 0; i < MOST_STAGES; ++i) new_barrier(full + 8 * i, 1), new_barrier(empty + 8 * i, 8);
        fence_barriers();
    }
    __syncthreads();
    const Tiles all = {batch, (m + PANEL - 1) / PANEL, (n + PANEL - 1) / PANEL, a_tiles, b_tiles};
    if (__shfl_sync(~0u, threadIdx.x / 128, 0) == 0) {
        fewer_registers<FEW_REGISTERS>();
        if (threadIdx.x > 0) return;
        if (who == BY_FLOAT16)
            copy_tiles<2>(partial + a_at, partial + b_at, all, steps, shared, full, empty);
        else
            copy_tiles<3>(partial + a_at, partial + b_at, all, steps, shared, full, empty);
        return;
    }
    more_registers<MANY_REGISTERS>();
    const int *a = (const int *)(partial + a_exponents_at), *b = (const int *)(partial + b_exponents_at);
    if (who == BY_FLOAT16)
        multiply_tiles<2>(C, a, b, all, steps, shared, full, empty, m, n, c_batch, c_row, c_col, c_vector);
    else
        multiply_tiles<3>(C, a, b, all, steps, shared, full, empty, m, n, c_batch, c_row, c_col, c_vector);
}
