// What matrix-vector kernels are compiled with, and arithmetic on vectors of WIDTH elements of REAL: a
// block has GROUPS groups of LANES threads, each with DEPTH loads in flight of each of ROWS rows.

#define THREADS (LANES * GROUPS)
#include "pack.cu"

// What is done to a vector's components: s += a . b; s += a * b with a scalar b; a = 0; and storing
// them one by one, since y may have any stride.
#if WIDTH == 4
#define ADD_DOT(s, a, b) s += a.x * b.x; s += a.y * b.y; s += a.z * b.z; s += a.w * b.w
#define ADD_SCALED(s, a, b) s.x += a.x * b; s.y += a.y * b; s.z += a.z * b; s.w += a.w * b
#define SET_ZERO(a) a.x = a.y = a.z = a.w = 0
#define STORE_EACH(y, at, stride, v) \
    y[(at) * stride] = v.x; y[(at + 1) * stride] = v.y; \
    y[(at + 2) * stride] = v.z; y[(at + 3) * stride] = v.w
#elif WIDTH == 2
#define ADD_DOT(s, a, b) s += a.x * b.x; s += a.y * b.y
#define ADD_SCALED(s, a, b) s.x += a.x * b; s.y += a.y * b
#define SET_ZERO(a) a.x = a.y = 0
#define STORE_EACH(y, at, stride, v) y[(at) * stride] = v.x; y[(at + 1) * stride] = v.y
#else
#define ADD_DOT(s, a, b) s += a * b
#define ADD_SCALED(s, a, b) s += a * b
#define SET_ZERO(a) a = 0
#define STORE_EACH(y, at, stride, v) y[(at) * stride] = v
#endif

#define AT(pointer, offset) (*(GLOBAL const VECTOR *)((pointer) + (offset)))
#define AT_ONCE(pointer, offset) LOAD_ONCE((GLOBAL const VECTOR *)((pointer) + (offset)))

// ROWS sums of each of a group's LANES threads become one of each in lane 0, four at a time: half the
// barriers of a binary tree. `sums` has room for ROWS of every thread.
#define ADD_LANES(sum, sums, lane) \
    { \
        LOCAL REAL *const mine = (sums) + threadIdx.x; \
        UNROLL \
        for (int i = 0; i < ROWS; ++i) mine[i * THREADS] = sum[i]; \
        UNROLL \
        for (int width = LANES; width > 1; width = width >= 4 ? width / 4 : 1) { \
            const int next = width >= 4 ? width / 4 : 1; \
            __syncthreads(); \
            if (lane < next) { \
                UNROLL \
                for (int i = 0; i < ROWS; ++i) { \
                    UNROLL \
                    for (int other = next; other < width; other += next) \
                        sum[i] += mine[i * THREADS + other]; \
                    mine[i * THREADS] = sum[i]; \
                } \
            } \
        } \
    }

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
