// Jacobi's method for -div grad u = f on a 2-D grid with 5 points: DEPTH sweeps in one pass over the
// memory.
//
// Buffers hold `held` rows of `pitch` elements, of which the first `columns` are points of the grid;
// outside of them, and of the held rows, u is zero. What lies between `columns` and `pitch` is zero
// in u and stays so. `first` and `last` are the rows (counted as in the buffers) where the grid
// begins and ends.
//
// A sweep makes u_new = (f + sum over axes of weight (before + after)) / sum of 2
// weights. A point has the same operations in the same order whatever the grid's cut into tiles and
// slabs, so the results are the same bits.
//
// A tile is LANES * WIDTH columns wide, of which SKIRT on either side are computed in vain, since
// each sweep needs one more neighbour. A lane holds WIDTH columns and walks down a strip of rows
// with all sweeps at once: when row r of u arrives, sweep 1 makes row r - 1, sweep 2 makes row
// r - 2 out of that, and so on; each sweep keeps two rows in registers, and the last DEPTH rows of
// f stay there too. Neighbours in a row lie at the next lane: sweep s needs them of the row that
// sweep s - 1 made when the previous row arrived, so that one exchange serves all sweeps.
//
// Per sweep and point: 6 flops as in a textbook, and 3 / DEPTH elements moved, times the redundant
// share (LANES WIDTH / (LANES WIDTH - 2 SKIRT)) (strip + 2 DEPTH) / strip.
// Preconditions: pitch is a multiple of WIDTH, addresses are multiples of 16 bytes; rows
// begin - DEPTH to end + DEPTH are held where the grid has them. With WARPS (CUDA): LANES is 32, and
// DEPTH is even or 1.

#define THREADS (LANES * GROUPS)
#include "vectors.cu"

// DEPTH: sweeps of a pass; AHEAD: rows of loads that are in flight, which divides PHASES.
#define SKIRT ((DEPTH + WIDTH - 1) / WIDTH * WIDTH)
#define VALID (LANES * WIDTH - 2 * SKIRT)

// values = the WIDTH points at `from`, or zeros where there are none.
DEVICE void load_points(REAL *values, GLOBAL const REAL *from, int there)
{
    LOAD_IF(there, values, from);
}

// How a lane gets its neighbours' ends of a row. On CUDA a warp walks alone, and its lanes exchange
// through registers. Elsewhere it is through shared memory, in turn in two halves of it, so that one
// barrier a row is enough.
// The loop over rows is unrolled PHASES times, so that registers need not be moved for the row that
// moves on.
#define PHASES (WARPS || DEPTH > 1 ? DEPTH : 2)
#if WARPS
#define EXCHANGE(phase, rows)
#define LEFT(phase, rows, s) __shfl_up_sync(0xffffffffu, rows[s][WIDTH - 1], 1)
#define RIGHT(phase, rows, s) __shfl_down_sync(0xffffffffu, rows[s][0], 1)
#else
#define SLOT(phase, side, sweep) \
    ((((phase) % 2 * 2 + (side)) * DEPTH + (sweep)) * (THREADS + 2) + 1)
#define EXCHANGE(phase, rows) \
    UNROLLED(s, DEPTH) { \
        exchange[SLOT(phase, 0, s) + thread] = rows[s][WIDTH - 1]; \
        exchange[SLOT(phase, 1, s) + thread] = rows[s][0]; \
    } \
    __syncthreads()
#define LEFT(phase, rows, s) exchange[SLOT(phase, 0, s) + thread - 1]
#define RIGHT(phase, rows, s) exchange[SLOT(phase, 1, s) + thread + 1]
#endif

// Where f of the row that sweep s makes (0 the first) is: in a ring.
#define GIVEN(phase, s) given[((phase) - (s) + PHASES) % DEPTH]

