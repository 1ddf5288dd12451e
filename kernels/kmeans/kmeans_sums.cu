// Weighted sums of the points of each cluster, for any d and k: partial[part]: (k, d) and
// partial_weights[part]: k, of the rows part * length ... of X. No atomics: rows are added in order.
//
// A block takes the rows of a part, and SPAN of the clusters. First it sorts: CHUNK labels at a time
// come to shared memory; thread (segment, cluster) counts its cluster in its segment of them, the counts
// are added up along clusters and segments, and the thread lists its rows from there on. A row's order
// in the list is its order in X. Then LANES threads take a cluster: they read its rows by vectors, and
// each keeps the sums of its own columns.
// X is (n, d), contiguous. Per point: d elements read, k / 2 comparisons by vectors of four labels.
//
// Preconditions: SPAN is a power of two, at most THREADS, and SPAN * spans >= k; CHUNK is a multiple of
// 4 * THREADS / SPAN, at most 65536; length * parts >= n. VECTORS = 1: d and the address of X are
// multiples of WIDTH elements. `weights` is not read unless WEIGHTED.

#ifndef REAL
#define REAL float
#define WIDTH 4
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef SPAN
#define SPAN 256
#define LANES 32
#define CHUNK 4096
#define WEIGHTED 0
#endif
#define IN_FLIGHT 4

#include "vectors.cu"
#include "kmeans_state.cu"

#define SEGMENTS (THREADS / SPAN)
#define SEGMENT (CHUNK / SEGMENTS)

KERNEL(THREADS, 1)
sum_by_label(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
             GLOBAL const int *RESTRICT labels, GLOBAL REAL *RESTRICT partial,
             GLOBAL REAL *RESTRICT partial_weights, GLOBAL const int *RESTRICT state, index_t n,
             index_t d, index_t k, index_t spans, index_t length)
{
    SHARED int4 shared_labels[CHUNK / 4];
    SHARED unsigned short listed[CHUNK];
    SHARED int ends[THREADS];
    if (state[STOPPED]) return;

    const int thread = (int)threadIdx.x;
    const index_t part = blockIdx.x / spans;
    const int first_cluster = (int)(blockIdx.x % spans) * SPAN;
    const int cluster = thread % SPAN;
    const int segment = thread / SPAN;
    const index_t end = (part + 1) * length < n ? (part + 1) * length : n;
    LOCAL int *const each_label = (LOCAL int *)shared_labels;

    for (index_t begin = part * length; begin < end || begin == part * length; begin += CHUNK) {
        const int rows = end - begin < CHUNK ? (int)(end - begin) : CHUNK;
        for (int row = thread; row < CHUNK; row += THREADS)
            each_label[row] = row < rows ? labels[begin + row] - first_cluster : -1;
        __syncthreads();

        // How many of the segment's rows are the cluster's, and where in the list they end: clusters in
        // order, and of each cluster the segments in order.
        LOCAL const int4 *const own = shared_labels + segment * (SEGMENT / 4);
        int count = 0;
        for (int at = 0; at < SEGMENT / 4; ++at) {
            const int4 four = own[at];
            count += (four.x == cluster) + (four.y == cluster) + (four.z == cluster) +
                     (four.w == cluster);
        }
        const int place = cluster * SEGMENTS + segment;
        int sum = count;
        ends[place] = sum;
        for (int distance = 1; distance < THREADS; distance *= 2) {
            __syncthreads();
            const int before = place >= distance ? ends[place - distance] : 0;
            __syncthreads();
            sum += before;
            ends[place] = sum;
        }
        int to = sum - count;
        for (int at = 0; at < SEGMENT / 4 && to < sum; ++at) {
            const int4 four = own[at];
            const int row = segment * SEGMENT + at * 4;
            if (four.x == cluster) listed[to++] = (unsigned short)row;
            if (four.y == cluster) listed[to++] = (unsigned short)(row + 1);
            if (four.z == cluster) listed[to++] = (unsigned short)(row + 2);
            if (four.w == cluster) listed[to++] = (unsigned short)(row + 3);
        }
        __syncthreads();

        for (int c = thread / LANES; c < SPAN && first_cluster + c < k; c += THREADS / LANES) {
            const int from = c > 0 ? ends[c * SEGMENTS - 1] : 0;
            const int until = ends[c * SEGMENTS + SEGMENTS - 1];
            const index_t out = part * k + first_cluster + c;
            const int again = begin > part * length;
            for (index_t column = thread % LANES * WIDTH; column < d; column += LANES * WIDTH) {
                REAL sums[WIDTH];
                if (again) {
                    LOAD(sums, partial + out * d + column);
                } else {
                    SET_ZERO(sums);
                }
                for (int at = from; at < until; at += IN_FLIGHT) {
                    REAL x[IN_FLIGHT][WIDTH];
                    UNROLL
                    for (int u = 0; u < IN_FLIGHT; ++u) {
                        SET_ZERO(x[u]);
                        if (at + u < until) {
                            const index_t row = begin + listed[at + u];
                            LOAD(x[u], X + row * d + column);
#if WEIGHTED
                            const REAL weight = weights[row];
                            EACH(w) x[u][w] *= weight;
#endif
                        }
                    }
                    UNROLL
                    for (int u = 0; u < IN_FLIGHT; ++u) EACH(w) sums[w] += x[u][w];
                }
                STORE(partial + out * d + column, sums);
            }
            if (thread % LANES == 0) {
                REAL weight = again ? partial_weights[out] : (REAL)0;
#if WEIGHTED
                for (int at = from; at < until; ++at) weight += weights[begin + listed[at]];
#else
                weight += (REAL)(until - from);
#endif
                partial_weights[out] = weight;
            }
        }
        __syncthreads();
    }
}
