// Between Fourier transforms, in place, of overlapping tiles of images: tiles out of the image, the
// product with the filter's spectrum, results out of the tiles.
//
// A tile is `length_y` rows of `pitch` = 2 (length_x / 2 + 1) reals, of which length_x hold values, or of
// pitch / 2 complex numbers. Tile number t is tile (t / tiles_x % tiles_y, t % tiles_x) of image
// t / (tiles_y tiles_x); it starts at row start_y + that step_y, column start_x + that step_x.
// Every kernel takes the tiles from `first` on. All of them are limited by memory.
//
// `seen` of the image and of the filter are five numbers, set where results are not finite, and where
// values are not whole, are negative, are 0, are 0 next to another 0 of the row or at its ends. What the
// direct sum has exactly, results get again: whole numbers of whole numbers, nothing negative of what is
// not, 0 where all products are.

#ifndef REAL
#define REAL float
#endif
#ifndef THREADS
#define THREADS 256
#endif
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define COMPLEX JOIN(REAL, 2)
#define FILL 0
#define WRAP 1
#define BAD 0
#define BROKEN 1
#define NEGATIVE 2
#define ZERO 3
#define PAIR 4
#define SEEN 5

// Where point i of an image extended beyond its n points lies; -1 for the fill value.
DEVICE index_t inside(index_t i, index_t n, index_t boundary)
{
    if (i >= 0 && i < n) return i;
    if (boundary == FILL) return -1;
    const index_t period = boundary == WRAP ? n : 2 * n;
    i %= period;
    if (i < 0) i += period;
    return i < n ? i : period - 1 - i;
}

// tiles[t] = part of the extended image; zero in the two reals of padding. A block makes a row.
// Per value: 1 read, 1 written.
KERNEL(THREADS, 1)
gather_tiles(GLOBAL const REAL *RESTRICT image, GLOBAL REAL *RESTRICT tiles, index_t height,
             index_t width, index_t batch_stride, index_t row_stride, index_t column_stride,
             index_t boundary, double fillvalue, GLOBAL int *RESTRICT seen, index_t first,
             index_t tiles_y, index_t tiles_x, index_t start_y, index_t start_x, index_t step_y,
             index_t step_x, index_t length_y, index_t length_x, index_t pitch)
{
    SHARED int any[SEEN];  // of the block: one store for each instead of one for each value
    if (threadIdx.x < SEEN) any[threadIdx.x] = 0;
    __syncthreads();
    if (width == 1) any[ZERO] = 1;  // a filter of one column needs no two zeros of a row
    const index_t t = first + blockIdx.x / length_y;
    const index_t row = blockIdx.x % length_y;
    const index_t y = inside(start_y + t / tiles_x % tiles_y * step_y + row, height, boundary);
    const index_t left = start_x + t % tiles_x * step_x;
    image += t / (tiles_y * tiles_x) * batch_stride + (y < 0 ? 0 : y) * row_stride;
    tiles += blockIdx.x * pitch;
    for (index_t j = threadIdx.x; j < pitch; j += THREADS) {
        REAL value = 0;
        if (j < length_x) {
            const index_t x = y < 0 ? -1 : inside(left + j, width, boundary);
            value = x < 0 ? (REAL)fillvalue : image[x * column_stride];
            if (value != rint(value)) any[BROKEN] = 1;
            if (value < 0) any[NEGATIVE] = 1;
            if (x >= 0 && value == 0) {
                any[ZERO] = 1;
                if (x == 0 || x == width - 1 || image[(x - 1) * column_stride] == 0 ||
                    image[(x + 1) * column_stride] == 0)
                    any[PAIR] = 1;
            }
        }
        tiles[j] = value;
    }
    __syncthreads();
    if (threadIdx.x < SEEN && any[threadIdx.x]) seen[threadIdx.x] = 1;
}

// tiles[t, i] *= scale spectrum[i] for `points` complex numbers. blocks: of one tile.
// Per number: 6 flops, 2 read, 1 written.
KERNEL(THREADS, 1)
multiply_spectra(GLOBAL COMPLEX *RESTRICT tiles, GLOBAL const COMPLEX *RESTRICT spectrum,
                 index_t points, index_t blocks, double scale)
{
    const index_t i = (index_t)(blockIdx.x % blocks) * THREADS + threadIdx.x;
    if (i >= points) return;
    tiles += blockIdx.x / blocks * points;
    const COMPLEX a = tiles[i];
    COMPLEX b = spectrum[i];
    b.x *= (REAL)scale;
    b.y *= (REAL)scale;
    COMPLEX product;
    product.x = a.x * b.x - a.y * b.y;
    product.y = a.x * b.y + a.y * b.x;
    tiles[i] = product;
}

