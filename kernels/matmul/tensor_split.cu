// Cuts both operands of a float32 product into 16-bit pieces (tensor_pieces.cu), and finds out by which pieces, if any,
// the product is as accurate as in float32. CUDA C only.
//
// PIECES = 2  `split`: a block looks at all k of some rows: largest and smallest magnitude, then how many elements are
//             far below the largest; it leaves a Finding, the rows' exponents and two pieces of float16.
// PIECES = 3  after it: each block reads all findings, the first one notes who computes. Where that is bfloat16's turn
//             the operands are cut again, by the exponents that are there; else nothing is done.
//
// A block has all k of some rows; neighbouring threads have neighbours in a row where k is fast (a_k, b_k), else those in
// neighbouring rows, so that they read neighbours. It reads k elements of each row twice, the second time from the L2 cache if that holds them,
// and writes 2 PIECES bytes for each. Rows up to a multiple of PANEL and k up to one of 64 are filled with zeros.
//
// Preconditions. vectors: where k is fast its stride is 1, and the other strides and the addresses are multiples of 16
// bytes. a_blocks, b_blocks: groups of a_rows or b_rows rows, in all matrices of the batch that differ; a thread block
// takes one after the other. Offsets are in bytes from `partial`, which 128 divides; each group has a finding, A's first.

#include "tensor_pieces.cu"
#include "tensor_cut.cu"

#define THREADS 512
#define MOST_ROWS 32
#define SPECIAL 0x7f800000u  // bits from which on a magnitude is infinite or no number
#define TINY 0.0001220703125f  // 2^-13, 2^-27 of the largest: less precise from here on in two pieces
#define LARGE 1.0f
#define LEAST_EXPONENT (-100)

struct Operand {
    const float *from;
    index_t rows, k, row_stride, k_stride, batch_stride;
    unsigned char *pieces;
    int *exponents;
    int rows_at_once;
};

struct Shared {
    unsigned int largest[MOST_ROWS], tiny[MOST_ROWS], large[MOST_ROWS];
};

// Add up, or take the largest of, what the threads of a row found: neighbours in a warp have the same one where k is fast.
#define COMBINE(name, of_warp, of_block) \
    DEVICE void name(unsigned int *shared, unsigned int value, bool fast) \
    { \
        if (fast) value = of_warp(~0u, value); \
        if (!fast || threadIdx.x % 32 == 0) of_block(shared, value); \
    }
COMBINE(most_of, __reduce_max_sync, atomicMax)
COMBINE(sum_of, __reduce_add_sync, atomicAdd)

template <bool FAST>
DEVICE void split_rows(const Operand &of, index_t block, Finding *finding, bool vectors)
{
    const int thread = (int)threadIdx.x, held = of.rows_at_once, each = THREADS / held;  // threads of a row
    const int mine = FAST ? thread / each : thread % held, turn = FAST ? thread % each : thread / held;
    const index_t padded = (of.rows + PANEL - 1) / PANEL * PANEL, groups = (of.k + 63) / 64 * 8;
    const index_t at = block * held, matrix = at / padded, row = at % padded + mine;
    const bool is_there = row < of.rows;
    const float *from = of.from + matrix * of.batch_stride + (is_there ? row : 0) * of.row_stride;
    __shared__ Shared seen;
    float x[8];

#if PIECES == 2
    if (thread < MOST_ROWS) seen.largest[thread] = seen.tiny[thread] = seen.large[thread] = 0;
    __syncthreads();
    unsigned int largest = largest_of(from, turn, each, is_there ? of.k : 0, of.k_stride, FAST && vectors);
    most_of(&seen.largest[mine], largest, FAST);
    __syncthreads();
    largest = seen.largest[mine];
    const int exponent = largest ? (int)(largest >> 23) - 127 : 0;
    const bool is_special = largest >= SPECIAL || exponent < LEAST_EXPONENT;
    if (turn == 0) of.exponents[at + mine] = exponent;
#else
    const int exponent = of.exponents[at + mine];
    const bool is_special = false;
#endif

    const float scale = __uint_as_float((unsigned int)(is_special ? 0 : 127 + TOP - exponent) << 23);
    unsigned char *to = of.pieces + (matrix * padded + row) / PANEL * (groups / 4) * (PIECES * PIECE_BYTES);
    unsigned int tiny = 0, large = 0;
    #pragma unroll 2
    for (index_t group = turn; group < groups; group += each) {
        load(x, from, group * 8, is_there ? of.k : 0, of.k_stride, FAST && vectors);
        UNROLLED(i, 8) {
            x[i] *= scale;
            tiny += x[i] != 0.0f && fabsf(x[i]) < TINY;
            large += fabsf(x[i]) >= LARGE;
        }
        write_pieces<PIECES>(to, row, group, x);
    }

#if PIECES == 2
    sum_of(&seen.tiny[mine], tiny, FAST);
    sum_of(&seen.large[mine], large, FAST);
    __syncthreads();
    if (thread >= 32) return;
    Finding found = {0, TOO_MANY};
    if (thread < held && seen.largest[thread]) {
        const unsigned int most = seen.largest[thread];
        found.tiny = seen.tiny[thread], found.large = seen.large[thread];
        if (most >= SPECIAL || (int)(most >> 23) - 127 < LEAST_EXPONENT || found.tiny > of.k / 16 * 15)
            found.tiny = TOO_MANY;
    }
    found.tiny = __reduce_max_sync(~0u, found.tiny);
    found.large = __reduce_min_sync(~0u, found.large);
    if (thread == 0) *finding = found;
#endif
}

