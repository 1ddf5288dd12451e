// One sweep of Jacobi's method for -div grad u = f, 5 points in 2-D and 7 in 3-D, and the residual.
//
// Buffers hold `held` rows (2-D) or planes (3-D), of `lines` lines (1 in 2-D) of `pitch` elements,
// of which the first `columns` are points of the grid; outside of them, and of the held rows, u is
// zero. What lies between `columns` and `pitch` is zero in u and stays so.
//
// Every sweep, here and in jacobi_blocked.cu, computes a point with the same operations in the same
// order (UPDATE), so that results do not depend on how the grid is cut into tiles and slabs.
//
// jacobi_sweep: u_new = (f + sum over axes of weight (before + after)) / sum of 2 weights, in rows
// begin to end and second_begin to second_end. A thread takes WIDTH columns of a line and walks
// down a strip of `strip` rows, with three of them in registers; the neighbours in its own row, and
// in 3-D those in the adjacent lines, come from the L1 cache.
// Per point: 2 DIMS + 2 flops counted as in a textbook, 3 elements moved: u and f read, u written.
//
// jacobi_residual: partial[row, chunk] = sum over a chunk of a row of (f - A u)^2, in double.
// A chunk is CHUNK vectors of WIDTH columns; so the sums depend on the grid alone.
// Per point: 2 elements moved.
//
// Preconditions: pitch is a multiple of WIDTH, addresses of 16 bytes; rows begin - 1 and end are
// held unless the grid ends there.

#ifndef REAL
#define REAL float
#endif
#ifndef VECTOR
#define VECTOR 4
#endif
#ifndef WIDTH
#define WIDTH VECTOR
#endif
#ifndef DIMS
#define DIMS 2
#endif
#ifndef THREADS
#define THREADS 128
#endif
#ifndef AHEAD
#define AHEAD 4
#endif
#define CHUNK (8 * THREADS)
#define SUMS 1
#include "vector_rows.cu"
#include "block_sums.cu"

// `given` is f over the diagonal; the products below are never contracted otherwise than written.
#define UPDATE_PLANE(left, right, given) fma(along_columns, (left) + (right), given)
#define UPDATE_LINES(before, after, rest) fma(along_lines, (before) + (after), rest)
#define UPDATE(before, after, rest) fma(along_rows, (before) + (after), rest)

KERNEL(THREADS, 1)
jacobi_sweep(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f,
             GLOBAL REAL *RESTRICT u_new, index_t held, index_t lines, index_t columns,
             index_t pitch, index_t begin, index_t end, index_t second_begin, index_t second_end,
             index_t strip, index_t tiles, double row_factor, double line_factor,
             double column_factor, double f_factor)
{
    const REAL along_rows = (REAL)row_factor, along_lines = (REAL)line_factor;
    const REAL along_columns = (REAL)column_factor, scale = (REAL)f_factor;
    const unsigned int vectors = (unsigned int)(pitch / WIDTH);
    const unsigned int tile = blockIdx.x % (unsigned int)tiles;
    const unsigned int at = tile * THREADS + threadIdx.x;
    const unsigned int line = DIMS == 3 ? at / vectors : 0;
    const index_t column = (index_t)(at - line * vectors) * WIDTH;
    const index_t plane = lines * pitch;
    index_t row = begin + (index_t)(blockIdx.x / (unsigned int)tiles) * strip;
    index_t last = end;

    if (row >= end) {  // strips of the second range follow those of the first
        const index_t first_strips = (end - begin + strip - 1) / strip;
        row += second_begin - begin - first_strips * strip;
        last = second_end;
    }
    if (row + strip < last) last = row + strip;
    if (line >= lines || column >= columns) return;

    const index_t offset = (index_t)line * pitch + column;
    const int has_left = column > 0;
    const int has_right = column + WIDTH < columns;
    REAL before[WIDTH], centre[WIDTH];
    u += offset;
    f += offset;
    u_new += offset;
    load_points(before, u + (row - 1) * plane, row > 0);
    load_points(centre, u + row * plane, 1);

    NO_UNROLL
    for (; row < last; row += AHEAD) {
        REAL after[AHEAD][WIDTH], given[AHEAD][WIDTH], left[AHEAD], right[AHEAD];
#if DIMS == 3
        REAL above[AHEAD][WIDTH], below[AHEAD][WIDTH];
#endif
        UNROLL
        for (int k = 0; k < AHEAD; ++k) {
            const index_t from = (row + k) * plane;
            const int there = row + k < last;
            load_points(after[k], u + from + plane, there && row + k + 1 < held);
            load_points_once(given[k], f + from, there);
            left[k] = there && has_left ? u[from - 1] : 0;
            right[k] = there && has_right ? u[from + WIDTH] : 0;
#if DIMS == 3
            load_points(above[k], u + from - pitch, there && line > 0);
            load_points(below[k], u + from + pitch, there && line + 1 < lines);
#endif
        }
        UNROLL
        for (int k = 0; k < AHEAD; ++k) {
            REAL next[WIDTH];
            UNROLL
            for (int i = 0; i < WIDTH; ++i) {
                const REAL beside = i > 0 ? centre[i > 0 ? i - 1 : 0] : left[k];
                const REAL beyond = i < WIDTH - 1 ? centre[i < WIDTH - 1 ? i + 1 : 0] : right[k];
                REAL rest = UPDATE_PLANE(beside, beyond, scale * given[k][i]);
#if DIMS == 3
                rest = UPDATE_LINES(above[k][i], below[k][i], rest);
#endif
                next[i] = UPDATE(before[i], after[k][i], rest);
            }
            if (column + WIDTH > columns) {
                UNROLL
                for (int i = 1; i < WIDTH; ++i) next[i] = column + i < columns ? next[i] : 0;
            }
            if (row + k < last) store_points(u_new + (row + k) * plane, next);
            UNROLL
            for (int i = 0; i < WIDTH; ++i) {
                before[i] = centre[i];
                centre[i] = after[k][i];
            }
        }
    }
}

