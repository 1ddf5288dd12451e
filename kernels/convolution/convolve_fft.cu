// Between Fourier transforms, in place, of overlapping tiles of images: tiles out of the image, the
// product with the filter's spectrum, results out of the tiles.
//
// A tile is `length_y` rows of `pitch` = 2 (length_x / 2 + 1) reals, of which length_x hold values, or of
// pitch / 2 complex numbers. Tile number t is tile (t / tiles_x % tiles_y, t % tiles_x) of image
// t / (tiles_y tiles_x); it starts at row start_y + that step_y, column start_x + that step_x.
// Every kernel takes the tiles from `first` on. All of them are limited by memory.
//
// `seen` of the image and of the filter are five numbers, set where results are not finite, and where
// values are not whole, are negative, are 0, are 0 next to another 0 of the row or at its ends (random
// float32 numbers have single zeros: looking at all of these doubled the time). `marks`
// of tiles have a bit for each of a row's reals, 32 in a word: whether it is not 0. By these, results
// get what the direct sum has exactly: whole numbers of whole numbers, nothing negative of what is not,
// 0 where all products are.

#define WIDTH 2
#include "pack.cu"
#define COMPLEX VECTOR
enum { BAD, BROKEN, NEGATIVE, ZERO, PAIR };

#include "extended.cu"

// A word with the bits of 32 neighbouring threads of a block; all of a block's threads ask. `held`: a
// byte for each thread.
DEVICE unsigned int bits_of_warp(bool is_set, LOCAL unsigned char *held)
{
#ifdef __OPENCL_VERSION__
    unsigned int word = 0;
    held[threadIdx.x] = is_set;
    __syncthreads();
    for (unsigned int k = 0; k < 32; ++k) word |= (unsigned int)held[threadIdx.x / 32 * 32 + k] << k;
    __syncthreads();
    return word;
#else
    return __ballot_sync(0xffffffffu, is_set);
#endif
}

// The row of a tile that a block makes, where it makes one of `rows`: the tile's number from `first` on, its
// place, its image. By divisions of 32 bits: those of 64 take longer than the row.
#define FIND_ROW(rows) \
    const unsigned int tile = blockIdx.x / (unsigned int)(rows), t = (unsigned int)first + tile; \
    const unsigned int line = t / (unsigned int)tiles_x, number = line / (unsigned int)tiles_y; \
    const index_t row = blockIdx.x - tile * (unsigned int)(rows); \
    const index_t tile_x = t - line * (unsigned int)tiles_x, tile_y = line - number * (unsigned int)tiles_y;

// tiles[t] = part of the extended image; zero in the two reals of padding. A block makes a row.
// Per value: 1 read, 1 written.
KERNEL(THREADS, 6)
gather_tiles(GLOBAL const REAL *RESTRICT image, GLOBAL REAL *RESTRICT tiles,
             GLOBAL unsigned int *RESTRICT marks, index_t height, index_t width, index_t batch_stride,
             index_t row_stride, index_t column_stride, index_t boundary, double fillvalue,
             GLOBAL int *RESTRICT seen, index_t first, index_t tiles_y, index_t tiles_x, index_t start_y,
             index_t start_x, index_t step_y, index_t step_x, index_t length_y, index_t length_x,
             index_t pitch)
{
    SHARED unsigned char held[THREADS];
    FIND_ROW(length_y)
    const index_t y = extended(start_y + tile_y * step_y + row, height, boundary);
    const index_t left = start_x + tile_x * step_x, words = (pitch + 31) / 32;
    image += number * batch_stride + (y < 0 ? 0 : y) * row_stride;
    tiles += blockIdx.x * pitch;
    marks += blockIdx.x * words;
    bool broken = false, negative = false, pair = false;
    bool zero = width == 1;  // a filter of one column needs no two zeros of a row
    for (index_t begin = 0; begin < length_x; begin += THREADS) {
        const index_t j = begin + threadIdx.x;
        REAL value = 0;
        if (j < length_x) {
            const index_t x = y < 0 ? -1 : extended(left + j, width, boundary);
            value = x < 0 ? (REAL)fillvalue : image[x * column_stride];
            broken |= value != rint(value);
            negative |= value < 0;
            if (x >= 0 && value == 0) {
                zero = true;
                pair |= x == 0 || x == width - 1 || image[(x - 1) * column_stride] == 0 ||
                        image[(x + 1) * column_stride] == 0;
            }
            tiles[j] = value;
        }
        const unsigned int word = bits_of_warp(value != 0, held);
        if (j < length_x && threadIdx.x % 32 == 0) marks[j / 32] = word;
    }
    if (threadIdx.x < pitch - length_x) tiles[length_x + threadIdx.x] = 0;
    // Where one is set already, nobody waits for its store.
    if (broken && !seen[BROKEN]) seen[BROKEN] = 1;
    if (negative && !seen[NEGATIVE]) seen[NEGATIVE] = 1;
    if (zero && !seen[ZERO]) seen[ZERO] = 1;
    if (pair && !seen[PAIR]) seen[PAIR] = 1;
}

