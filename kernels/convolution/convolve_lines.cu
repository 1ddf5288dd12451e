// convolve with a filter of low rank: taps[u, v] = sum over r of columns[r, u] rows[r, v].
//
// A block makes TILE_ROWS x TILE_COLUMNS outputs. For each r, the TILE_ROWS + FH - 1 rows of the
// extended image that it needs pass through shared memory, SLAB_ROWS at a time, and rows[r] makes
// TILE_COLUMNS elements of each, which stay there; then columns[r] makes outputs of them, added up
// in registers. Both passes take their taps in chunks of CHUNK, unrolled.
// Per output and r: 2 FH + 2 FW (TILE_ROWS + FH - 1) / TILE_ROWS flops, and as many elements loaded
// as in convolve.cu, from the caches but for the first time; 1 stored. Shared memory is the limit,
// or memory if the taps are few.
//
// Preconditions, besides those of convolve.cu but for its chunks. STAGE_COLUMNS and STAGE_ROWS are
// multiples of CHUNK, not less than the filter's width and height; the last chunks have
// TAIL_COLUMNS and TAIL_ROWS taps, none of them empty.

#define CHUNK 8
#include "correlation.cu"

#define SLAB_ROWS (GROUPS * SLAB)  // SLAB for each thread

KERNEL(THREADS, BLOCKS)
convolve_lines(GLOBAL const REAL *RESTRICT image, GLOBAL const REAL *RESTRICT columns,
               GLOBAL const REAL *RESTRICT rows, GLOBAL REAL *RESTRICT out, index_t rank, EXTENTS)
{
    SHARED VECTOR slab_vectors[SLAB_ROWS * MOST_COLUMNS / WIDTH];
    SHARED VECTOR made_vectors[(TILE_ROWS + STAGE_ROWS - 1) * LANES];
    SHARED VECTOR tap_vectors[STAGE_COLUMNS / WIDTH];
    SHARED REAL column_taps[STAGE_ROWS];
    LOCAL REAL *slab = (LOCAL REAL *)slab_vectors;
    LOCAL REAL *made = (LOCAL REAL *)made_vectors;
    LOCAL REAL *row_taps = (LOCAL REAL *)tap_vectors;
    FIND_TILE
    const index_t row = (index_t)down * TILE_ROWS, column = (index_t)across * TILE_COLUMNS;
    const int taps_down = (int)filter_height, taps_across = (int)filter_width;
    const int needed = TILE_ROWS + taps_down - 1;
    REAL sums[ROWS * WIDTH];

    image += b * image_batch;
    UNROLLED(i, ROWS * WIDTH) sums[i] = 0;

    NO_UNROLL
    for (index_t r = 0; r < rank; ++r) {
        __syncthreads();
        for (int i = thread; i < taps_across; i += THREADS) row_taps[i] = rows[r * taps_across + i];
        for (int i = thread; i < taps_down; i += THREADS) {
            column_taps[i] = columns[r * taps_down + i];
        }
        NO_UNROLL
        for (int begin = 0; begin < needed; begin += SLAB_ROWS) {
            const int now = needed - begin < SLAB_ROWS ? needed - begin : SLAB_ROWS;
            fetch_tile(slab, image, thread, row + begin - top, column - left, now,
                       TILE_COLUMNS + taps_across - 1, height, width, image_row, image_column,
                       (int)boundary, (REAL)fillvalue);
            __syncthreads();
            LOCAL const REAL *from = slab + group * SLAB * MOST_COLUMNS + lane * WIDTH;
            REAL line[SLAB * WIDTH];
            UNROLLED(i, SLAB * WIDTH) line[i] = 0;
            BY_CHUNKS(c, taps_across, CHUNK, TAIL_COLUMNS, true,
                      add_chunk(line, from + c, MOST_COLUMNS, row_taps + c, 0, SLAB, 1, chunk))
            UNROLLED(k, SLAB) {
                const int at = group * SLAB + k;
                LOCAL REAL *to = made + (begin + at) * TILE_COLUMNS + lane * WIDTH;
                if (at < now) WRITE((LOCAL VECTOR *)to, line + k * WIDTH);
            }
            __syncthreads();
        }
        LOCAL const REAL *from = made + group * ROWS * TILE_COLUMNS + lane * WIDTH;
        BY_CHUNKS(u, taps_down, CHUNK, TAIL_ROWS, true,
                  add_chunk(sums, from + u * TILE_COLUMNS, TILE_COLUMNS, column_taps + u, 1, ROWS, chunk, 1))
    }

    STORE_TILE
}
