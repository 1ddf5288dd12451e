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
// only_if is null, or points to a flag: nothing is done where that is 0.

#include "correlation.cu"

// Adds the taps of a stage in `rows` of its rows, a constant.
DEVICE void add_rows(REAL *sums, LOCAL const REAL *tile, LOCAL const REAL *taps, const int rows, int columns)
{
    BY_CHUNKS(c, columns, CHUNK_COLUMNS, TAIL_COLUMNS, c < columns,
              add_chunk(sums, tile + c, MOST_COLUMNS, taps + c, STAGE_COLUMNS, ROWS, rows, chunk))
}

KERNEL(THREADS, BLOCKS)
convolve(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT taps,
         GLOBAL REAL *RESTRICT out, index_t tap_row, index_t tap_column, EXTENTS)
{
    if (only_if && !only_if[0])
        return;
    SHARED VECTOR tile_vectors[(TILE_ROWS + STAGE_ROWS - 1) * MOST_COLUMNS / WIDTH];
    SHARED VECTOR tap_vectors[STAGE_ROWS * STAGE_COLUMNS / WIDTH];
    LOCAL REAL *tile = (LOCAL REAL *)tile_vectors;
    LOCAL REAL *stage_taps = (LOCAL REAL *)tap_vectors;
    FIND_TILE
    const index_t row = (index_t)down * TILE_ROWS, column = (index_t)across * TILE_COLUMNS;
    REAL sums[ROWS * WIDTH];

    image += b * image_batch;
    UNROLLED(i, ROWS * WIDTH) sums[i] = 0;

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
            BY_CHUNKS(r, rows, CHUNK_ROWS, TAIL_ROWS, r < rows,
                      add_rows(sums, mine + r * MOST_COLUMNS, stage_taps + r * STAGE_COLUMNS, chunk, columns))
        }
    }

    STORE_TILE
}
