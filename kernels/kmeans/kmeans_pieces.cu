// The nearest of k centroids to each of n points in float32, as kmeans_tiles.cu finds them, by the tensor cores of
// compute capability 9.0, from two pieces of float16 of each number (tensor_tile.cu). CUDA C only.
//
// cut_rows       cuts points, once, and centroids in each iteration.
// assign_pieces  a block takes PANEL points and all centroids, PANEL at a time. Each thread keeps for each of its rows
//                the least and the second least of |c|^2 - 2 x.c, and the centroid of the least. Where the two are so
//                near that rounding may have changed their order, the row is put on a list: kmeans_tiles.cu or
//                kmeans_resident.cu label the rows of the list. So all labels are those of float32.
//
// How near: with u = 2^-24, x.c in float32 is wrong by d u |x||c| at most; here by (0.7 d + 13) u |x||c|: cut, cut off
// by the tensor core in each group of 16 products, and added every 64. The rest of a distance is rounded by some u of
// itself. A centroid that may be the nearest has |c| <= |x| + the distance of the one that was found.
//
// Per point: 6 d k flops of float16, 4 d bytes for each 128 centroids from the L2 cache. Cutting: d elements read twice,
// as many bytes written.
//
// Preconditions. steps: blocks of STEP columns, an even number. Pieces as in tensor_pieces.cu, PANEL rows of all columns
// after another; facts: two numbers a row, of a point -2 times its scale and its length (infinite: always on the list),
// of a centroid its scale and norms[c] (infinite where there is none). unsure: how many rows are on the list, and these.

#include "tensor_tile.cu"
#include "tensor_cut.cu"
#include "kmeans_state.cu"

#define CUTTING 256          // threads of a block that cuts
#define LEAST_EXPONENT (-100) // below it a row is cut to zeros,
#define LEAST_LENGTH (-60)   // and below it the squares of its numbers are no numbers of float32
#define ROUNDED 5.9604645e-8f // u

KERNEL(CUTTING, 2)
cut_rows(const float *__restrict__ rows, const float *__restrict__ norms, unsigned char *__restrict__ pieces,
         float2 *__restrict__ facts, int *__restrict__ unsure, const int *__restrict__ state, index_t n, index_t d,
         index_t steps, index_t vectors, index_t are_centroids)
{
    if (are_centroids && state[STOPPED]) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) unsure[0] = 0;
    const int lane = (int)threadIdx.x % 32;
    const index_t row = (index_t)blockIdx.x * (CUTTING / 32) + threadIdx.x / 32, there = row < n ? d : 0;
    const float *from = rows + (row < n ? row : 0) * d;
    float x[8];
    unsigned int largest = 0;
    for (index_t group = lane; group * 8 < there; group += 32) {
        load(x, from, group * 8, there, 1, vectors);
        UNROLL
        for (int i = 0; i < 8; ++i) largest = max(largest, magnitude(x[i]));
    }
    largest = __reduce_max_sync(~0u, largest);
    const int exponent = largest ? (int)(largest >> 23) - 127 : 0;
    const bool is_cut = exponent >= LEAST_EXPONENT;
    const float scale = is_cut ? __uint_as_float((unsigned int)(127 + TOP - exponent) << 23) : 0.0f;
    const float lowered = is_cut ? __uint_as_float((unsigned int)(127 - TOP + exponent) << 23) : 0.0f;

    unsigned char *to = pieces + row / PANEL * steps * (2 * PIECE_BYTES);
    float squares = 0.0f;
    for (index_t group = lane; group < 4 * steps; group += 32) {
        load(x, from, group * 8, there, 1, vectors);
        unsigned int both[4][2];
        UNROLL
        for (int i = 0; i < 8; ++i) {
            x[i] *= scale;
            squares = fmaf(x[i], x[i], squares);
        }
        UNROLL
        for (int i = 0; i < 4; ++i) cut_in_two(x[2 * i], x[2 * i + 1], both[i]);
        UNROLL
        for (int p = 0; p < 2; ++p)
            *(uint4 *)(to + group / 4 * (2 * PIECE_BYTES) + place_of((int)(row % PANEL), (int)(group % 4), p)) =
                make_uint4(both[0][p], both[1][p], both[2][p], both[3][p]);
    }
    UNROLL
    for (int other = 16; other > 0; other /= 2) squares += __shfl_xor_sync(~0u, squares, other);
    if (lane > 0) return;
    if (are_centroids)
        facts[row] = make_float2(lowered, row < n ? norms[row] : INFINITY);
    else
        facts[row] = make_float2(-2.0f * lowered, exponent < LEAST_LENGTH ? INFINITY : sqrtf(squares) * lowered);
}