KERNEL(THREADS, 1)
jacobi_residual(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f,
                GLOBAL double *RESTRICT partial, index_t held, index_t lines, index_t columns,
                index_t pitch, index_t begin, index_t chunks, double row_weight,
                double line_weight, double column_weight)
{
    SHARED double scratch[THREADS];
    const unsigned int vectors = (unsigned int)(pitch / WIDTH);
    const index_t row = begin + blockIdx.x / (unsigned int)chunks;
    const unsigned int chunk = blockIdx.x % (unsigned int)chunks;
    const index_t plane = lines * pitch;
    const double diagonal = 2 * (row_weight + line_weight + column_weight);
    double sum[SUMS] = {0};

    for (int step = 0; step < CHUNK; step += THREADS) {
        const unsigned int at = chunk * CHUNK + step + threadIdx.x;
        const unsigned int line = DIMS == 3 ? at / vectors : 0;
        const index_t column = (index_t)(at - line * vectors) * WIDTH;
        const int inside = line < lines && column < columns;
        const index_t offset = row * plane + (index_t)line * pitch + column;
        REAL given[WIDTH], centre[WIDTH], before[WIDTH], after[WIDTH];
        load_points(centre, u + offset, inside);
        load_points(before, u + offset - plane, inside && row > 0);
        load_points(after, u + offset + plane, inside && row + 1 < held);
        load_points_once(given, f + offset, inside);
        const double left = inside && column > 0 ? u[offset - 1] : 0;
        const double right = inside && column + WIDTH < columns ? u[offset + WIDTH] : 0;
#if DIMS == 3
        REAL above[WIDTH], below[WIDTH];
        load_points(above, u + offset - pitch, inside && line > 0);
        load_points(below, u + offset + pitch, inside && line + 1 < lines);
#endif
        UNROLL
        for (int i = 0; i < WIDTH; ++i) {
            const double beside = i > 0 ? (double)centre[i > 0 ? i - 1 : 0] : left;
            const double beyond = i < WIDTH - 1 ? (double)centre[i < WIDTH - 1 ? i + 1 : 0] : right;
            double r = given[i] - diagonal * centre[i];
            r += row_weight * ((double)before[i] + after[i]);
            r += column_weight * (beside + beyond);
#if DIMS == 3
            r += line_weight * ((double)above[i] + below[i]);
#endif
            if (i == 0 || column + i < columns) sum[0] += r * r;
        }
    }
    write_block_sums(sum, scratch, partial, (int)threadIdx.x, blockIdx.x);
}
