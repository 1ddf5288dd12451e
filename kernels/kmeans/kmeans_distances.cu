// Squared distances by differences: of points to their own centroids, and to candidates for new ones.

#define SUMS 1

#include "block_sums.cu"

// The inertia: a block's part of the sum over i of weights[i] |x_i - centroids[labels[i]]|^2 is written to
// partial[block]. LANES threads share a row. `weights` is not read unless weighted.
// X is (n, d), contiguous. Per element: 3 flops, 1 element moved.
KERNEL(THREADS, 1)
inertia(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
        GLOBAL const REAL *RESTRICT centroids, GLOBAL const int *RESTRICT labels,
        GLOBAL double *RESTRICT partial, index_t n, index_t d, index_t blocks, index_t weighted)
{
    SHARED double scratch[THREADS];
    const int thread = (int)threadIdx.x;
    const index_t rows = blocks * (THREADS / LANES);
    double sum[1];
    sum[0] = 0;
    for (index_t row = (index_t)blockIdx.x * (THREADS / LANES) + thread / LANES; row < n; row += rows) {
        const index_t c = labels[row];
        double of_row = 0;
        for (index_t j = thread % LANES; j < d; j += LANES) {
            const REAL apart = X[row * d + j] - centroids[c * d + j];
            of_row += (double)apart * apart;
        }
        sum[0] += weighted ? of_row * weights[row] : of_row;
    }
    write_block_sums(sum, scratch, partial, thread, blockIdx.x);
}

// distances[i] = |x_i - centroids[labels[i]]|^2. A thread for each point.
KERNEL(THREADS, 1)
own_distances(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT centroids,
              GLOBAL const int *RESTRICT labels, GLOBAL REAL *RESTRICT distances, index_t n, index_t d)
{
    const index_t row = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (row >= n) return;
    const index_t c = labels[row];
    REAL sum = 0;
    for (index_t j = 0; j < d; ++j) {
        const REAL apart = X[row * d + j] - centroids[c * d + j];
        sum += apart * apart;
    }
    distances[row] = sum;
}
