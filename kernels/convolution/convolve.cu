// 2-D correlation of images with one filter, any sizes, strides (in elements) and boundaries:
// out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left],
// where ext is the image (batch, height, width), extended beyond its edges as `boundary` says:
// 0: by a fill value; 1: periodically; 2: mirrored, with the edge repeated.
//
// A block makes TILE_ROWS x TILE_COLUMNS outputs, a thread ROWS x WIDTH of them in registers. The
// filter passes in stages of STAGE_ROWS x STAGE_COLUMNS taps: each stage's part of the image, and
// its taps, go to shared memory. There the filter passes in chunks, unrolled: a thread reads
// ROWS + CHUNK_ROWS - 1 rows of WIDTH + CHUNK_COLUMNS - 1 elements for
// ROWS WIDTH CHUNK_ROWS CHUNK_COLUMNS products. The edges matter to the loading of a tile alone.
// Per output: 2 FH FW flops, and (TILE_ROWS + FH - 1) (TILE_COLUMNS + FW - 1) / (TILE_ROWS
// TILE_COLUMNS) elements loaded, most of them from the caches; 1 stored. From 9 x 9 taps on,
// arithmetic is the limit.
//
// Each sum is in an order that depends on the sizes of filter and stages. No zeros are padded, so
// that infinities and NaN go where the sum has them.
//
// Preconditions. STAGE_ROWS is a multiple of CHUNK_ROWS. WIDTH elements are 16 bytes. CHUNK_COLUMNS
// is a multiple of WIDTH and STAGE_COLUMNS of CHUNK_COLUMNS, or CHUNK_COLUMNS is the filter's width
// and STAGE_COLUMNS that rounded up to a multiple of WIDTH. The last chunk of the filter has
// TAIL_ROWS x TAIL_COLUMNS taps, none of it empty. THREADS is a multiple of 32. ALIGNED: the columns
// of out are contiguous, its address and other strides multiples of 16 bytes. Extents are positive.

//
// ONLY_IF adds an argument, a flag: nothing is done where it is 0.

#ifndef REAL
#define REAL float
#endif
#ifdef ONLY_IF
#define FLAG , GLOBAL const int *RESTRICT only_if
#define RETURN_UNLESS_ASKED if (!only_if[0]) return
#else
#define FLAG
#define RETURN_UNLESS_ASKED
#endif
#ifndef WIDTH
#define WIDTH 4
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef GROUPS
#define GROUPS 4
#endif
#ifndef ROWS
#define ROWS 8
#endif
#ifndef CHUNK_ROWS
#define CHUNK_ROWS 8
#endif
#ifndef CHUNK_COLUMNS
#define CHUNK_COLUMNS 4
#endif
#ifndef TAIL_ROWS
#define TAIL_ROWS 8
#endif
#ifndef TAIL_COLUMNS
#define TAIL_COLUMNS 4
#endif
#ifndef STAGE_ROWS
#define STAGE_ROWS 16
#endif
#ifndef STAGE_COLUMNS
#define STAGE_COLUMNS 16
#endif
#ifndef ALIGNED
#define ALIGNED 0
#endif
#ifndef BLOCKS
#define BLOCKS 1
#endif
#ifndef POSITION
#define POSITION index_t
#endif
#define THREADS (LANES * GROUPS)
#define TILE_ROWS (GROUPS * ROWS)
#define TILE_COLUMNS (LANES * WIDTH)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if WIDTH == 1
#define VECTOR REAL
#else
#define VECTOR JOIN(REAL, WIDTH)
#endif
#define ROUND_UP(n) (((n) + WIDTH - 1) / WIDTH * WIDTH)

// A vector's components to an array, and back.
#if WIDTH == 4
#define UNPACK(to, v) (to)[0] = v.x; (to)[1] = v.y; (to)[2] = v.z; (to)[3] = v.w
#define PACK(v, from) v.x = (from)[0]; v.y = (from)[1]; v.z = (from)[2]; v.w = (from)[3]
#elif WIDTH == 2
#define UNPACK(to, v) (to)[0] = v.x; (to)[1] = v.y
#define PACK(v, from) v.x = (from)[0]; v.y = (from)[1]
#else
#define UNPACK(to, v) (to)[0] = v
#define PACK(v, from) v = (from)[0]
#endif

// Where position `at` of an extended axis lies in the image, which has n there; -1: nowhere.
DEVICE POSITION extended(POSITION at, POSITION n, int boundary)
{
    if (at >= 0 && at < n) return at;
    if (boundary == 0) return -1;
    const POSITION period = boundary == 1 ? n : 2 * n;
    at %= period;
    if (at < 0) at += period;
    return at < n ? at : 2 * n - 1 - at;
}

