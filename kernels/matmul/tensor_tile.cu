// A tile of products of 16-bit pieces (tensor_pieces.cu) on tensor cores of compute capability 9.0, and how a block gets
// the pieces: what tensor_product.cu and kmeans_pieces.cu share. CUDA C only.
//
// A block has three groups of four warps. One thread of the first group asks for blocks of pieces, which come to shared
// memory by bulk copies, STAGES ahead; each other group multiplies 64 rows by wgmma. With pieces a0, a1, ... of A and
// b0, b1, ... of B the products are
//   two of float16:    a0 b0 + (a0 b1 + a1 b0) / 2^11
//   three of bfloat16: a0 b0 + a0 b1 + a1 b0 + a0 b2 + a2 b0 + a1 b1
// and what is left out is below 2^-22 of |a||b|. A tensor core cuts the sums that it adds to off, so a0 b0 is added to
// ordinary float32 registers every 64 of k (32 with three pieces); the others are so small that they keep accumulators
// of their own from begin to end. Terms and order are fixed: the same bits each time.

#include "tensor_pieces.cu"

#define STAGES_BYTES (6 * 4 * PIECE_BYTES)  // six stages of two pieces, or four of three, of A and B
#define MOST_STAGES 6
#define THREADS 384
#define FEW_REGISTERS 40 // of a thread that copies, and of one that multiplies
#define MANY_REGISTERS 232

#include "wgmma.cu"

// The stages in shared memory, and the barriers of each: it is full, it is empty.
struct Stages {
    unsigned int memory, full, empty;
};

// The turn of a stage: which one, and the parity of its barriers.
struct Turn {
    int stage;
    unsigned int parity;
    __device__ __forceinline__ void next(int stages)
    {
        if (++stage == stages) stage = 0, parity ^= 1;
    }
};

// The stages in STAGES_BYTES + 1024 bytes of memory, with 2 MOST_STAGES barriers; by all threads.
DEVICE Stages new_stages(const unsigned char *memory, const unsigned long long *barriers)
{
    const unsigned int full = shared_place(barriers), empty = full + 8 * MOST_STAGES;
    if (threadIdx.x == 0) {
        for (int i = 0; i < MOST_STAGES; ++i) new_barrier(full + 8 * i, 1), new_barrier(empty + 8 * i, 8);
        fence_barriers();
    }
    __syncthreads();
    return {(shared_place(memory) + 1023) & ~1023u, full, empty};
}

// Whether this thread is of the group that copies.
DEVICE bool is_copying(void)
{
    return __shfl_sync(~0u, threadIdx.x / 128, 0) == 0;
}

// Copy the blocks of pieces of a tile's rows of A and columns of B.
template <int PIECES>
DEVICE void copy_tile(const unsigned char *a, const unsigned char *b, index_t steps, const Stages &in, Turn &turn)
{
    const int stages = STAGES_BYTES / (2 * PIECES * PIECE_BYTES), bytes = PIECES * PIECE_BYTES;
    for (index_t step = 0; step < steps; ++step, turn.next(stages)) {
        const unsigned int to = in.memory + turn.stage * 2 * bytes, barrier = in.full + 8 * turn.stage;
        await(in.empty + 8 * turn.stage, turn.parity ^ 1);
        expect(barrier, 2 * bytes);
        copy_bulk(to, a + step * bytes, bytes, barrier);
        copy_bulk(to + bytes, b + step * bytes, bytes, barrier);
    }
}

// sum += pieces of A times pieces of B, in stages from one on: of the pairs of pieces first to last.
template <int PIECES, int DEPTH>
DEVICE void multiply_pairs(float (&sum)[64], unsigned int a, unsigned int b, int first, int last, bool adds)
{
    const int order[6][2] = {{0, 0}, {0, 1}, {1, 0}, {0, 2}, {2, 0}, {1, 1}};
    begin_products();
    UNROLLED_RANGE(pair, first, last, 1)
        UNROLLED(slice, 2 * DEPTH) {
            const int at = slice / 2 * 2 * PIECES * PIECE_BYTES + slice % 2 * 32;
            multiply<PIECES == 2>(sum, tile_descriptor(a + at + order[pair][0] * PIECE_BYTES),
                                  tile_descriptor(b + at + order[pair][1] * PIECE_BYTES),
                                  adds || pair > first || slice > 0);
        }
    end_products();
}

// The sums of a tile that is copied, in units of both scales: see `multiply` for which of them a thread has, of the row
// 16 w + g + 8 h of the tile for the w-th warp that multiplies.
template <int PIECES>
DEVICE void multiply_tile(float (&total)[64], index_t steps, const Stages &in, Turn &turn)
{
    const int depth = PIECES == 2 ? 2 : 1;  // stages that are multiplied at a time
    const int stages = STAGES_BYTES / (2 * PIECES * PIECE_BYTES), pairs = PIECES == 2 ? 3 : 6;
    const int group = (int)threadIdx.x / 128 - 1, lane = (int)threadIdx.x % 32;
    float leading[64], others[64];
    UNROLLED(i, 64) total[i] = others[i] = 0.0f;
    int before = -1;  // the stage that the products under way read
    for (index_t step = 0; step < steps; step += depth) {
        UNROLLED(i, depth) await(in.full + 8 * (turn.stage + i), turn.parity);
        const unsigned int a = in.memory + turn.stage * 2 * PIECES * PIECE_BYTES + group * (64 * STEP * 2);
        const unsigned int b = in.memory + (turn.stage * 2 + 1) * PIECES * PIECE_BYTES;
        multiply_pairs<PIECES, depth>(leading, a, b, 0, 1, false);
        multiply_pairs<PIECES, depth>(others, a, b, 1, pairs, true);
        await_products<1>(leading);
        if (before >= 0)
            UNROLLED(i, depth)
                if (lane == 0) arrive(in.empty + 8 * (before + i));
        UNROLLED(i, 64) total[i] += leading[i];
        before = turn.stage;
        UNROLLED(i, depth) turn.next(stages);
    }
    await_products<0>(others);
    UNROLLED(i, depth)
        if (lane == 0) arrive(in.empty + 8 * (before + i));
    const float lowered = PIECES == 2 ? 1.0f / LIFT : 1.0f;
    UNROLLED(i, 64) total[i] = fmaf(others[i], lowered, total[i]);
}
