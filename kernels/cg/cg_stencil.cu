// Conjugate gradients for -div grad on a box, matrix-free: one launch per iteration.
//
// A sweep takes iterate k - 1 to k. With q' = A p', the primes telling the iteration before:
//     x = x' + alpha p'      r = r' - alpha q'      p = r + beta p'
// and the sums p.q, r.q, q.q, r.r of iteration k, from which the next sweep has its alpha
// and beta (cg_scalars.cu). q' and q are not stored: p' and r' are read two points and one point
// beyond a tile's edge, and the iterates there are computed again by both neighbours.
//
// rows x lines x columns points; lines = 1 in 2-D. A block of COLUMNS x LINES threads, each with
// WIDTH columns, walks along the rows with three of them in registers; neighbours in a row are in
// shared memory, double-buffered, so there is one barrier per row. Loads run one row ahead.
// `now` and `next` hold p and r: row w begins at start + w * pitch with p, r follows. A negative
// pitch walks from the last row: what the sweep before wrote last is then read first, from the L2.
// Rows outside [first, last) are taken for zero, and so are lines and columns outside the grid.
// x is behind by one step every other time: add = 0 leaves it, 1 adds alpha p', 2 adds the step
// before that too, with the p that lies in `next`.
// Per point: 4 DIMS + 20 flops; reads p', r' and writes p, r, and in the mean 1.5 passes for x.
//
// Preconditions. chunk > 0, tiles = strips * bands * ceil(rows / chunk); WIDTH > 1: columns is a
// multiple of WIDTH, and so are pitch, start and x's address (in elements); COLUMNS * LINES is a power
// of two; in 2-D LINES = 1, in 3-D LINES > 4.

#include "vectors.cu"
#define SUMS 4
#define DIAGONAL 0

#define THREADS (COLUMNS * LINES)
// Threads at each end of a line, and lines at each end of a plane, that only feed the others.
#define EDGE ((2 + WIDTH - 1) / WIDTH)
#define LINE_EDGE (DIMS == 3 ? 2 : 0)

// Of shared memory, for each thread.
#define SHARED_BYTES (4 * sizeof(VECTOR) > 8 * SUMS ? 4 * sizeof(VECTOR) : 8 * SUMS)

#include "cg_scalars.cu"

#define LAST(plane, thread) ((LOCAL REAL *)(plane))[(thread) * WIDTH + WIDTH - 1]
#define FIRST(plane, thread) ((LOCAL REAL *)(plane))[(thread) * WIDTH]

// result = A times the point's column of values, with neighbours along the line and the plane taken
// from shared memory. Where a neighbour is beyond the block, the thread's own value stands in: such
// results are not used.
#define APPLY(result, above, here, below, plane)                                               \
    do {                                                                                       \
        const REAL left_ = LAST(plane, before_), right_ = FIRST(plane, after_);                \
        REAL sides_[WIDTH];                                                                    \
        SET_ZERO(sides_);                                                                      \
        if (DIMS == 3) {                                                                       \
            REAL one_[WIDTH], other_[WIDTH];                                                   \
            READ(one_, (plane) + up_);                                                         \
            READ(other_, (plane) + down_);                                                     \
            EACH(v) sides_[v] = c_line * (one_[v] + other_[v]);                                \
        }                                                                                      \
        EACH(v)                                                                                \
        {                                                                                      \
            const REAL lower_ = v ? here[v - (v > 0)] : left_;                                 \
            const REAL upper_ = v < WIDTH - 1 ? here[v + (v < WIDTH - 1)] : right_;            \
            result[v] = centre * here[v] - c_column * (lower_ + upper_)                        \
                        - c_row * (above[v] + below[v]) - sides_[v];                           \
        }                                                                                      \
    } while (0)

// Whether row w has a point here.
#define IN_GRID(w) (inside && (w) >= low && (w) < high)

