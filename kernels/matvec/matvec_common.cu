// What matrix-vector kernels are compiled with, and arithmetic on vectors of WIDTH elements of REAL: a
// block has GROUPS groups of LANES threads, each with DEPTH loads in flight of each of ROWS rows.

#define THREADS (LANES * GROUPS)
#include "pack.cu"
#include "tree.cu"

// What is done to a vector's components: s += a . b; s += a * b with a scalar b.
#define ADD_DOT4(s, a, b) s += a.x * b.x; s += a.y * b.y; s += a.z * b.z; s += a.w * b.w
#define ADD_DOT2(s, a, b) s += a.x * b.x; s += a.y * b.y
#define ADD_DOT1(s, a, b) s += a * b
#define ADD_DOT(s, a, b) JOIN(ADD_DOT, WIDTH)(s, a, b)
#define ADD_SCALED4(s, a, b) s.x += a.x * b; s.y += a.y * b; s.z += a.z * b; s.w += a.w * b
#define ADD_SCALED2(s, a, b) s.x += a.x * b; s.y += a.y * b
#define ADD_SCALED1(s, a, b) s += a * b
#define ADD_SCALED(s, a, b) JOIN(ADD_SCALED, WIDTH)(s, a, b)

#define AT(pointer, offset) (*(GLOBAL const VECTOR *)((pointer) + (offset)))
#define AT_ONCE(pointer, offset) LOAD_ONCE((GLOBAL const VECTOR *)((pointer) + (offset)))

// Adds up products of ROWS rows with x from the element `from` on, up to `stop`. `load` fetches what is there of
// xs[u] and a[u][...], the vectors of x and of the rows at the element `at`; what is not there stays zero.
#define ADD_ROWS(from, stop, load) \
    REAL sum[ROWS]; \
    UNROLLED(i, ROWS) sum[i] = 0; \
    NO_UNROLL \
    for (index_t j = from; j < (stop); j += LANES * WIDTH * DEPTH) { \
        VECTOR a[DEPTH][ROWS]; \
        VECTOR xs[DEPTH]; \
        UNROLLED(u, DEPTH) { \
            const index_t at = j + u * LANES * WIDTH; \
            CLEAR(xs[u]); \
            UNROLLED(i, ROWS) CLEAR(a[u][i]); \
            if (at < (stop)) load \
        } \
        UNROLLED(u, DEPTH) UNROLLED(i, ROWS) { ADD_DOT(sum[i], a[u][i], xs[u]); } \
    }
// The same of the group's columns, each times its element of x: `load` fetches a[u], the vector of the column `at`. A
// group that is not `inside` has none.
#define ADD_COLUMNS(inside, load) \
    VECTOR sum; \
    CLEAR(sum); \
    NO_UNROLL \
    for (index_t j = begin + group; j < end && (inside); j += GROUPS * DEPTH) { \
        VECTOR a[DEPTH]; \
        REAL xs[DEPTH]; \
        UNROLLED(u, DEPTH) { \
            const index_t at = j + u * GROUPS; \
            xs[u] = 0; \
            CLEAR(a[u]); \
            if (at < end) { \
                xs[u] = x[at * x_element]; \
                load \
            } \
        } \
        UNROLLED(u, DEPTH) { ADD_SCALED(sum, a[u], xs[u]); } \
    }

// ROWS sums of each of a group's LANES threads become one of each in lane 0, which stores them: those of `row`
// and of the rows that follow, `apart` from each other. `sums` has room for ROWS of every thread.
#define STORE_ROWS(apart) \
    LOCAL REAL *const mine = sums + threadIdx.x; \
    UNROLLED(i, ROWS) mine[i * THREADS] = sum[i]; \
    ADD_TREE(LANES, 1, lane, UNROLLED(i, ROWS) { \
        OTHERS sum[i] += mine[i * THREADS + other]; \
        mine[i * THREADS] = sum[i]; \
    }) \
    if (lane == 0) \
        UNROLLED(i, ROWS) \
            if (row + i * (apart) < m) \
                y[part * y_part + b * y_batch + (row + i * (apart)) * y_element] = sum[i];

#define MATVEC(name) \
    KERNEL(THREADS, 1) \
    name(GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT x, GLOBAL REAL *RESTRICT y, \
         index_t m, index_t k, index_t tiles, index_t parts, index_t chunk, index_t a_batch, \
         index_t a_row, index_t a_col, index_t x_batch, index_t x_element, index_t y_part, \
         index_t y_batch, index_t y_element)

// Declares the thread's place in its group and the group's in the block; the block's tile of rows, its
// part of k, from `begin` to `end`, and matrix b of the batch.
#define FIND_BLOCK \
    const int lane = (int)(threadIdx.x % LANES); \
    const int group = (int)(threadIdx.x / LANES); \
    const unsigned int tile = blockIdx.x % (unsigned int)tiles; \
    const unsigned int part = blockIdx.x / (unsigned int)tiles % (unsigned int)parts; \
    const unsigned int b = blockIdx.x / (unsigned int)tiles / (unsigned int)parts; \
    const index_t begin = part * chunk; \
    const index_t end = begin + chunk < k ? begin + chunk : k;