// Who computes, by what was found in all groups of rows.
DEVICE int method_by(const Finding *findings, index_t a_blocks, index_t b_blocks, index_t k)
{
    __shared__ Finding all[2];
    if (threadIdx.x < 2) all[threadIdx.x].tiny = 0, all[threadIdx.x].large = TOO_MANY;
    __syncthreads();
    for (int side = 0; side < 2; ++side) {
        const index_t end = a_blocks + side * b_blocks;
        Finding found = {0, TOO_MANY};
        for (index_t i = side * a_blocks + threadIdx.x; i < end; i += THREADS) {
            found.tiny = max(found.tiny, findings[i].tiny);
            found.large = min(found.large, findings[i].large);
        }
        found.tiny = __reduce_max_sync(~0u, found.tiny);
        found.large = __reduce_min_sync(~0u, found.large);
        if (threadIdx.x % 32 == 0) atomicMax(&all[side].tiny, found.tiny), atomicMin(&all[side].large, found.large);
    }
    __syncthreads();
    return method_for(all[0], all[1], k);
}

KERNEL(THREADS, 2)
split(const float *A, const float *B, unsigned char *partial, index_t m, index_t n, index_t k, index_t a_batch,
      index_t a_row, index_t a_col, index_t b_batch, index_t b_row, index_t b_col, index_t a_blocks,
      index_t b_blocks, index_t a_rows, index_t b_rows, index_t a_k, index_t b_k, index_t vectors, index_t findings_at,
      index_t a_exponents_at, index_t b_exponents_at, index_t a_at, index_t b_at)
{
    Finding *findings = (Finding *)(partial + findings_at);
#if PIECES == 3
    const int who = method_by(findings, a_blocks, b_blocks, k);
    if (blockIdx.x == 0 && threadIdx.x == 0) *(int *)partial = who;
    if (who != BY_BFLOAT16) return;
#endif
    for (index_t block = blockIdx.x; block < a_blocks + b_blocks; block += gridDim.x) {
        const bool is_a = block < a_blocks;
        const Operand of = {
            is_a ? A : B, is_a ? m : n, k, is_a ? a_row : b_col, is_a ? a_col : b_row, is_a ? a_batch : b_batch,
            partial + (is_a ? a_at : b_at), (int *)(partial + (is_a ? a_exponents_at : b_exponents_at)),
            (int)(is_a ? a_rows : b_rows),
        };
        const index_t within = is_a ? block : block - a_blocks;
        if (is_a ? a_k : b_k)
            split_rows<true>(of, within, findings + block, vectors);
        else
            split_rows<false>(of, within, findings + block, vectors);
        __syncthreads();
    }
}
