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

    index_t line[ROWS];
    UNROLLED(i, ROWS) line[i] = (row + i < m ? row + i : m - 1) * a_row;
    A += b * a_batch;
    x += b * x_batch;

    ADD_ROWS(begin + lane * WIDTH, end, {
        xs[u] = AT(x, WIDTH == 1 ? at * x_element : at);
        UNROLLED(i, ROWS) a[u][i] = AT_ONCE(A + line[i], WIDTH == 1 ? at * a_col : at);
    })
    STORE_ROWS(1)
}

// A block takes LANES * WIDTH rows, and its GROUPS groups take every GROUPS-th column of the part.
// A thread has DEPTH loads of A in flight.
MATVEC(matvec_columns)
{
    SHARED VECTOR sums[GROUPS * LANES];
    FIND_BLOCK
    const index_t row = ((index_t)tile * LANES + lane) * WIDTH;

    A += b * a_batch + (row < m ? row : m - WIDTH) * (WIDTH == 1 ? a_row : 1);
    x += b * x_batch;

    ADD_COLUMNS(true, a[u] = AT_ONCE(A, at * a_col);)

    // GROUPS sums of a row become one, four at a time.
    LOCAL VECTOR *mine = sums + threadIdx.x;
    *mine = sum;
    ADD_TREE(GROUPS, 1, group, {
        OTHERS {
            const VECTOR more = mine[other * LANES];
            ADD_SCALED(sum, more, (REAL)1);
        }
        *mine = sum;
    })
    if (group == 0 && row < m) {
        y += part * y_part + b * y_batch + row * y_element;
        JOIN(SCATTER, WIDTH)(y, y_element, sum);
    }
}
