// What the steps of the way share that have x in constant memory: its place, their arguments, where a block is, how
// it ends. Included by them.
//
// `held` has `count` elements of each of several vectors, the whole of them or a piece.

#ifndef REAL
#define REAL float
#endif
#ifndef HELD
#define HELD (65536 / (int)sizeof(REAL))
#endif

CONSTANT_MEMORY(REAL, held, HELD)

#define HELD_ARGUMENTS                                                                          \
    index_t m, index_t count, index_t add, index_t tiles, index_t a_start, index_t a_batch,     \
        index_t a_row, index_t a_col, index_t y_start, index_t y_batch, index_t y_element

// Declares the vector that the block is for, where that begins in `held`, the first of the block's SIDE rows, and
// how many of these there are; A points at the first of them.
#define FIND_ROWS                                                                               \
    const index_t vector = blockIdx.x / (unsigned int)tiles;                                    \
    const index_t first = (index_t)(blockIdx.x % (unsigned int)tiles) * SIDE;                   \
    const int own = (int)(vector * count);                                                      \
    const int high = m - first < SIDE ? (int)(m - first) : SIDE;                                \
    A += a_start + vector * a_batch + first * a_row;

// The sums of PARTS threads become that of part 0. `room` has SIDE PARTS elements.
#define ADD_PARTS(room)                                                                         \
    (room)[part * SIDE + thread] = sum;                                                         \
    __syncthreads();                                                                            \
    if (part == 0)                                                                              \
        for (int other = 1; other < PARTS; ++other) sum += (room)[other * SIDE + thread];

// Writes or adds to a row of y.
#define STORE_SUM(row)                                                                          \
    {                                                                                           \
        GLOBAL REAL *const to = y + y_start + vector * y_batch + (row) * y_element;             \
        *to = add ? *to + sum : sum;                                                            \
    }
