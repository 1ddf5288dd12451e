// Convolution step by step, to be read in this order: the way from one thread a result to convolve_tuned.cu, after A.
// White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn University, 2013, chapter 5.
// out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left]: images of any sizes, strides (in
// elements) and boundaries, extended as extended.cu says. 2 FH FW flops a result, all of them in every step.
//
// 1 naive    a thread for each result. Every product takes two loads
// 1 or constant  the filter in constant memory, which gives one tap to all threads of a warp at once. It has 64 KiB, in
//            float32 128 x 128 taps, which is why White does not go on from it
// 2 shared   image and filter pass through shared memory: for BY taps of a column of the filter, the 2 BY rows of a
//            column of the image that BY results need. Two loads of the image serve BY products
// 3 row      the filter is gone through by rows: for BX taps, 2 BX columns of the image. BX is larger than BY, and a
//            row of the filter lies together in memory
// 4 padded   the image is extended, and the filter's rows begin at multiples of 256 bytes, in a copy made before: no
//            tests of edges are left, so that the threads of a warp never part
// 5 unrolled fine-tuning: loops are unrolled, pointers move along: in convolve_tuned.cu
// 6 tuned    the same kernel, the shape of a block derived from device and filter
//
// A block has BX x BY threads, a thread one result. THREADS is for the copies.

#include "extended.cu"

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 32
#endif
#ifndef BY
#define BY 16
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef RESIDENT  // blocks that find registers on a multiprocessor: at a barrier only other blocks go on
#define RESIDENT 1
#endif

#ifndef HELD  // taps that constant memory has room for
#define HELD (65536 / (int)sizeof(REAL))
#endif

CONSTANT_MEMORY(REAL, held, HELD)

#define ARGUMENTS                                                                               \
    index_t height, index_t width, index_t filter_height, index_t filter_width,                 \
        index_t out_height, index_t out_width, index_t top, index_t left, index_t tap_row,      \
        index_t tap_column, index_t tiles_down, index_t tiles_across, index_t image_batch,      \
        index_t image_row, index_t image_column, index_t out_batch, index_t out_row,            \
        index_t out_column, index_t boundary, double fillvalue

// Declares the thread's place in the block, and its result's row, column and image.
#define FIND_RESULT                                                                             \
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;                               \
    const unsigned int tile = blockIdx.x / (unsigned int)tiles_across;                          \
    const index_t column = (index_t)(blockIdx.x % (unsigned int)tiles_across) * BX + x;          \
    const index_t row = (index_t)(tile % (unsigned int)tiles_down) * BY + y;                     \
    const index_t b = tile / (unsigned int)tiles_down;

#define STORE_RESULT                                                                            \
    if (row < out_height && column < out_width)                                                 \
        out[b * out_batch + row * out_row + column * out_column] = sum;

// An element of the extended image.
DEVICE REAL element(GLOBAL const REAL *image, index_t row, index_t column, index_t height, index_t width,
                    index_t image_row, index_t image_column, int boundary, REAL fillvalue)
{
    const index_t r = extended(row, height, boundary), c = extended(column, width, boundary);
    return r < 0 || c < 0 ? fillvalue : image[r * image_row + c * image_column];
}

// 1. naive, constant. Per result: 2 FH FW loads, half of them from `from`.
#define SUM_ALL(from)                                                                           \
    FIND_RESULT                                                                                 \
    if (row >= out_height || column >= out_width) return;                                       \
    image += b * image_batch;                                                                   \
    REAL sum = 0;                                                                               \
    for (index_t v = 0; v < filter_width; ++v)                                                  \
        for (index_t u = 0; u < filter_height; ++u)                                             \
            sum += element(image, row + u - top, column + v - left, height, width, image_row,   \
                           image_column, (int)boundary, (REAL)fillvalue)                        \
                   * from[u * tap_row + v * tap_column];                                        \
    STORE_RESULT

KERNEL(BX * BY, 1)
convolve_naive(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps,
               GLOBAL REAL *RESTRICT out, ARGUMENTS)
{
    SUM_ALL(taps)
}

KERNEL(BX * BY, 1)
convolve_constant(GLOBAL const REAL *RESTRICT image, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT out, ARGUMENTS)
{
    SUM_ALL(held)
}

// 2. shared. Per result: 2 FH FW / BY loads of the image.
KERNEL(BX * BY, RESIDENT)
convolve_shared(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps,
                GLOBAL REAL *RESTRICT out, ARGUMENTS)
{
    SHARED REAL tile_rows[2 * BY * BX];
    SHARED REAL tile_taps[BY];
    FIND_RESULT
    image += b * image_batch;
    REAL sum = 0;
    for (index_t v = 0; v < filter_width; ++v) {
        for (index_t u = 0; u < filter_height; u += BY) {
            const int some = filter_height - u < BY ? (int)(filter_height - u) : BY;
            __syncthreads();
            if (x == 0 && y < some) tile_taps[y] = taps[(u + y) * tap_row + v * tap_column];
            tile_rows[y * BX + x] = element(image, row + u - top, column + v - left, height, width,
                                           image_row, image_column, (int)boundary, (REAL)fillvalue);
            tile_rows[(y + BY) * BX + x] = element(image, row + u + BY - top, column + v - left, height, width,
                                                 image_row, image_column, (int)boundary, (REAL)fillvalue);
            __syncthreads();
            for (int i = 0; i < some; ++i) sum += tile_rows[(y + i) * BX + x] * tile_taps[i];
        }
    }
    STORE_RESULT
}