// tiles[t, i] *= scale spectrum[i] for `points` complex numbers. blocks: of one tile.
// Per number: 6 flops, 2 read, 1 written.
KERNEL(THREADS, 1)
multiply_spectra(GLOBAL COMPLEX *RESTRICT tiles, GLOBAL const COMPLEX *RESTRICT spectrum,
                 index_t points, index_t blocks, double scale)
{
    const unsigned int tile = blockIdx.x / (unsigned int)blocks;
    const index_t i = (index_t)(blockIdx.x - tile * (unsigned int)blocks) * THREADS + threadIdx.x;
    if (i >= points) return;
    tiles += tile * points;
    const COMPLEX a = tiles[i];
    COMPLEX b = spectrum[i];
    b.x *= (REAL)scale;
    b.y *= (REAL)scale;
    COMPLEX product;
    product.x = a.x * b.x - a.y * b.y;
    product.y = a.x * b.y + a.y * b.x;
    tiles[i] = product;
}

// Whether every mark meets a tap of 0: marks of a tile's rows from `top` on, bits from `left` on. Before
// the first ones are zeros. Rows of the filter are tried from its middle on, where most are settled.
DEVICE bool meets_nothing(GLOBAL const unsigned int *marks, index_t words, index_t top, index_t left,
                          GLOBAL const REAL *taps, index_t tap_row_stride, index_t tap_column_stride,
                          index_t filter_height, index_t filter_width)
{
    const index_t start = left < 0 ? 0 : left;
    for (index_t n = 0; n < filter_height; n++) {
        const index_t u = (n + filter_height / 2) % filter_height;
        if (top + u < 0) continue;
        GLOBAL const unsigned int *line = marks + (top + u) * words;
        GLOBAL const REAL *row = taps + u * tap_row_stride;
        for (index_t begin = start / 32 * 32; begin < left + filter_width; begin += 32) {
            unsigned int word = line[begin / 32];
            if (begin < start) word &= ~0u << (start - begin);
            for (index_t v = begin - left; word && v < filter_width; v++, word >>= 1)
                if ((word & 1u) && row[v * tap_column_stride] != 0) return false;
        }
    }
    return true;
}

// Results of the tiles into the output; a block takes a row of a tile's results. Sets seen[BAD] where
// one is not finite. ends: zeros lie beyond the image. Per value: 1 read, 1 written.
KERNEL(THREADS, 8)
scatter_tiles(GLOBAL const REAL *RESTRICT tiles, GLOBAL const unsigned int *RESTRICT marks,
              GLOBAL const REAL *RESTRICT taps, GLOBAL REAL *RESTRICT out, GLOBAL int *RESTRICT seen,
              GLOBAL const int *RESTRICT filter_seen, index_t tap_row_stride, index_t tap_column_stride,
              index_t filter_height, index_t filter_width, index_t ends, index_t out_height,
              index_t out_width, index_t batch_stride, index_t row_stride, index_t column_stride,
              index_t first, index_t tiles_y, index_t tiles_x, index_t first_y, index_t first_x,
              index_t step_y, index_t step_x, index_t length_y, index_t pitch)
{
    FIND_ROW(step_y)
    const index_t y = tile_y * step_y + row, left = tile_x * step_x;
    if (y >= out_height) return;
    const index_t words = (pitch + 31) / 32, top = first_y + row - (filter_height - 1);
    tiles += (tile * length_y + first_y + row) * pitch + first_x;
    marks += tile * length_y * words;
    out += number * batch_stride + y * row_stride + left * column_stride;
    const index_t count = step_x < out_width - left ? step_x : out_width - left;
    // All are read at once: one by one, each would be waited for.
    const int broken = seen[BROKEN] | filter_seen[BROKEN];
    const int negative = seen[NEGATIVE] | filter_seen[NEGATIVE];
    // A filter without zeros, of two columns or more, meets zeros alone where two of a row are neighbours.
    const int zeros = seen[PAIR] | (filter_seen[ZERO] & (ends | seen[ZERO]));
    for (index_t j = threadIdx.x; j < count; j += THREADS) {
        REAL value = tiles[j];
        if (!broken) value = rint(value);
        if (!negative && value < 0) value = 0;
        if (zeros && meets_nothing(marks, words, top, first_x + j - (filter_width - 1), taps,
                                   tap_row_stride, tap_column_stride, filter_height, filter_width))
            value = 0;
        out[j * column_stride] = value;
        if (!(value - value == 0)) seen[BAD] = 1;
    }
}

// Sets bad[0] where one of `count` values is not finite. Per value: 1 read.
KERNEL(THREADS, 1)
find_not_finite(GLOBAL const REAL *RESTRICT out, GLOBAL int *RESTRICT bad, index_t count,
                index_t blocks)
{
    for (index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x; i < count; i += blocks * THREADS) {
        const REAL value = out[i];
        if (!(value - value == 0)) bad[0] = 1;
    }
}
