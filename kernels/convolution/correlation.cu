// What the kernels of 2-D correlation share: their sizes, positions beyond an image's edges, the
// loading of a tile, products of a chunk of taps, and the storing of outputs. Included by them.

#define THREADS (LANES * GROUPS)
#define TILE_ROWS (GROUPS * ROWS)
#define TILE_COLUMNS (LANES * WIDTH)
#include "pack.cu"
#define ROUND_UP(n) (((n) + WIDTH - 1) / WIDTH * WIDTH)

#include "extended.cu"

// What every kernel takes in addition to its own operands; convolve_lines does not look at only_if.
#define EXTENTS \
    index_t height, index_t width, index_t filter_height, index_t filter_width, index_t out_height, \
        index_t out_width, index_t top, index_t left, index_t tiles_down, index_t tiles_across, \
        index_t image_batch, index_t image_row, index_t image_column, index_t out_batch, index_t out_row, \
        index_t out_column, index_t boundary, double fillvalue, GLOBAL const int *RESTRICT only_if

// Declares the thread's place in its group and the group's in the block; the block's place among the tiles
// of image b.
#define FIND_TILE \
    const int thread = (int)threadIdx.x; \
    const int lane = thread % LANES, group = thread / LANES; \
    const unsigned int across = blockIdx.x % (unsigned int)tiles_across; \
    const unsigned int down = blockIdx.x / (unsigned int)tiles_across % (unsigned int)tiles_down; \
    const unsigned int b = blockIdx.x / (unsigned int)tiles_across / (unsigned int)tiles_down;

// Stores WIDTH outputs, of which `points` are within the row.
DEVICE void store_outputs(GLOBAL REAL *out, const REAL *sums, index_t points, index_t out_column)
{
    if (ALIGNED && points >= WIDTH) {
        WRITE((GLOBAL VECTOR *)out, sums);
        return;
    }
    UNROLLED(i, WIDTH)
        if (i < points) out[i * out_column] = sums[i];
}

// Stores a thread's ROWS rows of sums; the tile begins at `row` and `column` of the output.
#define STORE_TILE \
    const index_t first_row = row + group * ROWS, first_column = column + lane * WIDTH; \
    out += b * out_batch + first_row * out_row + first_column * out_column; \
    UNROLLED(o, ROWS) \
        if (first_row + o < out_height) \
            store_outputs(out + o * out_row, sums + o * WIDTH, out_width - first_column, out_column);

#ifdef STAGE_COLUMNS  // what follows is for kernels with tiles in shared memory
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

    UNROLLED(f, FETCHES) {
        const int c = lane + 32 * f;
        index_t at = column + c;
        if (!inside) at = c < columns ? extended(at, width, boundary) : -1;
        there[f] = c < columns && at >= 0;
        offsets[f] = at * image_column;
    }
    NO_UNROLL
    for (int begin = warp; begin < rows; begin += WARPS * FETCH_ROWS) {
        REAL values[FETCH_ROWS][FETCHES];
        UNROLLED(k, FETCH_ROWS) {
            const int r = begin + k * WARPS;
            index_t at = r < rows ? row + r : -1;
            if (!inside && r < rows) at = extended(at, height, boundary);
            GLOBAL const REAL *from = image + at * image_row;
            UNROLLED(f, FETCHES) {
                values[k][f] = fillvalue;
                if (at >= 0 && there[f]) values[k][f] = from[offsets[f]];
            }
        }
        UNROLLED(k, FETCH_ROWS) UNROLLED(f, FETCHES) {
            const int r = begin + k * WARPS, c = lane + 32 * f;
            if (r < rows && c < columns) tile[r * MOST_COLUMNS + c] = values[k][f];
        }
    }
}

// Goes over `count` taps, `full` of them at a time, and then the `tail`, where it is left: `add` is for `chunk` taps, a
// constant, from `at` on.
#define BY_CHUNKS(at, count, full, tail, is_left, add) \
    int at = 0; \
    NO_UNROLL \
    for (; at + full <= (count); at += full) { \
        const int chunk = full; \
        add; \
    } \
    if (tail != full && (is_left)) { \
        const int chunk = tail; \
        add; \
    }

// Adds a chunk of the filter, of rows x columns taps, to outs x WIDTH sums. All three are
// constants, and no loop is left when compiled. In `tile` the first output meets the first tap.
#define MOST_TAPS 8
DEVICE void add_chunk(REAL *sums, LOCAL const REAL *tile, const int tile_pitch, LOCAL const REAL *taps,
                      const int tap_pitch, const int outs, const int rows, const int columns)
{
    REAL factors[MOST_TAPS][MOST_TAPS];
    UNROLLED(r, outs + rows - 1) {
        REAL window[ROUND_UP(WIDTH + MOST_TAPS - 1)];
        UNROLLED_RANGE(c, 0, WIDTH + columns - 1, WIDTH)
            READ(window + c, (LOCAL const VECTOR *)(tile + r * tile_pitch + c));
        if (r < rows) {
            UNROLLED_RANGE(c, 0, columns, WIDTH) {
                if (columns == 1)
                    factors[r][0] = taps[r * tap_pitch];
                else
                    READ(factors[r] + c, (LOCAL const VECTOR *)(taps + r * tap_pitch + c));
            }
        }
        UNROLLED(o, outs) {
            const int u = r - o;
            if (u < 0 || u >= rows) continue;
            UNROLLED(c, columns) UNROLLED(i, WIDTH) sums[o * WIDTH + i] += factors[u][c] * window[c + i];
        }
    }
}
#endif
