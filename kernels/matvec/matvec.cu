// y = A x for a batch: A is m x k, with any strides (in elements).
//
// Two kernels. matvec_rows puts LANES threads along each row of A (for rows that are contiguous, or
// nearly); matvec_columns puts a thread on each row, or on WIDTH neighbouring rows (for columns that
// are contiguous: a transposed A). Both take k in `parts` chunks: with parts > 1, y is the scratch
// buffer, one result per part, and sum_partials (partial.cu) follows.
// Per product: 2 m k flops, (m k + k + m) elements; A is read once, so memory is the limit.
//
// Preconditions. WIDTH = 1: none. WIDTH > 1: the contiguous stride of A is 1, and its other strides,
// the contiguous extent of A, and A's address are multiples of WIDTH; for rows, the same of x, and of
// `chunk`. chunk * parts >= k > chunk * (parts - 1).

#include "matvec_common.cu"

// A block takes GROUPS * ROWS rows, with LANES threads on ROWS of them at once: with short rows, what is
// loaded of x then serves several. A thread has ROWS * DEPTH loads of A in flight. Rows past the last
// one repeat it, and are not stored; steps past the end of k load nothing, so that an infinity in A
// meets no made-up zero of x.
MATVEC(matvec_rows)
{
    SHARED REAL sums[ROWS * THREADS];
    FIND_BLOCK
    const index_t row = ((index_t)tile * GROUPS + group) * ROWS;

    REAL sum[ROWS];
    index_t line[ROWS];
    UNROLL
    for (int i = 0; i < ROWS; ++i) {
        sum[i] = 0;
        line[i] = (row + i < m ? row + i : m - 1) * a_row;
    }
    A += b * a_batch;
    x += b * x_batch;

    NO_UNROLL
    for (index_t j = begin + lane * WIDTH; j < end; j += LANES * WIDTH * DEPTH) {
        VECTOR a[DEPTH][ROWS];
        VECTOR xs[DEPTH];
        UNROLL
        for (int u = 0; u < DEPTH; ++u) {
            const index_t at = j + u * LANES * WIDTH;
            SET_ZERO(xs[u]);
            UNROLL
            for (int i = 0; i < ROWS; ++i) { SET_ZERO(a[u][i]); }
            if (at < end) {
                xs[u] = AT(x, WIDTH == 1 ? at * x_element : at);
                UNROLL
                for (int i = 0; i < ROWS; ++i)
                    a[u][i] = AT_ONCE(A + line[i], WIDTH == 1 ? at * a_col : at);
            }
        }
        UNROLL
        for (int u = 0; u < DEPTH; ++u) {
            UNROLL
            for (int i = 0; i < ROWS; ++i) { ADD_DOT(sum[i], a[u][i], xs[u]); }
        }
    }

    ADD_LANES(sum, sums, lane)
    if (lane == 0) {
        UNROLL
        for (int i = 0; i < ROWS; ++i)
            if (row + i < m) y[part * y_part + b * y_batch + (row + i) * y_element] = sum[i];
    }
}

// A block takes LANES * WIDTH rows, and its GROUPS groups take every GROUPS-th column of the part.
// A thread has DEPTH loads of A in flight.
MATVEC(matvec_columns)
{
    SHARED VECTOR sums[GROUPS * LANES];
    FIND_BLOCK
    const index_t row = ((index_t)tile * LANES + lane) * WIDTH;

    VECTOR sum;
    SET_ZERO(sum);
    A += b * a_batch + (row < m ? row : m - WIDTH) * (WIDTH == 1 ? a_row : 1);
    x += b * x_batch;

    NO_UNROLL
    for (index_t j = begin + group; j < end; j += GROUPS * DEPTH) {
        VECTOR a[DEPTH];
        REAL xs[DEPTH];
        UNROLL
        for (int u = 0; u < DEPTH; ++u) {
            const index_t at = j + u * GROUPS;
            xs[u] = 0;
            SET_ZERO(a[u]);
            if (at < end) {
                xs[u] = x[at * x_element];
                a[u] = AT_ONCE(A, at * a_col);
            }
        }
        UNROLL
        for (int u = 0; u < DEPTH; ++u) { ADD_SCALED(sum, a[u], xs[u]); }
    }

    // GROUPS sums of a row become one, four at a time.
    LOCAL VECTOR *mine = sums + threadIdx.x;
    *mine = sum;
    UNROLL
    for (int width = GROUPS; width > 1; width = width >= 4 ? width / 4 : 1) {
        const int next = width >= 4 ? width / 4 : 1;
        __syncthreads();
        if (group < next) {
            UNROLL
            for (int other = next; other < width; other += next) {
                const VECTOR more = mine[other * LANES];
                ADD_SCALED(sum, more, (REAL)1);
            }
            *mine = sum;
        }
    }
    if (group == 0 && row < m) {
        y += part * y_part + b * y_batch;
        STORE_EACH(y, row, y_element, sum);
    }
}
