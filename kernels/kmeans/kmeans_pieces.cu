// The nearest of k centroids to each of n points in float32, as kmeans_tiles.cu finds them, by the tensor cores of
// compute capability 9.0, from two pieces of float16 of each number (kmeans_cut.cu, tensor_tile.cu). CUDA C only.
//
// A block takes PANEL points and all centroids, PANEL at a time. Each thread keeps for each of its rows the least and the
// second least of |c|^2 - 2 x.c, and the centroid of the least. A row whose label is not sure (kmeans_sure.cu) is put on
// a list: kmeans_tiles.cu labels the rows of the list. So all labels are those of float32.
// The two groups of warps that multiply take turns where the stages hold more than a tile's steps: one multiplies while
// the other one compares.
// Per point: 6 d k flops of float16, 4 d bytes for each PANEL of centroids from the L2 cache.
//
// Preconditions. steps: blocks of STEP columns, an even number. The list, unsure: how many rows, and which.

#include "tensor_tile.cu"
#include "kmeans_state.cu"
#include "kmeans_sure.cu"

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
    UNROLL for (int other = 1; other < 4; other *= 2) {
        const float least = __shfl_xor_sync(~0u, row.least, other), second = __shfl_xor_sync(~0u, row.second, other);
        const int centroid = __shfl_xor_sync(~0u, row.centroid, other);
        row.second = fminf(fminf(row.second, second), fmaxf(row.least, least));
        if (least < row.least) row.centroid = centroid;
        row.least = fminf(row.least, least);
    }
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
    const int group = (int)threadIdx.x / 128, other = 3 - group;
    const bool takes_turns = steps <= MOST_STAGES - 2;
    if (takes_turns && group == 2) give_turn(other);
    for (index_t panel = blockIdx.x; panel < panels; panel += gridDim.x) {
        Nearest nearest[2];
        float2 facts[2];
        UNROLLED(half, 2) {
            nearest[half] = {INFINITY, INFINITY, 0};
            facts[half] = x_facts[panel * PANEL + first + 8 * half];
        }
        for (index_t tile = 0; tile < tiles; ++tile) {
            float sum[64];
            if (takes_turns) await_turn(group);
            multiply_tile<2>(sum, steps, in, turn);
            if (takes_turns) give_turn(other);
            const int left = (int)tile * PANEL + lane % 4 * 2;
            UNROLLED(j, 16) {
                const float4 two = c_facts[left / 2 + 4 * j];
                UNROLLED(half, 2) {
                    const int i = 4 * j + 2 * half;
                    look(nearest[half], fmaf(sum[i] * facts[half].x, two.x, two.y), left + 8 * j);
                    look(nearest[half], fmaf(sum[i + 1] * facts[half].x, two.z, two.w), left + 8 * j + 1);
                }
            }
        }
        UNROLLED(half, 2) {
            const index_t row = panel * PANEL + first + 8 * half;
            combine(nearest[half]);
            if (lane % 4 || row >= n) continue;
            if (is_sure(nearest[half].least, nearest[half].second, facts[half].y, (float)d))
                write_label(labels, state, row, nearest[half].centroid);
            else
                unsure[1 + atomicAdd(unsure, 1)] = (int)row;
        }
    }
    if (takes_turns && group == 1) await_turn(group);
}
