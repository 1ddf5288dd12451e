// convolve for filters of few taps, known when compiled (FH x FW): memory is the limit.
//
// A thread makes WIDTH neighbouring outputs in ROWS rows. The ROWS + FH - 1 rows of the image that
// they need come one after the other, AHEAD of them in flight, and each is added to the outputs it
// is part of, in registers. Of a row, a thread loads the vectors that its outputs need; those that
// belong to its neighbours come from the L1, as do the rows that two warps of a block share.
// Per output: 2 FH FW flops, 1 element read and 1 written; (GROUPS ROWS + FH - 1) / (GROUPS ROWS)
// elements are read from the L2.
//
// A warp with outputs or inputs beyond an edge loads element by element, from where the boundary says.
//
// Preconditions, besides those of convolve.cu. The image's and out's columns are contiguous, and
// their addresses and other strides multiples of WIDTH elements; so are a thread's loads, since
// SHIFT = -left modulo WIDTH. Extents, top, left and filter sizes are below 2^29.

#define ALIGNED 1
#define POSITION int
#define LANES 32
#define GROUPS 4
#include "correlation.cu"

#define SPAN (WIDTH + FW - 1)  // columns that a thread's outputs need
#define VECTORS ((SHIFT + SPAN + WIDTH - 1) / WIDTH)
#define LOADED_ROWS (ROWS + FH - 1)

// Elements of vector k of a row that are needed.
#define FIRST(k) ((k) == 0 ? SHIFT : 0)
#define LAST(k) ((k) == VECTORS - 1 ? SHIFT + SPAN - (VECTORS - 1) * WIDTH : WIDTH)

// Loads SHIFT + SPAN elements from an aligned address, but for the first SHIFT of them.
DEVICE void load_row(REAL *row, GLOBAL const REAL *from)
{
    UNROLLED(k, VECTORS) {
        if (LAST(k) - FIRST(k) == 1)
            row[k * WIDTH + FIRST(k)] = from[k * WIDTH + FIRST(k)];
        else
            READ(row + k * WIDTH, (GLOBAL const VECTOR *)(from + k * WIDTH));
    }
}

// ROWS rows of outputs, with inputs from `image` on, all of them inside.
DEVICE void walk(GLOBAL const REAL *image, GLOBAL REAL *out, const REAL *factors,
                 index_t image_row, index_t out_row, REAL loaded[LOADED_ROWS][VECTORS * WIDTH])
{
    REAL sums[ROWS][WIDTH];
    UNROLLED(r, LOADED_ROWS) {
        if (r + AHEAD < LOADED_ROWS) {
            const int next = r + AHEAD < LOADED_ROWS ? r + AHEAD : 0;
            load_row(loaded[next], image + next * image_row);
        }
        UNROLLED(o, ROWS) {
            const int u = r - o;
            if (u < 0 || u >= FH) continue;
            UNROLLED(v, FW) UNROLLED(i, WIDTH) {
                const REAL sum = u == 0 && v == 0 ? 0 : sums[o][i];
                sums[o][i] = sum + factors[u * FW + v] * loaded[r][SHIFT + v + i];
            }
        }
        if (r >= FH - 1) {
            const int o = r - FH + 1;
            store_outputs(out + o * out_row, sums[o], WIDTH, 1);
        }
    }
}

// The same at the rim, where inputs are anywhere on the extended image, from (row, column) on, and
// `rows` rows and `points` columns are stored. What has had rows 0 to u of the filter is in sums[u].
DEVICE void walk_rim(GLOBAL const REAL *image, GLOBAL REAL *out, const REAL *factors, int height,
                     int width, int rows, int points, int row, int column, index_t image_row,
                     index_t out_row, int boundary, REAL fillvalue)
{
    int columns[SPAN];
    REAL sums[FH][WIDTH];

    UNROLLED(i, SPAN) columns[i] = extended(column + i, width, boundary);
    UNROLLED(u, FH) UNROLLED(i, WIDTH) sums[u][i] = 0;
    NO_UNROLL
    for (int r = 0; r < rows + FH - 1; ++r) {
        const int at = extended(row + r, height, boundary);
        GLOBAL const REAL *from = image + (at < 0 ? 0 : at) * image_row;
        REAL line[SPAN];
        UNROLLED(i, SPAN) {
            const REAL inside = from[columns[i] < 0 ? 0 : columns[i]];
            line[i] = at < 0 || columns[i] < 0 ? fillvalue : inside;
        }
        UNROLLED(k, FH) {
            const int u = FH - 1 - k;
            UNROLLED(i, WIDTH) {
                REAL sum = u > 0 ? sums[u > 0 ? u - 1 : 0][i] : 0;
                UNROLLED(v, FW) sum += factors[u * FW + v] * line[v + i];
                sums[u][i] = sum;
            }
        }
        if (r >= FH - 1) store_outputs(out + (r - FH + 1) * out_row, sums[FH - 1], points, 1);
    }
}

KERNEL(THREADS, BLOCKS)
convolve_small(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps,
               GLOBAL REAL *RESTRICT out, index_t tap_row, index_t tap_column, EXTENTS)
{
    if (only_if && !only_if[0])
        return;
    FIND_TILE
    const int row = (int)down * TILE_ROWS + group * ROWS;
    const int warp_column = (int)across * TILE_COLUMNS;
    const int column = warp_column + lane * WIDTH;
    const int rows_left = (int)out_height - row, columns_left = (int)out_width - column;
    const int from_row = row - (int)top, from_column = warp_column - (int)left - SHIFT;

    REAL factors[FH * FW];
    REAL loaded[LOADED_ROWS][VECTORS * WIDTH];

    image += b * image_batch;
    out += b * out_batch + row * out_row + column;
    const int inside = rows_left >= ROWS && warp_column + TILE_COLUMNS <= out_width
                       && from_row >= 0 && from_row + LOADED_ROWS <= height && from_column >= 0
                       && from_column + TILE_COLUMNS + (VECTORS - 1) * WIDTH <= width;
    if (inside) {  // before the taps, on which nothing waits yet
        image += from_row * image_row + column - (int)left - SHIFT;
        UNROLLED(r, AHEAD < LOADED_ROWS ? AHEAD : LOADED_ROWS) load_row(loaded[r], image + r * image_row);
    }
    UNROLLED(u, FH) UNROLLED(v, FW) factors[u * FW + v] = taps[u * tap_row + v * tap_column];
    if (inside) {
        walk(image, out, factors, image_row, out_row, loaded);
    } else if (rows_left > 0) {
        walk_rim(image, out, factors, (int)height, (int)width, rows_left < ROWS ? rows_left : ROWS,
                 columns_left, from_row, column - (int)left, image_row, out_row, (int)boundary,
                 (REAL)fillvalue);
    }
}
