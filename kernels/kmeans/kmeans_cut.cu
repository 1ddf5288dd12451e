// Cuts points, once, and centroids, in each iteration, into two pieces of float16 (tensor_pieces.cu), a warp a row: what
// kmeans_pieces.cu multiplies. CUDA C only.
//
// Pieces have PANEL rows of all columns after another, zeros where there are none. facts, two numbers a row: of a point -2
// times its scale, and its length, infinite where its label is never sure; of a centroid its scale and norms[c], infinite
// where there is no centroid. Empties the list of rows that are not sure.
// Per element: read twice, the second time from a cache, and written once.
//
// Preconditions. steps: blocks of STEP columns. vectors: d is a multiple of 4, and the address of 16 bytes. A block for
// each 8 rows, up to a multiple of PANEL.

#include "tensor_pieces.cu"
#include "tensor_cut.cu"
#include "kmeans_state.cu"

#define THREADS 256
#define LEAST_EXPONENT (-100) // below it a row is cut to zeros,
#define LEAST_LENGTH (-60)    // and below it the squares of its numbers are too small for float32

KERNEL(THREADS, 2)
cut_rows(const float *__restrict__ rows, const float *__restrict__ norms, unsigned char *__restrict__ pieces,
         float2 *__restrict__ facts, int *__restrict__ unsure, const int *__restrict__ state, index_t n, index_t d,
         index_t steps, index_t vectors, index_t are_centroids)
{
    if (are_centroids && state[STOPPED]) return;
    if (blockIdx.x == 0 && threadIdx.x == 0) unsure[0] = 0;
    const int lane = (int)threadIdx.x % 32;
    const index_t row = (index_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32, there = row < n ? d : 0;
    const float *from = rows + (row < n ? row : 0) * d;
    const unsigned int largest = __reduce_max_sync(~0u, largest_of(from, lane, 32, there, 1, vectors));
    const int exponent = largest ? (int)(largest >> 23) - 127 : 0;
    const bool is_cut = exponent >= LEAST_EXPONENT;
    const float scale = is_cut ? __uint_as_float((unsigned int)(127 + TOP - exponent) << 23) : 0.0f;
    const float lowered = is_cut ? __uint_as_float((unsigned int)(127 - TOP + exponent) << 23) : 0.0f;

    unsigned char *to = pieces + row / PANEL * steps * (2 * PIECE_BYTES);
    float x[8], squares = 0.0f;
    for (index_t group = lane; group < 4 * steps; group += 32) {
        load(x, from, group * 8, there, 1, vectors);
        UNROLLED(i, 8) {
            x[i] *= scale;
            squares = fmaf(x[i], x[i], squares);
        }
        write_pieces<2>(to, row, group, x);
    }
    UNROLL for (int other = 16; other > 0; other /= 2) squares += __shfl_xor_sync(~0u, squares, other);
    if (lane > 0) return;
    if (are_centroids)
        facts[row] = make_float2(lowered, row < n ? norms[row] : INFINITY);
    else
        facts[row] = make_float2(-2.0f * lowered, exponent < LEAST_LENGTH ? INFINITY : sqrtf(squares) * lowered);
}