// Stores WIDTH outputs, of which `points` are within the row.
DEVICE void store_outputs(GLOBAL REAL *out, const REAL *sums, index_t points, index_t out_column)
{
#if ALIGNED
    if (points >= WIDTH) {
        VECTOR v;
        PACK(v, sums);
        *(GLOBAL VECTOR *)out = v;
        return;
    }
#endif
    UNROLL
    for (int i = 0; i < WIDTH; ++i) {
        if (i < points) out[i * out_column] = sums[i];
    }
}

#ifndef FETCH_ROWS
#define FETCH_ROWS 4  // rows of a tile whose loads a warp has in flight
#endif
#define WARPS (THREADS / 32)
#define MOST_COLUMNS (TILE_COLUMNS + STAGE_COLUMNS)
#define FETCHES ((MOST_COLUMNS + 31) / 32)

// Puts a piece of the extended image, from (row, column) on, into shared memory. A warp takes
// whole rows, FETCH_ROWS at a time.
DEVICE void fetch_tile(LOCAL REAL *tile, GLOBAL const REAL *image, int thread, index_t row,
                       index_t column, int rows, int columns, index_t height, index_t width,
                       index_t image_row, index_t image_column, int boundary, REAL fillvalue)
{
    const int inside =
        row >= 0 && row + rows <= height && column >= 0 && column + columns <= width;
    const int lane = thread % 32, warp = thread / 32;
    index_t offsets[FETCHES];
    int there[FETCHES];

    UNROLL
    for (int f = 0; f < FETCHES; ++f) {
        const int c = lane + 32 * f;
        index_t at = column + c;
        if (!inside) at = c < columns ? extended(at, width, boundary) : -1;
        there[f] = c < columns && at >= 0;
        offsets[f] = at * image_column;
    }
    NO_UNROLL
    for (int begin = warp; begin < rows; begin += WARPS * FETCH_ROWS) {
        REAL values[FETCH_ROWS][FETCHES];
        UNROLL
        for (int k = 0; k < FETCH_ROWS; ++k) {
            const int r = begin + k * WARPS;
            index_t at = r < rows ? row + r : -1;
            if (!inside && r < rows) at = extended(at, height, boundary);
            GLOBAL const REAL *from = image + at * image_row;
            UNROLL
            for (int f = 0; f < FETCHES; ++f) {
                values[k][f] = fillvalue;
                if (at >= 0 && there[f]) values[k][f] = from[offsets[f]];
            }
        }
        UNROLL
        for (int k = 0; k < FETCH_ROWS; ++k) {
            UNROLL
            for (int f = 0; f < FETCHES; ++f) {
                const int r = begin + k * WARPS, c = lane + 32 * f;
                if (r < rows && c < columns) tile[r * MOST_COLUMNS + c] = values[k][f];
            }
        }
    }
}

// Not left to OpenCL's compilers: what comes in as a constant must be one.
#ifdef __OPENCL_VERSION__
#define ALWAYS_INLINE __attribute__((always_inline))
#else
#define ALWAYS_INLINE
#endif

// Adds a chunk of the filter, of rows x columns taps, to outs x WIDTH sums. All three are
// constants, and no loop is left when compiled. In `tile` the first output meets the first tap.
#define MOST_TAPS 8
DEVICE ALWAYS_INLINE void add_chunk(REAL *sums, LOCAL const REAL *tile, const int tile_pitch,
                                    LOCAL const REAL *taps, const int tap_pitch, const int outs,
                                    const int rows, const int columns)
{
    REAL factors[MOST_TAPS][MOST_TAPS];
    UNROLL
    for (int r = 0; r < outs + rows - 1; ++r) {
        REAL window[ROUND_UP(WIDTH + MOST_TAPS - 1)];
        UNROLL
        for (int c = 0; c < WIDTH + columns - 1; c += WIDTH) {
            const VECTOR v = *(LOCAL const VECTOR *)(tile + r * tile_pitch + c);
            UNPACK(window + c, v);
        }
        if (r < rows) {
            UNROLL
            for (int c = 0; c < columns; c += WIDTH) {
                if (columns == 1) {
                    factors[r][0] = taps[r * tap_pitch];
                } else {
                    const VECTOR v = *(LOCAL const VECTOR *)(taps + r * tap_pitch + c);
                    UNPACK(factors[r] + c, v);
                }
            }
        }
        UNROLL
        for (int o = 0; o < outs; ++o) {
            const int u = r - o;
            if (u < 0 || u >= rows) continue;
            UNROLL
            for (int c = 0; c < columns; ++c) {
                UNROLL
                for (int i = 0; i < WIDTH; ++i) {
                    sums[o * WIDTH + i] += factors[u][c] * window[c + i];
                }
            }
        }
    }
}

