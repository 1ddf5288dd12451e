// Convolution, kernel after kernel: naive first, one idea each, after White (2013), chapter 5. ladder.py has a table of
// the steps. out[i, j] = sum over u, v of taps[u, v] image[i + u - FH / 2, j + v - FW / 2], zero outside of the image:
// results as large as the image, by a filter that comes turned. 2 FH FW flops a result, all of them in every step.
//
// A block has BX x BY threads, a thread one result.

#define IMAGES                                                                                              \
    GLOBAL REAL *RESTRICT out, index_t height, index_t width, index_t filter_height, index_t filter_width

// The thread's place in the block; its result's row and column.
#define FIND_RESULT                                                                                         \
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;                                         \
    const index_t across = (width + BX - 1) / BX;                                                           \
    const index_t row = blockIdx.x / across * BY + y, column = blockIdx.x % across * BX + x;

#define STORE_RESULT                                                                                        \
    if (row < height && column < width) out[row * width + column] = sum;

// An element of the image, 0 outside of it.
DEVICE REAL element(GLOBAL const REAL *image, index_t row, index_t column, index_t height, index_t width)
{
    return row >= 0 && row < height && column >= 0 && column < width ? image[row * width + column] : (REAL)0;
}

// The element that meets the tap (u, v) for the thread's result.
#define OF_IMAGE(u, v)                                                                                      \
    element(image, row - filter_height / 2 + (u), column - filter_width / 2 + (v), height, width)

// -- 1. naive: a thread for each result; every product takes two loads ------------------------------------------------
KERNEL(BX *BY, 1)
convolve_naive(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps, IMAGES)
{
    FIND_RESULT
    REAL sum = 0;
    for (index_t u = 0; u < filter_height; ++u)
        for (index_t v = 0; v < filter_width; ++v) sum += OF_IMAGE(u, v) * taps[u * filter_width + v];
    STORE_RESULT
}

// -- 2. shared: image and filter pass through shared memory (listing 5.2) ---------------------------------------------
// For BY taps of a column of the filter the block brings the 2 BY rows of a column of the image that its results need:
// two loads of the image serve BY products.
KERNEL(BX *BY, 1)
convolve_shared(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps, IMAGES)
{
    SHARED REAL tile[2 * BY][BX];
    SHARED REAL some[BY];
    FIND_RESULT
    REAL sum = 0;
    for (index_t v = 0; v < filter_width; ++v) {
        for (index_t u = 0; u < filter_height; u += BY) {
            const int length = filter_height - u < BY ? (int)(filter_height - u) : BY;
            __syncthreads();
            if (x == 0 && y < length) some[y] = taps[(u + y) * filter_width + v];
            tile[y][x] = OF_IMAGE(u, v);
            tile[y + BY][x] = OF_IMAGE(u + BY, v);
            __syncthreads();
            for (int i = 0; i < length; ++i) sum += tile[y + i][x] * some[i];
        }
    }
    STORE_RESULT
}

// -- 3. row: the filter is gone through by rows (listing 5.3) ---------------------------------------------------------
// For BX taps the block brings 2 BX columns. BX is larger than BY, and a row of the filter lies together in memory.
// Threads with a tap bring it; near and far are elements of the image, BX columns apart.
#define ADD_BY_ROWS(has_tap, tap, near, far)                                                                \
    SHARED REAL tile[BY][2 * BX];                                                                           \
    SHARED REAL some[BX];                                                                                   \
    FIND_RESULT                                                                                             \
    REAL sum = 0;                                                                                           \
    for (index_t u = 0; u < filter_height; ++u) {                                                           \
        for (index_t v = 0; v < filter_width; v += BX) {                                                    \
            const int length = filter_width - v < BX ? (int)(filter_width - v) : BX;                        \
            __syncthreads();                                                                                \
            if (has_tap) some[x] = tap;                                                                     \
            tile[y][x] = near;                                                                              \
            tile[y][x + BX] = far;                                                                          \
            __syncthreads();                                                                                \
            for (int i = 0; i < length; ++i) sum += tile[y][x + i] * some[i];                               \
        }                                                                                                   \
    }                                                                                                       \
    STORE_RESULT

KERNEL(BX *BY, 1)
convolve_row(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps, IMAGES)
{
    ADD_BY_ROWS(y == 0 && x < length, taps[u * filter_width + v + x], OF_IMAGE(u, v), OF_IMAGE(u, v + BX))
}

// -- 4. padded: image and filter are extended in a copy made before (listing 5.4) -------------------------------------
// No tests of edges are left, so that the threads of a warp never part. The copies hold whole blocks and whole pieces
// of BX taps: rows of the image are `pitch` elements apart, those of the filter `tap_pitch`, a multiple of 256 bytes.
#define PADDED                                                                                              \
    GLOBAL const REAL *RESTRICT padded, GLOBAL const REAL *RESTRICT padded_taps, IMAGES, index_t pitch,     \
        index_t tap_pitch

KERNEL(BX *BY, 1)
convolve_padded(PADDED)
{
    ADD_BY_ROWS(y == 0, padded_taps[u * tap_pitch + v + x], padded[(row + u) * pitch + column + v],
                padded[(row + u) * pitch + column + v + BX])
}

// The copy of height x width elements that begins `top` rows and `left` columns inside; zeros around them.
KERNEL(BX *BY, 1)
pad(GLOBAL const REAL *RESTRICT from, GLOBAL REAL *RESTRICT to, index_t height, index_t width, index_t top,
    index_t left, index_t rows, index_t pitch)
{
    const index_t at = (index_t)blockIdx.x * (BX * BY) + threadIdx.x;
    if (at < rows * pitch) to[at] = element(from, at / pitch - top, at % pitch - left, height, width);
}

// -- 5 and 6. unrolled, tuned: fine-tuning (listing 5.5) --------------------------------------------------------------
// As padded; pointers move along in place of products of indices, and the taps of a piece are unrolled, PIECE at a
// time, the last TAIL of them (the filter's width modulo PIECE) too.
#define PIECE (BX < 16 ? BX : 16)
KERNEL(BX *BY, 1)
convolve_unrolled(PADDED)
{
    SHARED REAL tile[BY * 2 * BX];
    SHARED REAL some[BX];
    FIND_RESULT
    GLOBAL const REAL *from = padded + row * pitch + column;
    GLOBAL const REAL *taps = padded_taps + x;
    LOCAL REAL *const mine = tile + y * 2 * BX + x;
    const int taps_wide = (int)filter_width;
    REAL sum = 0;
    NO_UNROLL
    for (int u = 0; u < (int)filter_height; ++u, from += pitch, taps += tap_pitch) {
        NO_UNROLL
        for (int v = 0; v < taps_wide; v += BX) {
            const int pieces = (taps_wide - v < BX ? taps_wide - v : BX) / PIECE;
            const REAL near = from[v], far = from[v + BX];
            __syncthreads();
            mine[0] = near;
            mine[BX] = far;
            if (y == 0) some[x] = taps[v];
            __syncthreads();
            NO_UNROLL
            for (int p = 0; p < pieces; ++p) {
                UNROLLED(i, PIECE) sum += mine[p * PIECE + i] * some[p * PIECE + i];
            }
            if (TAIL > 0 && pieces < BX / PIECE) {
                UNROLLED(i, TAIL) sum += mine[pieces * PIECE + i] * some[pieces * PIECE + i];
            }
        }
    }
    STORE_RESULT
}
