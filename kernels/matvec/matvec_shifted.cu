// y = A x for a batch: A is m x k with contiguous columns that begin anywhere, so that not all of them,
// or none, begin at a multiple of a vector. What matvec.cu would load element by element.
//
// A thread loads vectors from where vectors may lie: of column j, WIDTH elements from row
// lane * WIDTH - shift on, where the column begins `shift` elements behind such a place. It takes
// every GROUPS-th column; with GROUPS a multiple of WIDTH all of these have the same shift. The groups'
// sums are put in their places when they are added up. A block loads LANES vectors of a column and
// takes (LANES - 1) * WIDTH rows from them: neighbours load the same vector, mostly from the L2.
// k is taken in `parts` chunks as in matvec.cu, or by the blocks of a cluster, which then add up their
// sums themselves: CLUSTER = parts.
// Per product: 2 m k flops, (m k + k + m) elements; A is read once, so memory is the limit.
//
// Preconditions. A's row stride is 1. GROUPS is a multiple of WIDTH.
// chunk * parts >= k; without clusters, k > chunk * (parts - 1).

#include "matvec_common.cu"
#include "cluster.cu"

#define TILE_ROWS ((LANES - 1) * WIDTH)
#define SLOTS (GROUPS / WIDTH)

KERNEL(THREADS, 1) IN_CLUSTER
matvec_shifted(GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT x,
               GLOBAL REAL *RESTRICT y, index_t m, index_t k, index_t tiles, index_t parts,
               index_t chunk, index_t a_batch, index_t a_row, index_t a_col, index_t x_batch,
               index_t x_element, index_t y_part, index_t y_batch, index_t y_element)
{
    SHARED REAL sums[THREADS * WIDTH];
    const int thread = (int)threadIdx.x;
    const int lane = thread % LANES;
    const int group = thread / LANES;
    const unsigned int part = blockIdx.x % (unsigned int)parts;
    const unsigned int tile = blockIdx.x / (unsigned int)parts % (unsigned int)tiles;
    const unsigned int b = blockIdx.x / (unsigned int)parts / (unsigned int)tiles;
    const index_t begin = part * chunk;
    const index_t end = begin + chunk < k ? begin + chunk : k;

    A += b * a_batch;
    x += b * x_batch;
    // Of the columns begin + group, begin + group + GROUPS, ...; GROUPS * a_col shifts by nothing.
    const int first_shift = (int)((((index_t)(size_t)A) / (int)sizeof(REAL) + begin * a_col) & (WIDTH - 1));
    const int step_shift = (int)(a_col & (WIDTH - 1));
    const int shift = first_shift + group * step_shift & WIDTH - 1;
    const index_t row = (index_t)tile * TILE_ROWS + lane * WIDTH - shift;
    const bool inside = row >= 0 && row + WIDTH <= m;
    const bool somewhere = row > -WIDTH && row < m;

    VECTOR sum;
    SET_ZERO(sum);
    A += row;
    NO_UNROLL
    for (index_t j = begin + group; j < end && somewhere; j += GROUPS * DEPTH) {
        VECTOR a[DEPTH];
        REAL xs[DEPTH];
        // Where the matrix begins or ends within the vector, its elements one by one: in this loop, so
        // that a warp waits for both at once.
        UNROLL
        for (int u = 0; u < DEPTH; ++u) {
            const index_t at = j + u * GROUPS;
            xs[u] = 0;
            SET_ZERO(a[u]);
            if (at < end) {
                xs[u] = x[at * x_element];
                if (inside) {
                    a[u] = AT_ONCE(A, at * a_col);
                } else {
                    LOAD_PARTLY(a[u], A + at * a_col, 1, -row, m - row);
                }
            }
        }
        UNROLL
        for (int u = 0; u < DEPTH; ++u) { ADD_SCALED(sum, a[u], xs[u]); }
    }
    REAL mine[WIDTH];
    UNPACK(mine, sum);

    // Row r of the block lies at r + shift in a group's sums. SLOTS threads share a row's groups.
    UNROLL
    for (int i = 0; i < WIDTH; ++i) sums[thread * WIDTH + i] = mine[i];
    __syncthreads();
    const int slot = thread / (LANES * WIDTH);
    const int r = thread % (LANES * WIDTH);
    REAL total = 0;
    if (r < TILE_ROWS) {
        NO_UNROLL
        for (int g = slot; g < GROUPS; g += SLOTS)
            total += sums[g * (LANES * WIDTH) + r + (first_shift + g * step_shift & WIDTH - 1)];
    }
    __syncthreads();
    sums[thread] = total;
    __syncthreads();
    const bool mine_to_store = slot == 0 && r < TILE_ROWS && (index_t)tile * TILE_ROWS + r < m;
    if (mine_to_store) {
        NO_UNROLL
        for (int other = 1; other < SLOTS; ++other) total += sums[other * (LANES * WIDTH) + r];
    }
#if CLUSTER > 1
    // The first block of the cluster adds up its parts, in their order.
    if (mine_to_store) sums[thread] = total;
    cluster_barrier();
    if (mine_to_store && part == 0) {
        REAL others[CLUSTER];
        UNROLL
        for (int other = 1; other < CLUSTER; ++other) others[other] = of_block(sums + thread, other);
        UNROLL
        for (int other = 1; other < CLUSTER; ++other) total += others[other];
    }
    cluster_barrier(); // none may end while its sums are read
    const bool whole = part == 0;
#else
    const bool whole = true;
#endif
    if (mine_to_store && whole)
        y[part * y_part + b * y_batch + ((index_t)tile * TILE_ROWS + r) * y_element] = total;
}
