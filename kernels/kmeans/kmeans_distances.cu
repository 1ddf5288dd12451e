// Squared distances of points from their own centroids, by differences.

#define SUMS 1

#include "block_sums.cu"

// distances[i] = |x_i - centroids[labels[i]]|^2, and a block's part of the inertia, the sum over i of
// weights[i] distances[i], in partial[block]. A thread has a point. `weights` is not read unless weighted.
// X is (n, d), contiguous. Per element: 3 flops, 1 element moved.
KERNEL(THREADS, 1)
own_distances(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
              GLOBAL const REAL *RESTRICT centroids, GLOBAL const int *RESTRICT labels,
              GLOBAL REAL *RESTRICT distances, GLOBAL double *RESTRICT partial, index_t n, index_t d,
              index_t blocks, index_t weighted)
{
    SHARED double scratch[THREADS];
    const int thread = (int)threadIdx.x;
    double sum[1];
    sum[0] = 0;
    for (index_t row = (index_t)blockIdx.x * THREADS + thread; row < n; row += blocks * THREADS) {
        const index_t c = labels[row];
        double of_row = 0;
        for (index_t j = 0; j < d; ++j) {
            const REAL apart = X[row * d + j] - centroids[c * d + j];
            of_row += (double)apart * apart;
        }
        distances[row] = (REAL)of_row;
        sum[0] += weighted ? of_row * weights[row] : of_row;
    }
    write_block_sums(sum, scratch, partial, thread, blockIdx.x);
}
