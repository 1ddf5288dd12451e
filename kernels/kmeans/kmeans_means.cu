// The end of an iteration: sums of all parts, new centroids, and whether to go on.

#define SUMS 1

#include "block_sums.cu"
#include "kmeans_state.cu"

// Adds up `scratch` over all threads, in an order that depends on THREADS alone, for all of them. Ends
// with a barrier.
DEVICE double add_up(double value, LOCAL double *scratch, int thread)
{
    add_up_entries(value, scratch, thread);
    const double sum = scratch[0];
    __syncthreads();
    return sum;
}

// Where the packed centroids have element j of centroid c: tiles of (depth, TILE_N).
DEVICE index_t place_packed(index_t c, index_t j, index_t depth)
{
    return (c / TILE_N * depth + j) * TILE_N + c % TILE_N;
}

// Mean of a cluster: a block each. sums[c] = sum over parts of partial[part][c], in order, LANES columns
// side by side; previous[c] = centroids[c]; then centroids[c] = sums[c] / weight, as it is and packed,
// norms[c] = |centroids[c]|^2 and shifts[c] = |centroids[c] - previous[c]|^2. A cluster without weight
// stays where it is and sets state[EMPTY].
// Preconditions: LANES and THREADS are powers of two. Per element: parts + 6 moved.
KERNEL(THREADS, 1)
take_means(GLOBAL const REAL *RESTRICT partial, GLOBAL const REAL *RESTRICT partial_weights,
           GLOBAL REAL *RESTRICT centroids, GLOBAL REAL *RESTRICT previous,
           GLOBAL REAL *RESTRICT packed, GLOBAL REAL *RESTRICT norms, GLOBAL REAL *RESTRICT sums,
           GLOBAL REAL *RESTRICT totals, GLOBAL double *RESTRICT shifts, GLOBAL int *RESTRICT state,
           index_t parts, index_t d, index_t k, index_t depth)
{
    SHARED double scratch[THREADS];
    if (state[STOPPED]) return;
    const int thread = (int)threadIdx.x;
    const int lane = thread % LANES;
    const int group = thread / LANES;
    const index_t c = blockIdx.x;

    double sum = 0;
    for (index_t part = thread; part < parts; part += THREADS) sum += partial_weights[part * k + c];
    const double weight = add_up(sum, scratch, thread);
    double shift = 0, norm = 0;
    for (index_t first = 0; first < d; first += LANES) {
        const index_t j = first + lane;
        sum = 0;
        if (j < d) {
            NO_UNROLL
            for (index_t part = group; part < parts; part += 4 * (THREADS / LANES)) {
                REAL values[4];
                UNROLLED(u, 4) {
                    const index_t p = part + u * (THREADS / LANES);
                    values[u] = 0;
                    if (p < parts) values[u] = partial[(p * k + c) * d + j];
                }
                UNROLLED(u, 4) sum += values[u];
            }
        }
        scratch[thread] = sum;
        for (int half_width = THREADS / LANES / 2; half_width > 0; half_width /= 2) {
            __syncthreads();
            if (group < half_width) scratch[thread] += scratch[thread + half_width * LANES];
        }
        if (group == 0 && j < d) {
            const REAL old = centroids[c * d + j];
            previous[c * d + j] = old;
            sums[c * d + j] = (REAL)scratch[thread];
            if (weight > 0) {
                const REAL mean = (REAL)(scratch[thread] / weight);
                const double moved = (double)mean - old;
                centroids[c * d + j] = mean;
                packed[place_packed(c, j, depth)] = mean;
                shift += moved * moved;
                norm += (double)mean * mean;
            }
        }
        __syncthreads();
    }
    shift = add_up(shift, scratch, thread);
    norm = add_up(norm, scratch, thread);
    if (thread == 0) {
        totals[c] = (REAL)weight;
        shifts[c] = shift;
        if (weight > 0)
            norms[c] = (REAL)norm;
        else
            state[EMPTY] = 1;
    }
}

// Whether to go on; one block. With an empty cluster the iteration is not complete: the host gives the
// centroids. A negative tolerance stops nothing else. Else it stops if at most `most` labels changed,
// where they are counted. Per call: k shifts read.
KERNEL(THREADS, 1)
end_iteration(GLOBAL double *RESTRICT shifts, GLOBAL int *RESTRICT state, index_t k, double tolerance,
              double most)
{
    SHARED double scratch[THREADS];
    const int thread = (int)threadIdx.x;
    double sum = 0;
    for (index_t c = thread; c < k; c += THREADS) sum += shifts[c];
    const double shift = add_up(sum, scratch, thread);
    if (thread == 0 && !state[STOPPED]) {  // no return before: PoCL 3.0 adds 1 THREADS times
        if (state[EMPTY]) {
            state[STOPPED] = EMPTIED;
        } else {
            if (tolerance >= 0 && !state[CHANGED])
                state[STOPPED] = REPEATED;
            else if (tolerance >= 0 && (shift <= tolerance || state[CHANGED] <= most))
                state[STOPPED] = CONVERGED;
            state[ITERATIONS] += 1;
            state[CHANGED] = 0;
        }
    }
}

// Packs centroids of (k, d) as tiles of (depth, TILE_N), and their squared norms; zeros, and infinite
// norms, where there is none. A block for each of the columns of all tiles.
KERNEL(THREADS, 1)
pack_centroids(GLOBAL const REAL *RESTRICT centroids, GLOBAL REAL *RESTRICT packed,
               GLOBAL REAL *RESTRICT norms, index_t d, index_t k, index_t depth)
{
    SHARED double scratch[THREADS];
    const int thread = (int)threadIdx.x;
    const index_t c = blockIdx.x;
    double norm = 0;
    for (index_t j = thread; j < depth; j += THREADS) {
        REAL value = 0;
        if (c < k && j < d) value = centroids[c * d + j];
        packed[place_packed(c, j, depth)] = value;
        norm += (double)value * value;
    }
    norm = add_up(norm, scratch, thread);
    if (thread == 0) norms[c] = c < k ? (REAL)norm : (REAL)INFINITY;
}