// 3. row. Per result: 2 FH FW / BX loads of the image.
KERNEL(BX * BY, RESIDENT)
convolve_row(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps,
             GLOBAL REAL *RESTRICT out, ARGUMENTS)
{
    SHARED REAL tile_rows[BY * 2 * BX];
    SHARED REAL tile_taps[BX];
    FIND_RESULT
    image += b * image_batch;
    REAL sum = 0;
    for (index_t u = 0; u < filter_height; ++u) {
        for (index_t v = 0; v < filter_width; v += BX) {
            const int some = filter_width - v < BX ? (int)(filter_width - v) : BX;
            __syncthreads();
            if (y == 0 && x < some) tile_taps[x] = taps[u * tap_row + (v + x) * tap_column];
            tile_rows[y * 2 * BX + x] = element(image, row + u - top, column + v - left, height, width,
                                               image_row, image_column, (int)boundary, (REAL)fillvalue);
            tile_rows[(y * 2 + 1) * BX + x] = element(image, row + u - top, column + v + BX - left, height, width,
                                                     image_row, image_column, (int)boundary, (REAL)fillvalue);
            __syncthreads();
            for (int i = 0; i < some; ++i) sum += tile_rows[y * 2 * BX + x + i] * tile_taps[i];
        }
    }
    STORE_RESULT
}

// 4. padded. As row, from the copies that pad_image and pad_taps make: in `padded` the rows of an image are
// pad_row elements apart, images pad_batch, and the filter's rows lie from pad_taps on, tap_pitch apart.
KERNEL(BX * BY, RESIDENT)
convolve_padded(GLOBAL const REAL *RESTRICT padded, GLOBAL REAL *RESTRICT out, index_t filter_height,
                index_t filter_width, index_t out_height, index_t out_width, index_t pad_batch, index_t pad_row,
                index_t pad_taps, index_t tap_pitch, index_t tiles_down, index_t tiles_across,
                index_t out_batch, index_t out_row, index_t out_column)
{
    SHARED REAL tile_rows[BY * 2 * BX];
    SHARED REAL tile_taps[BX];
    FIND_RESULT
    REAL sum = 0;
    for (index_t u = 0; u < filter_height; ++u) {
        for (index_t v = 0; v < filter_width; v += BX) {
            const int some = filter_width - v < BX ? (int)(filter_width - v) : BX;
            __syncthreads();
            if (y == 0) tile_taps[x] = padded[pad_taps + u * tap_pitch + v + x];
            tile_rows[y * 2 * BX + x] = padded[b * pad_batch + (row + u) * pad_row + column + v];
            tile_rows[(y * 2 + 1) * BX + x] = padded[b * pad_batch + (row + u) * pad_row + column + v + BX];
            __syncthreads();
            for (int i = 0; i < some; ++i) sum += tile_rows[y * 2 * BX + x + i] * tile_taps[i];
        }
    }
    STORE_RESULT
}

// The extended images, pad_height x pad_row of each. Per element: 2 moved.
KERNEL(THREADS, 1)
pad_image(GLOBAL const REAL *RESTRICT image, GLOBAL REAL *RESTRICT padded, index_t batch, index_t height,
          index_t width, index_t top, index_t left, index_t pad_height, index_t pad_row, index_t image_batch,
          index_t image_row, index_t image_column, index_t boundary, double fillvalue)
{
    const unsigned int across = (unsigned int)((pad_row + THREADS - 1) / THREADS);
    const index_t column = (index_t)(blockIdx.x % across) * THREADS + threadIdx.x;
    const index_t row = blockIdx.x / across % (unsigned int)pad_height;
    const index_t b = blockIdx.x / across / (unsigned int)pad_height;
    if (column < pad_row)
        padded[(b * pad_height + row) * pad_row + column] =
            element(image + b * image_batch, row - top, column - left, height, width, image_row, image_column,
                    (int)boundary, (REAL)fillvalue);
}

// The filter's rows, tap_pitch apart, from pad_taps on; zeros between them.
KERNEL(THREADS, 1)
pad_taps(GLOBAL const REAL *RESTRICT taps, GLOBAL REAL *RESTRICT padded, index_t filter_height,
         index_t filter_width, index_t tap_row, index_t tap_column, index_t pad_taps, index_t tap_pitch)
{
    const index_t at = (index_t)blockIdx.x * THREADS + threadIdx.x;
    const index_t u = at / tap_pitch, v = at % tap_pitch;
    if (u < filter_height)
        padded[pad_taps + at] = v < filter_width ? taps[u * tap_row + v * tap_column] : (REAL)0;
}
