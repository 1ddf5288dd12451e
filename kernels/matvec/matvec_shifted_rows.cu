// y = A x for a batch: A is m x k with contiguous rows that begin anywhere, so that not all of them, or
// none, begin at a multiple of a vector. What matvec.cu would load element by element.
//
// A thread loads vectors from where vectors may lie: of a row that begins `shift` elements behind such
// a place, those from that place on. The rows WIDTH apart have the same shift, and LANES threads take
// ROWS of these at once, so that the elements of x they need, loaded one by one, serve them all.
// Per product: 2 m k flops, (m k + k + m) elements; A is read once, so memory is the limit.
//
// Preconditions. A's column stride is 1, WIDTH is 4, GROUPS a multiple of it. One part has all of k.

#include "matvec_common.cu"

// Those elements of a vector that are there: from `first` on, up to `last`.
#define LOAD_PARTLY(v, from, step, first, last) \
    if ((first) <= 0 && 0 < (last)) v.x = (from)[0]; \
    if ((first) <= 1 && 1 < (last)) v.y = (from)[(step)]; \
    if ((first) <= 2 && 2 < (last)) v.z = (from)[2 * (step)]; \
    if ((first) <= 3 && 3 < (last)) v.w = (from)[3 * (step)]

MATVEC(matvec_shifted_rows)
{
    SHARED REAL sums[ROWS * THREADS];
    FIND_BLOCK
    const index_t row = (index_t)tile * (GROUPS * ROWS) + group / WIDTH * (ROWS * WIDTH) + group % WIDTH;

    A += b * a_batch;
    const int shift = (int)((((index_t)(size_t)A) / (int)sizeof(REAL) + row * a_row) & (WIDTH - 1));
    const index_t stop = end - begin + shift;  // k and what lies before a row's first element
    A += row * a_row - shift;
    x += b * x_batch - shift * x_element;
    a_row *= WIDTH;

    // Where a row begins or ends within the vector, its elements one by one: in the same loop, so that
    // a warp waits for both at once.
    ADD_ROWS(lane * WIDTH, stop, {
        const int first = at < shift ? shift - (int)at : 0;
        const int last = stop - at < WIDTH ? (int)(stop - at) : WIDTH;
        if (first == 0 && last == WIDTH) {
            LOAD_PARTLY(xs[u], x + at * x_element, x_element, 0, WIDTH);
            UNROLLED(i, ROWS)
                if (row + i * WIDTH < m) a[u][i] = AT_ONCE(A, at + i * a_row);
        } else {
            LOAD_PARTLY(xs[u], x + at * x_element, x_element, first, last);
            UNROLLED(i, ROWS)
                if (row + i * WIDTH < m) { LOAD_PARTLY(a[u][i], A + at + i * a_row, 1, first, last); }
        }
    })
    STORE_ROWS(WIDTH)
}
