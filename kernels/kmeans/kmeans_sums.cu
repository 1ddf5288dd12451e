// Weighted sums of the points of each cluster, for any d and k: partial[part]: (k, d) and
// partial_weights[part]: k, of the rows part * length ... of X. No atomics: rows are added in order.
//
// A block takes the rows of a part, and SPAN of the clusters. First it sorts CHUNK rows at a time by label,
// stably: 32 threads take 32 neighbouring rows, and each tells how many of them before its own have its
// label; how many came in rows before is counted as they go on. Then LANES threads take a cluster: they
// read its rows by vectors, and each keeps the sums of its own columns.
// X is (n, d), contiguous. Per point: d elements read, 64 comparisons in each of the spans.
//
// Preconditions: SPAN is at most THREADS, a power of two, and SPAN * spans >= k; CHUNK is a multiple of
// THREADS, below 65536; length * parts >= n. WIDTH > 1: d and the address of X are multiples of WIDTH
// elements. `weights` is not read unless WEIGHTED.

#define IN_FLIGHT 4

#include "vectors.cu"
#include "kmeans_state.cu"

#define TOGETHER 32
#define SEGMENTS (THREADS / TOGETHER)
#define STEPS (CHUNK / THREADS)

KERNEL(THREADS, 1)
sum_by_label(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
             GLOBAL const int *RESTRICT labels, GLOBAL REAL *RESTRICT partial,
             GLOBAL REAL *RESTRICT partial_weights, GLOBAL const int *RESTRICT state, index_t n,
             index_t d, index_t k, index_t spans, index_t length)
{
    SHARED int4 shared_labels[CHUNK / 4];
    SHARED unsigned short listed[CHUNK];
    SHARED unsigned short counts[SEGMENTS * SPAN];
    SHARED int ends[THREADS];
    if (state[STOPPED]) return;

    const int thread = (int)threadIdx.x;
    const index_t part = blockIdx.x / spans;
    const int first_cluster = (int)(blockIdx.x % spans) * SPAN;
    const int lane = thread % TOGETHER;
    const int segment = thread / TOGETHER;
    const index_t end = (part + 1) * length < n ? (part + 1) * length : n;
    LOCAL int *const each_label = (LOCAL int *)shared_labels;
    LOCAL unsigned short *const own_counts = counts + segment * SPAN;

    for (index_t begin = part * length; begin < end || begin == part * length; begin += CHUNK) {
        const int rows = end - begin < CHUNK ? (int)(end - begin) : CHUNK;
        for (int row = thread; row < CHUNK; row += THREADS) {
            const int label = row < rows ? labels[begin + row] - first_cluster : -1;
            each_label[row] = label < SPAN ? label : -1;
        }
        for (int at = thread; at < SEGMENTS * SPAN; at += THREADS) counts[at] = 0;
        __syncthreads();

        // How many rows of a thread's segment with the same label come before each of its own.
        int before[STEPS];
        UNROLLED(step, STEPS) {
            const int from = (segment * STEPS + step) * TOGETHER;
            const int label = each_label[from + lane];
            int lower = 0, alike = 0;
            UNROLLED_RANGE(other, 0, TOGETHER, 4) {
                const int4 four = shared_labels[(from + other) / 4];
                lower += (four.x == label && other < lane) + (four.y == label && other + 1 < lane) +
                         (four.z == label && other + 2 < lane) + (four.w == label && other + 3 < lane);
                alike += (four.x == label) + (four.y == label) + (four.z == label) +
                         (four.w == label);
            }
            before[step] = label >= 0 ? own_counts[label] + lower : 0;
            __syncthreads();
            if (label >= 0 && lower + 1 == alike)
                own_counts[label] = (unsigned short)(before[step] + 1);
            __syncthreads();
        }

        // Where the rows of each cluster end in the list, and where those of each segment begin.
        int sum = 0;
        if (thread < SPAN)
            for (int s = 0; s < SEGMENTS; ++s) sum += counts[s * SPAN + thread];
        int place = -sum;
        ends[thread] = sum;
        for (int distance = 1; distance < SPAN; distance *= 2) {
            __syncthreads();
            const int lower = thread >= distance ? ends[thread - distance] : 0;
            __syncthreads();
            sum += lower;
            ends[thread] = sum;
        }
        place += sum;
        if (thread < SPAN) {
            for (int s = 0; s < SEGMENTS; ++s) {
                const int count = counts[s * SPAN + thread];
                counts[s * SPAN + thread] = (unsigned short)place;
                place += count;
            }
        }
        __syncthreads();
        UNROLLED(step, STEPS) {
            const int row = (segment * STEPS + step) * TOGETHER + lane;
            const int label = each_label[row];
            if (label >= 0) listed[own_counts[label] + before[step]] = (unsigned short)row;
        }
        __syncthreads();

        for (int c = thread / LANES; c < SPAN && first_cluster + c < k; c += THREADS / LANES) {
            const int from = c > 0 ? ends[c - 1] : 0;
            const int until = ends[c];
            const index_t out = part * k + first_cluster + c;
            const int again = begin > part * length;
            for (index_t column = thread % LANES * WIDTH; column < d; column += LANES * WIDTH) {
                REAL sums[WIDTH];
                LOAD_IF(again, sums, partial + out * d + column);
                for (int at = from; at < until; at += IN_FLIGHT) {
                    REAL x[IN_FLIGHT][WIDTH];
                    UNROLLED(u, IN_FLIGHT) {
                        SET_ZERO(x[u]);
                        if (at + u < until) {
                            const index_t row = begin + listed[at + u];
                            LOAD(x[u], X + row * d + column);
                            if (WEIGHTED) EACH(w) x[u][w] *= weights[row];
                        }
                    }
                    UNROLLED(u, IN_FLIGHT) EACH(w) sums[w] += x[u][w];
                }
                STORE(partial + out * d + column, sums);
            }
            if (thread % LANES == 0) {
                REAL weight = again ? partial_weights[out] : (REAL)0;
                if (WEIGHTED)
                    for (int at = from; at < until; ++at) weight += weights[begin + listed[at]];
                else
                    weight += (REAL)(until - from);
                partial_weights[out] = weight;
            }
        }
        __syncthreads();
    }
}
