// An iteration for points of few columns and few centroids, in one pass over X: the nearest centroid of each
// of n points, and the weighted sum of each cluster's points.
//
// All k centroids lie in shared memory, a thread has one point in registers. Points come and go through
// shared memory, where a row has one more element: its weight. A thread has a pair
// (cluster, element), and adds up that element of the block's points that have the cluster's label, one
// by one; if there are fewer pairs than threads, GROUPS of threads share the points. No atomics: a
// block's sums depend on its points' order alone.
// X is (n, D) and centroids (k, D), contiguous. partial[block]: (k, D) sums; partial_weights[block]: k.
// Per point: 2 D k flops, 2 k (D + 1) operations more, and D elements.
//
// Preconditions: k (D + 1) <= THREADS / GROUPS; k * WHOLE <= CENTROIDS; GROUPS is a power of two, and
// a group has at least 4 threads.
// `weights` is not read unless WEIGHTED.

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

    // A thread's pair: an element beyond the last is the weight.
    const int group = thread / (THREADS / GROUPS), pair = thread % (THREADS / GROUPS);
    const int cluster = pair / (D + 1), element = pair % (D + 1);
    REAL sum = 0;

    for (index_t first = (index_t)blockIdx.x * THREADS; first < n; first += blocks * THREADS) {
        const int rows = n - first < THREADS ? (int)(n - first) : THREADS;
        for (int at = thread; at < rows * D; at += THREADS)
            points[at / D * PITCH + at % D] = X[first * D + at];
        __syncthreads();

        int label = -1;
        if (thread < rows) {
            REAL x[WHOLE];
            UNROLLED(j, WHOLE) x[j] = j < D ? points[thread * PITCH + j] : (REAL)0;
            REAL smallest = (REAL)INFINITY;
            label = 0;
            for (int c = 0; c < clusters; ++c) {
                REAL product = 0;
                UNROLLED_RANGE(j, 0, WHOLE, WIDTH) {
                    REAL y[WIDTH];
                    READ(y, shared_c + (c * WHOLE + j) / WIDTH);
                    UNROLLED(w, WIDTH) product += x[j + w] * y[w];
                }
                const REAL distance = norms[c] - 2 * product;
                KEEP_NEAREST(smallest, label, distance, c)
            }
            write_label(labels, state, first + thread, label);
            const REAL weight = WEIGHTED ? weights[first + thread] : (REAL)1;
            points[thread * PITCH + D] = weight;
            if (WEIGHTED) UNROLLED(j, D) points[thread * PITCH + j] = weight * x[j];
        }
        ((LOCAL int *)labels_of_rows)[thread] = label;
        __syncthreads();
        for (int row = group * (THREADS / GROUPS); row < (group + 1) * (THREADS / GROUPS); row += 4) {
            const int4 four = labels_of_rows[row / 4];
            LOCAL const REAL *const from = points + row * PITCH + element;
            if (four.x == cluster) sum += from[0];
            if (four.y == cluster) sum += from[PITCH];
            if (four.z == cluster) sum += from[2 * PITCH];
            if (four.w == cluster) sum += from[3 * PITCH];
        }
        __syncthreads();
    }

    // Groups' sums are added in order.
    if (GROUPS > 1) {
        points[thread] = sum;
        __syncthreads();
        if (group == 0) UNROLLED_RANGE(other, 1, GROUPS, 1) sum += points[thread + other * (THREADS / GROUPS)];
    }
    if (group == 0 && cluster < clusters) {
        const index_t at = (index_t)blockIdx.x * k + cluster;
        if (element < D)
            partial[at * D + element] = sum;
        else
            partial_weights[at] = sum;
    }
}
