// k-means step by step, to be read in this order: what each step of the way to the other kernels of this
// family brings. Every kernel takes any shape; distances are sums of squared differences.
//
//   naive      a thread for each point; a point's elements lie together (x_row = d, x_column = 1)
//   coalesced  the same kernel, with the elements of neighbouring points together (1, n)
//   shared     centroids come to shared memory, CENTROIDS elements at a time
//   reduction  sums of clusters by parts of the rows, which are added up afterwards
//   occupancy  blocks of 512 threads: fewer copies of the centroids, fewer reads of the labels. Larger blocks
//              lose the L1 reuse of a point's elements

#ifndef REAL
#define REAL float
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef CENTROIDS
#define CENTROIDS 1024
#endif
#ifndef WEIGHTED
#define WEIGHTED 0
#endif

#include "kmeans_state.cu"

// naive, coalesced: the nearest centroid of a point. Per point: 3 d k flops, d k elements of X and of the
// centroids asked of memory or a cache.
KERNEL(THREADS, 1)
assign_points(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT centroids,
              GLOBAL int *RESTRICT labels, GLOBAL int *RESTRICT state, index_t n, index_t d, index_t k,
              index_t x_row, index_t x_column)
{
    if (state[STOPPED]) return;
    const index_t row = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= n) return;
    REAL smallest = (REAL)INFINITY;
    int label = 0;
    for (index_t c = 0; c < k; ++c) {
        REAL distance = 0;
        for (index_t j = 0; j < d; ++j) {
            const REAL apart = X[row * x_row + j * x_column] - centroids[c * d + j];
            distance += apart * apart;
        }
        if (distance < smallest) {
            smallest = distance;
            label = (int)c;
        }
    }
    write_label(labels, state, row, label);
}

// shared, occupancy: as many whole centroids at a time as CENTROIDS elements hold; of a longer one, so
// many of its elements. Per point: 3 d k flops, d k elements of X asked of memory or a cache; per
// block: d k elements of the centroids.
KERNEL(THREADS, 1)
assign_shared(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT centroids,
              GLOBAL int *RESTRICT labels, GLOBAL int *RESTRICT state, index_t n, index_t d, index_t k,
              index_t x_row, index_t x_column)
{
    SHARED REAL held[CENTROIDS];
    if (state[STOPPED]) return;
    const index_t row = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const int wide = d < CENTROIDS ? (int)d : CENTROIDS;
    const int high = CENTROIDS / wide;
    REAL smallest = (REAL)INFINITY, distance = 0;
    int label = 0;
    for (index_t first = 0; first < k; first += high) {
        const int many = k - first < high ? (int)(k - first) : high;
        for (index_t begin = 0; begin < d; begin += wide) {
            const int length = d - begin < wide ? (int)(d - begin) : wide;
            __syncthreads();
            for (int at = (int)threadIdx.x; at < many * length; at += THREADS)
                held[at] = centroids[(first + at / length) * d + begin + at % length];
            __syncthreads();
            if (row >= n) continue;
            for (int c = 0; c < many; ++c) {
                if (begin == 0) distance = 0;
                for (int j = 0; j < length; ++j) {
                    const REAL apart = X[row * x_row + (begin + j) * x_column] - held[c * length + j];
                    distance += apart * apart;
                }
                if (begin + length == d && distance < smallest) {
                    smallest = distance;
                    label = (int)(first + c);
                }
            }
        }
    }
    if (row < n) write_label(labels, state, row, label);
}

// The sums of clusters: a thread for each element of each centroid, and one for its weight, looks at all
// rows of a part. naive to shared have one part, reduction and occupancy many: partial[part].
// Per centroid: the labels once, and its own points.
KERNEL(THREADS, 1)
sum_parts(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
          GLOBAL const int *RESTRICT labels, GLOBAL REAL *RESTRICT partial,
          GLOBAL REAL *RESTRICT partial_weights, GLOBAL const int *RESTRICT state, index_t n, index_t d,
          index_t k, index_t x_row, index_t x_column, index_t parts, index_t length)
{
    if (state[STOPPED]) return;
    const index_t part = blockIdx.x % parts;
    const index_t pair = blockIdx.x / parts * THREADS + threadIdx.x;
    if (pair >= k * (d + 1)) return;
    const int c = (int)(pair / (d + 1));
    const index_t j = pair % (d + 1);
    const index_t end = (part + 1) * length < n ? (part + 1) * length : n;
    REAL sum = 0;
    for (index_t row = part * length; row < end; ++row) {
        if (labels[row] != c) continue;
        const REAL x = j < d ? X[row * x_row + j * x_column] : (REAL)1;
        sum += WEIGHTED ? x * weights[row] : x;
    }
    if (j < d)
        partial[(part * k + c) * d + j] = sum;
    else
        partial_weights[part * k + c] = sum;
}

// Y = X^T: elements of neighbouring points together. A block turns a square of it in shared memory, so that
// reading and writing are both by whole lines. Per element: 2 moved. THREADS is a multiple of 32.
KERNEL(THREADS, 1)
turn_points(GLOBAL const REAL *RESTRICT X, GLOBAL REAL *RESTRICT turned, index_t n, index_t d)
{
    SHARED REAL square[32 * 33];
    const index_t squares = (d + 31) / 32;
    const index_t row = blockIdx.x / squares * 32;
    const index_t column = blockIdx.x % squares * 32;
    const int x = (int)threadIdx.x % 32;
    for (int y = (int)threadIdx.x / 32; y < 32; y += THREADS / 32)
        if (row + y < n && column + x < d) square[y * 33 + x] = X[(row + y) * d + column + x];
    __syncthreads();
    for (int y = (int)threadIdx.x / 32; y < 32; y += THREADS / 32)
        if (column + y < d && row + x < n) turned[(column + y) * n + row + x] = square[x * 33 + y];
}
