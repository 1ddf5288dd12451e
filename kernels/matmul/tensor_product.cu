// C = A B in float32 by tensor cores, from 16-bit pieces of A and B: compute capability 9.0. CUDA C only.
//
// A block computes PANEL x PANEL of C at a time (tensor_tile.cu), and goes on to other tiles.
//
// Per tile: 2 PANEL^2 k flops, in three or six products; 4 PANEL k PIECES bytes come from the L2 cache or memory.
//
// Preconditions. `partial` begins with who computes: neither float16 nor bfloat16, nothing is done. Offsets are in bytes,
// steps in blocks of STEP, an even number. c_vector: C's column stride is 1, and its row and batch strides and its
// address are multiples of 8 bytes. a_tiles and b_tiles: PANELs from a matrix of the batch to the next, 0 if it repeats.

#include "tensor_tile.cu"

#define BAND 16          // rows of tiles that are computed column by column: they share what the L2 holds

struct Tiles {           // where the tiles of C are, and those of A and B
    index_t batch, down, across, a_between, b_between;
};

struct Place { index_t matrix, row, column; };

DEVICE Place place_of_tile(const Tiles &all, index_t number)
{
    const index_t each = all.down * all.across, within = number % each, band = within / (BAND * all.across);
    const index_t first = band * BAND, rows = min((index_t)BAND, all.down - first), at = within - first * all.across;
    return {number / each, first + at % rows, at / rows};
}

template <int PIECES>
DEVICE void copy_tiles(const unsigned char *A, const unsigned char *B, const Tiles &all, index_t steps,
                       const Stages &in)
{
    Turn turn = {0, 0};
    for (index_t number = blockIdx.x; number < all.batch * all.down * all.across; number += gridDim.x) {
        const Place at = place_of_tile(all, number);
        const index_t bytes = steps * PIECES * PIECE_BYTES;  // of a PANEL
        copy_tile<PIECES>(A + (at.matrix * all.a_between + at.row) * bytes,
                          B + (at.matrix * all.b_between + at.column) * bytes, steps, in, turn);
    }
}

// Write the sums that a warp has of 16 rows of C from `top` on, and of PANEL columns from `left` on, as multiply_tile
// gives them to its lanes; exponents are those of all rows of A and columns of B of this matrix.
DEVICE void write_sums(float *C, const float (&sum)[64], const int *down, const int *across, index_t top, index_t left,
                       index_t m, index_t n, index_t c_row, index_t c_col, bool c_vector)
{
    const int lane = (int)threadIdx.x % 32;
    UNROLLED(half, 2) {
        const index_t r = top + lane / 4 + 8 * half;
        if (r >= m) continue;
        float *to = C + r * c_row;
        UNROLLED(j, 16) {
            const index_t c = left + lane % 4 * 2 + 8 * j;
            const int2 e = *(const int2 *)(across + c);
            const float x = scaled(sum[4 * j + 2 * half], down[r] - 2 * TOP + e.x);
            const float y = scaled(sum[4 * j + 2 * half + 1], down[r] - 2 * TOP + e.y);
            if (c_vector && c + 1 < n) {
                *(float2 *)(to + c) = make_float2(x, y);
            } else {
                if (c < n) to[c * c_col] = x;
                if (c + 1 < n) to[(c + 1) * c_col] = y;
            }
        }
    }
}

template <int PIECES>
DEVICE void multiply_tiles(float *C, const int *a_exponents, const int *b_exponents, const Tiles &all, index_t steps,
                           const Stages &in, index_t m, index_t n, index_t c_batch, index_t c_row, index_t c_col,
                           bool c_vector)
{
    const int warp = (int)threadIdx.x / 32 - 4;
    Turn turn = {0, 0};
    for (index_t number = blockIdx.x; number < all.batch * all.down * all.across; number += gridDim.x) {
        const Place at = place_of_tile(all, number);
        float sum[64];
        multiply_tile<PIECES>(sum, steps, in, turn);
        write_sums(C + at.matrix * c_batch, sum, a_exponents + at.matrix * all.a_between * PANEL,
                   b_exponents + at.matrix * all.b_between * PANEL, at.row * PANEL + warp * 16, at.column * PANEL, m, n,
                   c_row, c_col, c_vector);
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
    const Stages in = new_stages(memory, barriers);
    const Tiles all = {batch, (m + PANEL - 1) / PANEL, (n + PANEL - 1) / PANEL, a_tiles, b_tiles};
    if (is_copying()) {
        fewer_registers<FEW_REGISTERS>();
        if (threadIdx.x > 0) return;
        if (who == BY_FLOAT16)
            copy_tiles<2>(partial + a_at, partial + b_at, all, steps, in);
        else
            copy_tiles<3>(partial + a_at, partial + b_at, all, steps, in);
        return;
    }
    more_registers<MANY_REGISTERS>();
    const int *a = (const int *)(partial + a_exponents_at), *b = (const int *)(partial + b_exponents_at);
    if (who == BY_FLOAT16)
        multiply_tiles<2>(C, a, b, all, steps, in, m, n, c_batch, c_row, c_col, c_vector);
    else
        multiply_tiles<3>(C, a, b, all, steps, in, m, n, c_batch, c_row, c_col, c_vector);
}