// Walks down rows begin to end. `rim`: the tile, or the rows it loads, may reach outside of the
// grid, where u is zero in every sweep, or of what is held. It is a constant: with WARPS the
// tiles inside have a loop of their own, without the tests.
// Rows and columns are 32-bit here, for there are few registers; offsets in memory are not.
DEVICE void walk(GLOBAL const REAL *u, GLOBAL const REAL *f, GLOBAL REAL *u_new,
                 LOCAL REAL *exchange, int thread, int lane, int held, int first, int last,
                 int columns, index_t pitch, int column, int begin, int end, REAL along_rows,
                 REAL along_columns, REAL scale, const int rim)
{
    REAL before[DEPTH][WIDTH], centre[DEPTH][WIDTH], given[DEPTH][WIDTH];
    REAL u_ahead[AHEAD][WIDTH], f_ahead[AHEAD][WIDTH];
    const int inside = !rim || (column >= 0 && column < columns);
    const int points = inside ? columns - column : 0;  // of the grid, from this column on
    const int stores = lane * WIDTH >= SKIRT && lane * WIDTH < SKIRT + VALID && column < columns;
    int row = begin - DEPTH;

    UNROLLED(i, WIDTH) UNROLLED(s, DEPTH) before[s][i] = centre[s][i] = given[s][i] = 0;
    u += row * pitch + column;
    f += (row - 1) * pitch + column;
    u_new += (row - DEPTH) * pitch + column;
    UNROLLED(k, AHEAD) {
        load_points(u_ahead[k], u, inside && (!rim || (unsigned int)(row + k) < held));
        load_points(f_ahead[k], f, inside && (!rim || (unsigned int)(row + k - 1) < held));
        u += pitch;
        f += pitch;
    }

    NO_UNROLL
    for (; row < end + DEPTH; row += PHASES) {
        UNROLLED(phase, PHASES) {
            const int r = row + phase;
            REAL after[WIDTH];
            UNROLLED(i, WIDTH) {
                GIVEN(phase, 0)[i] = scale * f_ahead[phase % AHEAD][i];
                after[i] = u_ahead[phase % AHEAD][i];
            }
            load_points(u_ahead[phase % AHEAD], u,
                        inside && (!rim || (unsigned int)(r + AHEAD) < held));
            load_points(f_ahead[phase % AHEAD], f,
                        inside && (!rim || (unsigned int)(r + AHEAD - 1) < held));
            EXCHANGE(phase, centre);
            UNROLLED(s, DEPTH) {
                const REAL left = LEFT(phase, centre, s), right = RIGHT(phase, centre, s);
                const int made = !rim || (r - s - 1 >= first && r - s - 1 < last) ? points : 0;
                REAL next[WIDTH];
                UNROLLED(i, WIDTH) {
                    const REAL beside = i > 0 ? centre[s][i > 0 ? i - 1 : 0] : left;
                    const REAL beyond = i < WIDTH - 1 ? centre[s][i < WIDTH - 1 ? i + 1 : 0] : right;
                    const REAL rest = fma(along_columns, beside + beyond, GIVEN(phase, s)[i]);
                    next[i] = fma(along_rows, before[s][i] + after[i], rest);
                    if (rim && i >= made) next[i] = 0;
                }
                UNROLLED(i, WIDTH) {
                    before[s][i] = centre[s][i];
                    centre[s][i] = after[i];
                    after[i] = next[i];
                }
            }
            if (stores && r - DEPTH >= begin && r - DEPTH < end) STORE(u_new, after);
            u += pitch;
            f += pitch;
            u_new += pitch;
        }
    }
}

KERNEL(THREADS, BLOCKS)
jacobi_blocked(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f,
               GLOBAL REAL *RESTRICT u_new, index_t held, index_t first, index_t last,
               index_t columns, index_t pitch, index_t begin, index_t end, index_t strip,
               index_t tiles, double row_factor, double column_factor, double f_factor)
{
    SHARED REAL exchange[WARPS ? 1 : 2 * 2 * DEPTH * (THREADS + 2)];
    const int thread = (int)threadIdx.x;
    const int lane = thread % LANES;
    const int block_column = (int)(blockIdx.x % (unsigned int)tiles) * (GROUPS * VALID);
    const int column = block_column + (thread / LANES) * VALID + lane * WIDTH - SKIRT;
    const int row = (int)begin + (int)(blockIdx.x / (unsigned int)tiles) * (int)strip;
    const int stop = row + (int)strip < (int)end ? row + (int)strip : (int)end;

#define WALK(rim) \
    walk(u, f, u_new, exchange, thread, lane, (int)held, (int)first, (int)last, (int)columns, \
         pitch, column, row, stop, (REAL)row_factor, (REAL)column_factor, (REAL)f_factor, rim)
    if (WARPS && block_column >= SKIRT && block_column + GROUPS * VALID + SKIRT <= columns
        && row - DEPTH > 0 && stop + DEPTH + PHASES + AHEAD < held) {
        WALK(0);
        return;
    }
    WALK(1);
}
