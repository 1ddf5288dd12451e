// The nearest centroid from products that a library made: labels[first + i] = argmin over c of
// norms[c] - 2 products[i, c], the lowest c of several.
//
// LANES threads share a row. products is (rows, k), contiguous. Per product: 2 flops, 1 element moved.

#include "kmeans_block.cu"
#define IN_FLIGHT 8

#include "kmeans_state.cu"

KERNEL(THREADS, 1)
label_rows(GLOBAL const REAL *RESTRICT products, GLOBAL const REAL *RESTRICT norms,
           GLOBAL int *RESTRICT labels, GLOBAL int *RESTRICT state, index_t first, index_t rows,
           index_t k)
{
    SHARED REAL least[THREADS];
    SHARED int nearest[THREADS];
    if (state[STOPPED]) return;
    const int thread = (int)threadIdx.x;
    const int lane = thread % LANES;
    const index_t row = (index_t)blockIdx.x * (THREADS / LANES) + thread / LANES;
    REAL smallest = (REAL)INFINITY;
    int label = 0;
    if (row < rows) {
        for (index_t begin = lane; begin < k; begin += IN_FLIGHT * LANES) {
            REAL distances[IN_FLIGHT];
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u) {
                distances[u] = (REAL)INFINITY;
                if (begin + u * LANES < k)
                    distances[u] =
                        norms[begin + u * LANES] - 2 * LOAD_ONCE(products + row * k + begin + u * LANES);
            }
            UNROLL
            for (int u = 0; u < IN_FLIGHT; ++u) {
                if (distances[u] < smallest) {
                    smallest = distances[u];
                    label = (int)begin + u * LANES;
                }
            }
        }
    }
    least[thread] = smallest;
    nearest[thread] = label;
    UNROLL
    for (int half_width = LANES / 2; half_width > 0; half_width /= 2) {
        __syncthreads();
        if (lane < half_width) {
            const REAL other = least[thread + half_width];
            const int its = nearest[thread + half_width];
            if (other < smallest || (other == smallest && its < label)) {
                smallest = other;
                label = its;
            }
            least[thread] = smallest;
            nearest[thread] = label;
        }
    }
    if (lane == 0 && row < rows) write_label(labels, state, first + row, label);
}