KERNEL(THREADS, RESIDENT)
cg_sweep(GLOBAL REAL *RESTRICT x, GLOBAL const REAL *RESTRICT now, GLOBAL REAL *RESTRICT next,
         GLOBAL const double *RESTRICT partial_before, GLOBAL double *RESTRICT partial,
         GLOBAL const double *RESTRICT before, GLOBAL double *RESTRICT after, index_t blocks_before,
         index_t rows, index_t lines, index_t columns, index_t start, index_t pitch,
         index_t x_start, index_t x_pitch, index_t first, index_t last, index_t chunk,
         index_t strips, index_t bands, index_t tiles, index_t blocks, index_t first_block,
         index_t add, double row_weight, double line_weight, double column_weight)
{
    // Rows that neighbours read, p' and p, two of each; before and after, the sums.
    SHARED double2 shared[THREADS * SHARED_BYTES / 16];
    LOCAL double *scratch = (LOCAL double *)shared;
    LOCAL VECTOR *old_plane = (LOCAL VECTOR *)shared;
    LOCAL VECTOR *new_plane = old_plane + 2 * THREADS;
    const int thread = (int)threadIdx.x;
    const int lane = thread % COLUMNS;
    const int before_ = lane > 0 ? thread - 1 : thread;
    const int after_ = lane < COLUMNS - 1 ? thread + 1 : thread;
    const int level = DIMS == 3 ? thread / COLUMNS : 0;
    const int up_ = level > 0 ? thread - COLUMNS : thread;
    const int down_ = level < LINES - 1 ? thread + COLUMNS : thread;
    const REAL c_line = (REAL)line_weight;
    const REAL c_row = (REAL)row_weight, c_column = (REAL)column_weight;
    const REAL centre = (REAL)(2 * (row_weight + line_weight + column_weight));
    const index_t plane_size = lines * columns;

    add_up_blocks(partial_before, blocks_before, scratch, thread);
    double step, growth;
    const int writes = blockIdx.x == 0 && thread == 0;
    if (take_step(before, after, scratch, writes, add ? 0 : 1, &step, &growth) != RUNNING) return;
    __syncthreads();
    const REAL alpha = (REAL)step, beta = (REAL)growth;
    const REAL alpha_before = (REAL)(add == 2 ? before[ALPHA] : 0);

    double p_q = 0, r_q = 0, q_q = 0, r_r = 0;

    for (index_t tile = blockIdx.x; tile < tiles; tile += blocks) {
        const index_t strip = tile % strips, band = tile / strips % bands;
        const int begin = (int)(tile / strips / bands * chunk);
        const int end = begin + chunk < rows ? begin + (int)chunk : (int)rows;
        const int low = (int)first, high = (int)last;
        const index_t column = (strip * (COLUMNS - 2 * EDGE) + lane - EDGE) * WIDTH;
        const index_t line = band * (LINES - 2 * LINE_EDGE) + level - LINE_EDGE;
        const int inside = column >= 0 && column < columns && line >= 0 && line < lines;
        const int owned = inside && lane >= EDGE && lane < COLUMNS - EDGE
                          && level >= LINE_EDGE && level < LINES - LINE_EDGE;
        const index_t place = line * columns + column;
        // Where row w of p and of x is; r follows p.
        index_t at = start + place + (begin - 1) * pitch;
        index_t x_at = x_start + place + (begin - 1) * x_pitch;

        REAL p_above[WIDTH], p_here[WIDTH], p_below[WIDTH], r_here[WIDTH];
        REAL x_here[WIDTH] = {0}, p_older[WIDTH] = {0};
        REAL new_above[WIDTH] = {0}, new_here[WIDTH] = {0}, r_above[WIDTH] = {0};
        int w = begin - 1;
        LOAD_IF(IN_GRID(w - 1), p_above, now + (at - pitch));
        LOAD_IF(IN_GRID(w), p_here, now + at);
        LOAD_IF(IN_GRID(w), r_here, now + (at + plane_size));
        LOAD_IF(IN_GRID(w + 1), p_below, now + (at + pitch));
        WRITE(old_plane + thread, p_here);
        __syncthreads();

        NO_UNROLL
        for (int turn = 0; w <= end; ++w, at += pitch, x_at += x_pitch, turn ^= 1) {
            // What the next row needs.
            REAL p_coming[WIDTH], r_coming[WIDTH], x_coming[WIDTH], older_coming[WIDTH];
            const int ahead = w < end;
            const int changes = owned && w + 1 < end;
            LOAD_IF(ahead && IN_GRID(w + 2), p_coming, now + (at + 2 * pitch));
            LOAD_IF(ahead && IN_GRID(w + 1), r_coming, now + (at + pitch + plane_size));
            LOAD_IF(add && changes, x_coming, x + (x_at + x_pitch));
            LOAD_IF(add == 2 && changes, older_coming, next + (at + pitch));

            // The iterate at row w.
            REAL q[WIDTH], r[WIDTH], p[WIDTH];
            APPLY(q, p_above, p_here, p_below, old_plane + turn * THREADS);
            const int exists = IN_GRID(w);
            EACH(v) {
                r[v] = exists ? r_here[v] - alpha * q[v] : 0;
                p[v] = r[v] + beta * p_here[v];
            }
            if (owned && w >= begin && w < end) {
                STORE(next + at, p);
                STORE(next + at + plane_size, r);
                if (add) {
                    EACH(v) x_here[v] += alpha_before * p_older[v] + alpha * p_here[v];
                    STORE(x + x_at, x_here);
                }
            }

            // The sums over row w - 1: all its neighbours are known by now.
            if (w > begin) {
                APPLY(q, new_above, new_here, p, new_plane + (turn ^ 1) * THREADS);
                if (owned) {
                    EACH(v) {
                        const double qv = q[v], rv = r_above[v];
                        p_q += new_here[v] * qv;
                        r_q += rv * qv;
                        r_r += rv * rv;
                        q_q += qv * qv;
                    }
                }
            }

            WRITE(new_plane + turn * THREADS + thread, p);
            WRITE(old_plane + (turn ^ 1) * THREADS + thread, p_below);
            __syncthreads();

            SET(p_above, p_here);
            SET(p_here, p_below);
            SET(p_below, p_coming);
            SET(r_here, r_coming);
            SET(x_here, x_coming);
            SET(p_older, older_coming);
            SET(new_above, new_here);
            SET(new_here, p);
            SET(r_above, r);
        }
    }

    double sums[SUMS] = {p_q, r_q, q_q, r_r};  // in the places P_Q, Z_Q, Q_MQ, R_Z
    __syncthreads();
    write_block_sums(sums, scratch, partial, thread, first_block + blockIdx.x);
}

// x += the step it still lacks, once the sweeps have stopped: x is the iterate COUNT of the record.
// `even` and `odd` are the states that sweeps 0, 2, ... and 1, 3, ... wrote.
KERNEL(THREADS, 1)
cg_settle(GLOBAL REAL *RESTRICT x, GLOBAL const REAL *RESTRICT even, GLOBAL const REAL *RESTRICT odd,
          GLOBAL const double *RESTRICT record, index_t rows, index_t plane, index_t start,
          index_t pitch, index_t x_start, index_t blocks)
{
    const index_t count = (index_t)record[COUNT];
    if (record[PENDING] == 0) return;
    GLOBAL const REAL *p = count % 2 ? even : odd;
    const REAL alpha = (REAL)record[ALPHA];
    for (index_t row = blockIdx.x; row < rows; row += blocks) {
        for (index_t at = threadIdx.x; at < plane; at += THREADS)
            x[x_start + row * plane + at] += alpha * p[start + row * pitch + at];
    }
}
