// y = A x for a batch: A is m x k with contiguous columns that begin anywhere, so that not all of them,
// or none, begin at a multiple of a vector. What matvec.cu would load element by element.
//
// A thread loads vectors from where vectors may lie: of column j, WIDTH elements from row
// lane * WIDTH - shift on, where the column begins `shift` elements behind such a place. It takes
// every GROUPS-th column; with GROUPS a multiple of WIDTH all of these have the same shift. The groups'
// sums are put in their places when they are added up. A block loads LANES vectors of a column and
// takes (LANES - 1) * WIDTH rows from them: neighbours load the same vector, mostly from the L2.
// k is taken in `parts` chunks as in matvec.cu.
// Per product: 2 m k flops, (m k + k + m) elements; A is read once, so memory is the limit.
//
// Preconditions. A's row stride is 1. GROUPS is a multiple of WIDTH.
// chunk * parts >= k > chunk * (parts - 1).

#include "matvec_common.cu"

#define TILE_ROWS ((LANES - 1) * WIDTH)
#define SLOTS (GROUPS / WIDTH)

MATVEC(matvec_shifted)
{
    SHARED REAL sums[THREADS * WIDTH];
    const int thread = (int)threadIdx.x;
    FIND_BLOCK

    A += b * a_batch;
    x += b * x_batch;
    // Of the columns begin + group, begin + group + GROUPS, ...; GROUPS * a_col shifts by nothing.
    const int first_shift = (int)((((index_t)(size_t)A) / (int)sizeof(REAL) + begin * a_col) & (WIDTH - 1));
    const int step_shift = (int)(a_col & (WIDTH - 1));
    const int shift = first_shift + group * step_shift & WIDTH - 1;
    const index_t row = (index_t)tile * TILE_ROWS + lane * WIDTH - shift;
    const bool inside = row >= 0 && row + WIDTH <= m;
    const bool somewhere = row > -WIDTH && row < m;

    A += row;
    // Where the matrix begins or ends within the vector, its elements one by one: in the same loop, so
    // that a warp waits for both at once.
    ADD_COLUMNS(somewhere, {
        if (inside) {
            a[u] = AT_ONCE(A, at * a_col);
        } else {
            REAL elements[WIDTH];
            UNROLLED(i, WIDTH) elements[i] = row + i >= 0 && row + i < m ? A[at * a_col + i] : 0;
            PACK(a[u], elements);
        }
    })

    // Row r of the block lies at r + shift in a group's sums. SLOTS threads share a row's groups.
    UNPACK(sums + thread * WIDTH, sum);
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
    if (slot == 0 && r < TILE_ROWS && (index_t)tile * TILE_ROWS + r < m) {
        NO_UNROLL
        for (int other = 1; other < SLOTS; ++other) total += sums[other * (LANES * WIDTH) + r];
        y[part * y_part + b * y_batch + ((index_t)tile * TILE_ROWS + r) * y_element] = total;
    }
}
