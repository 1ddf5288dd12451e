// Weighted sums of the points of each cluster, for any d and k: partial[part]: (k, d) and
// partial_weights[part]: k, of the rows part * length ... of X. No atomics: a thread adds rows in order.
//
// A block takes the rows of a part, SPAN of the clusters, and LANES columns at a time, of which the last
// one is the weight. Groups of LANES threads take rows in turn. A thread has a sum for each cluster in
// shared memory, adds its column of the rows of those clusters, and the groups' sums are added in order.
// X is (n, d), contiguous. Per point: d elements read, and its label for each span and LANES columns.
//
// Preconditions: SPAN * spans >= k; length * parts >= n; LANES divides THREADS. `weights` is not read
// unless WEIGHTED.

#define IN_FLIGHT 16

#include "kmeans_state.cu"

KERNEL(THREADS, 1)
sum_by_label(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
             GLOBAL const int *RESTRICT labels, GLOBAL REAL *RESTRICT partial,
             GLOBAL REAL *RESTRICT partial_weights, GLOBAL const int *RESTRICT state, index_t n,
             index_t d, index_t k, index_t spans, index_t length)
{
    SHARED REAL sums[SPAN * THREADS];
    if (state[STOPPED]) return;

    const int thread = (int)threadIdx.x, lane = thread % LANES;
    const index_t part = blockIdx.x / spans, first_cluster = blockIdx.x % spans * SPAN;
    const index_t end = (part + 1) * length < n ? (part + 1) * length : n;
    for (index_t first = 0; first <= d; first += LANES) {
        const index_t column = first + lane;
        for (int c = 0; c < SPAN; ++c) sums[c * THREADS + thread] = 0;
        for (index_t from = part * length + thread / LANES; from < end; from += IN_FLIGHT * (THREADS / LANES)) {
            index_t cluster[IN_FLIGHT];
            REAL x[IN_FLIGHT];
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u) {
                const index_t row = from + u * (THREADS / LANES);
                cluster[u] = row < end ? labels[row] - first_cluster : -1;
            }
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u) {
                const index_t row = from + u * (THREADS / LANES);
                x[u] = 0;
                if (cluster[u] >= 0 && cluster[u] < SPAN && column <= d) {
                    x[u] = column < d ? X[row * d + column] : (REAL)1;
                    if (WEIGHTED) x[u] *= weights[row];
                }
            }
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u)
                if (cluster[u] >= 0 && cluster[u] < SPAN) sums[cluster[u] * THREADS + thread] += x[u];
        }
        __syncthreads();
        for (int c = thread / LANES; c < SPAN && first_cluster + c < k; c += THREADS / LANES) {
            const index_t out = part * k + first_cluster + c;
            REAL sum = 0;
            for (int at = lane; at < THREADS; at += LANES) sum += sums[c * THREADS + at];
            if (column < d) partial[out * d + column] = sum;
            if (column == d) partial_weights[out] = sum;
        }
        __syncthreads();
    }
}