// Results of the tiles into the output; a block takes a row of a tile's results. Sets seen[BAD] where
// one is not finite. Per value: 1 read, 1 written.
KERNEL(THREADS, 1)
scatter_tiles(GLOBAL const REAL *RESTRICT tiles, GLOBAL REAL *RESTRICT out, GLOBAL int *RESTRICT seen,
              GLOBAL const int *RESTRICT filter_seen, index_t out_height, index_t out_width,
              index_t batch_stride, index_t row_stride, index_t column_stride, index_t first,
              index_t tiles_y, index_t tiles_x, index_t first_y, index_t first_x, index_t step_y,
              index_t step_x, index_t length_y, index_t pitch)
{
    const index_t number = blockIdx.x / step_y;
    const index_t t = first + number;
    const index_t row = blockIdx.x % step_y;
    const index_t y = t / tiles_x % tiles_y * step_y + row;
    const index_t left = t % tiles_x * step_x;
    if (y >= out_height) return;
    tiles += (number * length_y + first_y + row) * pitch + first_x;
    out += t / (tiles_y * tiles_x) * batch_stride + y * row_stride + left * column_stride;
    const index_t count = step_x < out_width - left ? step_x : out_width - left;
    const bool whole = !seen[BROKEN] && !filter_seen[BROKEN];
    const bool positive = !seen[NEGATIVE] && !filter_seen[NEGATIVE];
    for (index_t j = threadIdx.x; j < count; j += THREADS) {
        REAL value = tiles[j];
        if (whole) value = rint(value);
        if (positive && value < 0) value = 0;
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

// Whether zeros were seen that results may meet alone; always where nobody looked. A filter without
// zeros, of two columns or more, meets zeros alone only where two of a row are neighbours.
DEVICE int may_be_zero(GLOBAL const int *seen, GLOBAL const int *filter_seen, index_t ends)
{
    return !seen || seen[PAIR] || (filter_seen[ZERO] && (ends || seen[ZERO]));
}

// at: place `number` of `count` in a row, the row, its image. Divisions of 32 bits where these will do.
DEVICE void split(index_t *at, index_t number, index_t count, index_t columns, index_t rows)
{
    if (count <= 0xffffffff) {
        const unsigned int n = number, line = n / (unsigned int)columns;
        at[0] = n - line * (unsigned int)columns;
        at[1] = line % (unsigned int)rows;
        at[2] = line / (unsigned int)rows;
        return;
    }
    at[0] = number % columns;
    at[1] = number / columns % rows;
    at[2] = number / columns / rows;
}

// One bit for each value of the extended image that results read, 32 of a row in a word: whether it is
// not 0. ends: zeros lie beyond the image. Per value: 1 read.
KERNEL(THREADS, 1)
mark_nonzero(GLOBAL const REAL *RESTRICT image, GLOBAL unsigned int *RESTRICT marks, index_t height,
             index_t width, index_t batch_stride, index_t row_stride, index_t column_stride,
             index_t boundary, double fillvalue, index_t top, index_t left, index_t rows,
             index_t columns, index_t words, index_t count, GLOBAL const int *RESTRICT seen,
             GLOBAL const int *RESTRICT filter_seen, index_t ends)
{
    const index_t i = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (i >= count || !may_be_zero(seen, filter_seen, ends)) return;
    index_t at[3];
    split(at, i, count, words, rows);
    const index_t y = inside(at[1] - top, height, boundary), begin = at[0] * 32;
    image += at[2] * batch_stride + (y < 0 ? 0 : y) * row_stride;
    unsigned int word = 0;
    for (index_t k = 0; k < 32 && begin + k < columns; k++) {
        const index_t x = y < 0 ? -1 : inside(begin + k - left, width, boundary);
        const REAL value = x < 0 ? (REAL)fillvalue : image[x * column_stride];
        if (value != 0) word |= 1u << k;
    }
    marks[i] = word;
}

// Results become 0 where every mark meets a tap of 0. Rows of the filter are tried from its middle on,
// where most results are settled at once. Per result: 1 written at most; bits of its window read.
KERNEL(THREADS, 1)
clear_zeros(GLOBAL const unsigned int *RESTRICT marks, GLOBAL const REAL *RESTRICT taps,
            GLOBAL REAL *RESTRICT out, index_t tap_row_stride, index_t tap_column_stride,
            index_t filter_height, index_t filter_width, index_t out_height, index_t out_width,
            index_t batch_stride, index_t row_stride, index_t column_stride, index_t rows,
            index_t words, index_t count, GLOBAL const int *RESTRICT seen,
            GLOBAL const int *RESTRICT filter_seen, index_t ends)
{
    const index_t number = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (number >= count || !may_be_zero(seen, filter_seen, ends)) return;
    index_t at[3];
    split(at, number, count, out_width, out_height);
    const index_t j = at[0], i = at[1], b = at[2];
    for (index_t n = 0; n < filter_height; n++) {
        const index_t u = (n + filter_height / 2) % filter_height;
        GLOBAL const unsigned int *line = marks + (b * rows + i + u) * words;
        GLOBAL const REAL *row = taps + u * tap_row_stride;
        for (index_t begin = j / 32 * 32; begin < j + filter_width; begin += 32) {
            unsigned int word = line[begin / 32];
            if (begin < j) word &= ~0u << (j - begin);
            for (index_t v = begin - j; word && v < filter_width; v++, word >>= 1)
                if ((word & 1u) && row[v * tap_column_stride] != 0) return;
        }
    }
    out[b * batch_stride + i * row_stride + j * column_stride] = 0;
}