// The least distances of a row so far, less |x|^2, and the centroid of the least.
struct Nearest {
    float least, second;
    int centroid;
};

DEVICE void look(Nearest &row, float distance, int centroid)
{
    row.second = fminf(row.second, fmaxf(row.least, distance));
    if (distance < row.least) row.centroid = centroid;
    row.least = fminf(row.least, distance);
}

// The lanes that have a row's other centroids get what all of them found.
DEVICE void combine(Nearest &row)
{
    UNROLL
    for (int other = 1; other < 4; other *= 2) {
        const float least = __shfl_xor_sync(~0u, row.least, other), second = __shfl_xor_sync(~0u, row.second, other);
        const int centroid = __shfl_xor_sync(~0u, row.centroid, other);
        row.second = fminf(fminf(row.second, second), fmaxf(row.least, least));
        if (least < row.least) row.centroid = centroid;
        row.least = fminf(row.least, least);
    }
}

// Whether no other centroid can be the nearest to a row of this length in float32.
DEVICE bool is_sure(const Nearest &row, float length, float d)
{
    const float far = length + sqrtf(fmaxf(fmaf(length, length, row.least), 0.0f));  // no |c| that counts is larger
    const float wrong = 4.0f * (2.0f * d + 16.0f) * ROUNDED * length * far + 8.0f * ROUNDED * far * far;
    return row.second - row.least > 1.1f * wrong;
}

KERNEL(THREADS, 1)
assign_pieces(const unsigned char *__restrict__ x_pieces, const float2 *__restrict__ x_facts,
              const unsigned char *__restrict__ c_pieces, const float4 *__restrict__ c_facts,
              int *__restrict__ labels, int *__restrict__ unsure, int *__restrict__ state, index_t n, index_t d,
              index_t steps, index_t tiles)
{
    extern __shared__ __align__(1024) unsigned char memory[];
    __shared__ __align__(8) unsigned long long barriers[2 * MOST_STAGES];
    if (state[STOPPED]) return;
    const Stages in = new_stages(memory, barriers);
    const index_t panels = (n + PANEL - 1) / PANEL, bytes = steps * 2 * PIECE_BYTES;  // of a PANEL
    Turn turn = {0, 0};
    if (is_copying()) {
        fewer_registers<FEW_REGISTERS>();
        if (threadIdx.x > 0) return;
        for (index_t panel = blockIdx.x; panel < panels; panel += gridDim.x)
            for (index_t tile = 0; tile < tiles; ++tile)
                copy_tile<2>(x_pieces + panel * bytes, c_pieces + tile * bytes, steps, in, turn);
        return;
    }
    more_registers<MANY_REGISTERS>();
    const int lane = (int)threadIdx.x % 32, first = ((int)threadIdx.x / 32 - 4) * 16 + lane / 4;
    for (index_t panel = blockIdx.x; panel < panels; panel += gridDim.x) {
        Nearest nearest[2];
        float2 facts[2];
        UNROLL
        for (int half = 0; half < 2; ++half) {
            nearest[half] = {INFINITY, INFINITY, 0};
            facts[half] = x_facts[panel * PANEL + first + 8 * half];
        }
        for (index_t tile = 0; tile < tiles; ++tile) {
            float sum[64];
            multiply_tile<2>(sum, steps, in, turn);
            const int left = (int)tile * PANEL + lane % 4 * 2;
            UNROLL
            for (int j = 0; j < 16; ++j) {
                const float4 two = c_facts[left / 2 + 4 * j];
                UNROLL
                for (int half = 0; half < 2; ++half) {
                    const int i = 4 * j + 2 * half;
                    look(nearest[half], fmaf(sum[i] * facts[half].x, two.x, two.y), left + 8 * j);
                    look(nearest[half], fmaf(sum[i + 1] * facts[half].x, two.z, two.w), left + 8 * j + 1);
                }
            }
        }
        UNROLL
        for (int half = 0; half < 2; ++half) {
            const index_t row = panel * PANEL + first + 8 * half;
            combine(nearest[half]);
            if (lane % 4 || row >= n) continue;
            if (is_sure(nearest[half], facts[half].y, (float)d))
                write_label(labels, state, row, nearest[half].centroid);
            else
                unsure[1 + atomicAdd(unsure, 1)] = (int)row;
        }
    }
}
