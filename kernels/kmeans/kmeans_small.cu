// An iteration for points of few columns and few centroids, in one pass over X: the nearest centroid of each
// of n points, and the weighted sum of each cluster's points.
//
// All k centroids lie in shared memory, a thread has one point in registers. Points come and go through
// shared memory, where a row has one more element: its weight. A thread has up to ITEMS pairs
// (cluster, element), and adds up that element of the block's points that have the cluster's label, one
// by one; if there are fewer pairs than threads, GROUPS of threads share the points. No atomics: a
// block's sums depend on its points' order alone.
// X is (n, D) and centroids (k, D), contiguous. partial[block]: (k, D) sums; partial_weights[block]: k.
// Per point: 2 D k flops, 2 k (D + 1) operations more, and D elements.
//
// Preconditions: k (D + 1) <= ITEMS * THREADS / GROUPS; k * WHOLE <= CENTROIDS; GROUPS is a power of two, and
// a group has at least 4 threads.
// `weights` is not read unless WEIGHTED.

#ifndef REAL
#define REAL float
#define WIDTH 4
#endif
#ifndef D
#define D 2
#define CENTROIDS 64
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef ITEMS
#define WEIGHTED 0
#define GROUPS 8
#define ITEMS 1
#endif

#include "pack.cu"
#include "kmeans_state.cu"

// Elements of a centroid's row in shared memory, whole vectors; of a point's row, odd: no bank twice.
#define WHOLE ((D + WIDTH - 1) / WIDTH * WIDTH)
#define PITCH ((D + 1) | 1)

KERNEL(THREADS, 1)
assign_small(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
             GLOBAL const REAL *RESTRICT centroids, GLOBAL int *RESTRICT labels,
             GLOBAL REAL *RESTRICT partial, GLOBAL REAL *RESTRICT partial_weights,
             GLOBAL int *RESTRICT state, index_t n, index_t k, index_t blocks)
{
    SHARED VECTOR shared_c[CENTROIDS / WIDTH];
    SHARED REAL norms[CENTROIDS / WHOLE + 1];
    SHARED REAL points[THREADS * PITCH];
    SHARED int4 labels_of_rows[THREADS / 4];
    if (state[STOPPED]) n = 0;  // PoCL 3.0 runs what follows a return and a barrier wrong

    const int thread = (int)threadIdx.x;
    const int clusters = (int)k;
    LOCAL REAL *const elements_c = (LOCAL REAL *)shared_c;
    for (int at = thread; at < clusters * WHOLE; at += THREADS) {
        const int j = at % WHOLE;
        elements_c[at] = j < D ? centroids[at / WHOLE * D + j] : (REAL)0;
    }
    __syncthreads();
    for (int c = thread; c < clusters; c += THREADS) {
        REAL norm = 0;
        for (int j = 0; j < D; ++j) norm += elements_c[c * WHOLE + j] * elements_c[c * WHOLE + j];
        norms[c] = norm;
    }

    // A thread's pairs: an element beyond the last is the weight.
    const int group = thread / (THREADS / GROUPS);
    int cluster[ITEMS], element[ITEMS];
    REAL sums[ITEMS];
    UNROLL
    for (int a = 0; a < ITEMS; ++a) {
        const int pair = thread % (THREADS / GROUPS) + a * THREADS;
        cluster[a] = pair / (D + 1);
        element[a] = pair % (D + 1);
        sums[a] = 0;
    }

    for (index_t first = (index_t)blockIdx.x * THREADS; first < n; first += blocks * THREADS) {
        const int rows = n - first < THREADS ? (int)(n - first) : THREADS;
        for (int at = thread; at < rows * D; at += THREADS)
            points[at / D * PITCH + at % D] = X[first * D + at];
        __syncthreads();

        int label = -1;
        if (thread < rows) {
            REAL x[WHOLE];
            UNROLL
            for (int j = 0; j < WHOLE; ++j) x[j] = j < D ? points[thread * PITCH + j] : (REAL)0;
            REAL smallest = (REAL)INFINITY;
            label = 0;
            for (int c = 0; c < clusters; ++c) {
                REAL product = 0;
                UNROLL
                for (int j = 0; j < WHOLE; j += WIDTH) {
                    REAL y[WIDTH];
                    const VECTOR v = shared_c[(c * WHOLE + j) / WIDTH];
                    UNPACK(y, v);
                    UNROLL
                    for (int w = 0; w < WIDTH; ++w) product += x[j + w] * y[w];
                }
                const REAL distance = norms[c] - 2 * product;
                if (distance < smallest) {
                    smallest = distance;
                    label = c;
                }
            }
            write_label(labels, state, first + thread, label);
            const REAL weight = WEIGHTED ? weights[first + thread] : (REAL)1;
            points[thread * PITCH + D] = weight;
#if WEIGHTED
            UNROLL
            for (int j = 0; j < D; ++j) points[thread * PITCH + j] = weight * x[j];
#endif
        }
        ((LOCAL int *)labels_of_rows)[thread] = label;
        __syncthreads();
        for (int row = group * (THREADS / GROUPS); row < (group + 1) * (THREADS / GROUPS); row += 4) {
            const int4 four = labels_of_rows[row / 4];
            UNROLL
            for (int a = 0; a < ITEMS; ++a) {
                LOCAL const REAL *const from = points + row * PITCH + element[a];
                if (four.x == cluster[a]) sums[a] += from[0];
                if (four.y == cluster[a]) sums[a] += from[PITCH];
                if (four.z == cluster[a]) sums[a] += from[2 * PITCH];
                if (four.w == cluster[a]) sums[a] += from[3 * PITCH];
            }
        }
        __syncthreads();
    }

    // Groups' sums are added in order.
#if GROUPS > 1
    points[thread] = sums[0];
    __syncthreads();
    if (group == 0) {
        UNROLL
        for (int other = 1; other < GROUPS; ++other)
            sums[0] += points[thread + other * (THREADS / GROUPS)];
    }
#endif
    if (group == 0) {
        UNROLL
        for (int a = 0; a < ITEMS; ++a) {
            if (cluster[a] >= clusters) continue;
            if (element[a] < D)
                partial[((index_t)blockIdx.x * k + cluster[a]) * D + element[a]] = sums[a];
            else
                partial_weights[(index_t)blockIdx.x * k + cluster[a]] = sums[a];
        }
    }
}