#ifndef PIECES_ONLY
// Adds the taps of a stage in `rows` of its rows, a constant.
DEVICE ALWAYS_INLINE void add_rows(REAL *sums, LOCAL const REAL *tile, LOCAL const REAL *taps,
                                   const int rows, int columns)
{
    int c = 0;
    NO_UNROLL
    for (; c + CHUNK_COLUMNS <= columns; c += CHUNK_COLUMNS) {
        add_chunk(sums, tile + c, MOST_COLUMNS, taps + c, STAGE_COLUMNS, ROWS, rows,
                  CHUNK_COLUMNS);
    }
#if TAIL_COLUMNS != CHUNK_COLUMNS
    if (c < columns) {
        add_chunk(sums, tile + c, MOST_COLUMNS, taps + c, STAGE_COLUMNS, ROWS, rows, TAIL_COLUMNS);
    }
#endif
}

KERNEL(THREADS, BLOCKS)
convolve(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps,
         GLOBAL REAL *RESTRICT out, index_t height, index_t width, index_t filter_height,
         index_t filter_width, index_t out_height, index_t out_width, index_t top, index_t left,
         index_t tap_row, index_t tap_column, index_t tiles_down, index_t tiles_across,
         index_t image_batch, index_t image_row, index_t image_column, index_t out_batch,
         index_t out_row, index_t out_column, index_t boundary, double fillvalue FLAG)
{
    RETURN_UNLESS_ASKED;
    SHARED VECTOR tile_vectors[(TILE_ROWS + STAGE_ROWS - 1) * MOST_COLUMNS / WIDTH];
    SHARED VECTOR tap_vectors[STAGE_ROWS * STAGE_COLUMNS / WIDTH];
    LOCAL REAL *tile = (LOCAL REAL *)tile_vectors;
    LOCAL REAL *stage_taps = (LOCAL REAL *)tap_vectors;
    const int thread = (int)threadIdx.x;
    const int lane = thread % LANES, group = thread / LANES;
    const unsigned int across = blockIdx.x % (unsigned int)tiles_across;
    const unsigned int down = blockIdx.x / (unsigned int)tiles_across % (unsigned int)tiles_down;
    const unsigned int b = blockIdx.x / (unsigned int)tiles_across / (unsigned int)tiles_down;
    const index_t row = (index_t)down * TILE_ROWS, column = (index_t)across * TILE_COLUMNS;
    REAL sums[ROWS * WIDTH];

    image += b * image_batch;
    UNROLL
    for (int i = 0; i < ROWS * WIDTH; ++i) sums[i] = 0;

    NO_UNROLL
    for (index_t u = 0; u < filter_height; u += STAGE_ROWS) {
        const int rows = (int)(filter_height - u < STAGE_ROWS ? filter_height - u : STAGE_ROWS);
        NO_UNROLL
        for (index_t v = 0; v < filter_width; v += STAGE_COLUMNS) {
            const int columns =
                (int)(filter_width - v < STAGE_COLUMNS ? filter_width - v : STAGE_COLUMNS);
            __syncthreads();
            fetch_tile(tile, image, thread, row + u - top, column + v - left,
                       TILE_ROWS + rows - 1, TILE_COLUMNS + columns - 1, height, width, image_row,
                       image_column, (int)boundary, (REAL)fillvalue);
            for (int i = thread; i < STAGE_ROWS * STAGE_COLUMNS; i += THREADS) {
                const int r = i / STAGE_COLUMNS, c = i % STAGE_COLUMNS;
                if (r < rows && c < columns) {
                    stage_taps[i] = taps[(u + r) * tap_row + (v + c) * tap_column];
                }
            }
            __syncthreads();
            LOCAL const REAL *mine = tile + group * ROWS * MOST_COLUMNS + lane * WIDTH;
            int r = 0;
            NO_UNROLL
            for (; r + CHUNK_ROWS <= rows; r += CHUNK_ROWS) {
                add_rows(sums, mine + r * MOST_COLUMNS, stage_taps + r * STAGE_COLUMNS, CHUNK_ROWS,
                         columns);
            }
#if TAIL_ROWS != CHUNK_ROWS
            if (r < rows) {
                add_rows(sums, mine + r * MOST_COLUMNS, stage_taps + r * STAGE_COLUMNS, TAIL_ROWS,
                         columns);
            }
#endif
        }
    }

    const index_t first_row = row + group * ROWS, first_column = column + lane * WIDTH;
    out += b * out_batch + first_row * out_row + first_column * out_column;
    UNROLL
    for (int o = 0; o < ROWS; ++o) {
        if (first_row + o < out_height) {
            store_outputs(out + o * out_row, sums + o * WIDTH, out_width - first_column,
                          out_column);
        }
    }
}
#endif
