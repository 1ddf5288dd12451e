// Weighted sums of the points of each cluster, for any d and k: partial[part]: (k, d) and
// partial_weights[part]: k, of the rows part * length ... of X. No atomics: a thread adds rows in order.
//
// A block takes the rows of a part, SPAN of the clusters, and LANES columns at a time. Groups of LANES
// threads take rows in turn. A thread has a sum for each cluster in shared memory, adds its column of
// the rows of those clusters, and the groups' sums are added in order.
// X is (n, d), contiguous. Per point: d elements read, and its label for each span and LANES columns.
//
// Preconditions: SPAN * spans >= k; length * parts >= n; LANES divides THREADS. `weights` is not read
// unless WEIGHTED.

#define IN_FLIGHT 32
#define GROUPS (THREADS / LANES)

#include "kmeans_state.cu"

KERNEL(THREADS, 1)
sum_by_label(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
             GLOBAL const int *RESTRICT labels, GLOBAL REAL *RESTRICT partial,
             GLOBAL REAL *RESTRICT partial_weights, GLOBAL const int *RESTRICT state, index_t n,
             index_t d, index_t k, index_t spans, index_t length)
{
    SHARED REAL sums[SPAN * THREADS];
    SHARED REAL totals[SPAN * GROUPS];
    if (state[STOPPED]) return;

    const int thread = (int)threadIdx.x, lane = thread % LANES, group = thread / LANES;
    const index_t part = blockIdx.x / spans, first_cluster = blockIdx.x % spans * SPAN;
    const index_t end = (part + 1) * length < n ? (part + 1) * length : n;
    for (index_t first = 0; first < d; first += LANES) {
        const index_t column = first + lane;
        const int is_total = first == 0 && lane == 0;
        for (int c = 0; c < SPAN; ++c) {
            sums[c * THREADS + thread] = 0;
            if (is_total) totals[c * GROUPS + group] = 0;
        }
        for (index_t from = part * length + group; from < end; from += IN_FLIGHT * GROUPS) {
            int cluster[IN_FLIGHT];
            REAL x[IN_FLIGHT];
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u) {
                const index_t row = from + u * GROUPS;
                cluster[u] = row < end ? labels[row] - (int)first_cluster : -1;
                if (cluster[u] >= SPAN) cluster[u] = -1;
            }
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u)
                x[u] = cluster[u] >= 0 && column < d ? X[(from + u * GROUPS) * d + column] : (REAL)0;
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u) {
                if (cluster[u] < 0) continue;
                const REAL weight = WEIGHTED ? weights[from + u * GROUPS] : (REAL)1;
                sums[cluster[u] * THREADS + thread] += weight * x[u];
                if (is_total) totals[cluster[u] * GROUPS + group] += weight;
            }
        }
        __syncthreads();
        for (int c = group; c < SPAN && first_cluster + c < k; c += GROUPS) {
            const index_t out = part * k + first_cluster + c;
            REAL sum = 0, total = 0;
            for (int other = 0; other < GROUPS; ++other) {
                sum += sums[c * THREADS + other * LANES + lane];
                total += totals[c * GROUPS + other];
            }
            if (column < d) partial[out * d + column] = sum;
            if (is_total) partial_weights[out] = total;
        }
        __syncthreads();
    }
}
