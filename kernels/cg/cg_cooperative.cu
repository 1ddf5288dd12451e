// Conjugate gradients for -div grad on a small 2-D grid, many iterations in one launch.
//
// All blocks are on the device at once (a cooperative launch), one on a multiprocessor. A block
// owns `strip` rows: its x and r in registers, p in shared memory with two rows of the neighbours on
// each side. An iteration is the one of cg_stencil.cu: r = r' - alpha A p' and p = r + beta p' on its
// rows and one more on each side, which it computes just as the neighbour does; then the sums. Only
// the second row beyond comes from the neighbour, and all blocks' sums from all: through global
// memory, with stamps (stamped.cu), so that blocks wait for what they need and for nothing else.
// Per point and iteration: 24 flops; nothing but edges and sums leaves the multiprocessor.
//
// x, r and p are loaded at the start of a launch and stored at its end, after `iterations`
// iterations or where the iteration stops: what a block stores others have read, since they gave it
// their sums. Sums and edges are there twice, for even and odd iterates. Iteration `done` of a launch
// gives them the stamp `stamp` + done + 1; the next launch begins with the stamp that this one ended with.
//
// PEERS > 1 devices share the grid, each with rows [first, last), two at least. Buffers but x are of
// the whole grid on all of them, and have room for all blocks' sums. A block writes what others need
// to the memory of their devices, too. All add the sums in the same order, so that all take the same
// steps, with the same bits. peers: of each device, its own included, the addresses of edges, sums, r
// and p. x is where that of row 0 would be. A device that waits for another one for more than `patience`
// nanoseconds, at most 2^34, sets *lost and stops; its launches then do nothing.
//
// Preconditions. blocks = ceil((last - first) / strip); columns <= THREADS; POINTS * (THREADS /
// columns) >= strip + 2; edges: 4 words a point, sums: 4 words a sum, neither with a stamp that is
// to come; dynamic shared memory (in OpenCL, SHARED_BYTES): SUMS * THREADS doubles, and two planes of
// (strip + 4) * (columns + 2) elements, rounded up to 8 bytes. OpenCL does not promise that blocks run
// at once: there it is for a single block.

#define SUMS 4
#define DIAGONAL 0
#define IN_FLIGHT (PEERS + 1) // there are about as many sums of a device as threads

#include "stamped.cu"
#include "cg_scalars.cu"

#if PEERS > 1
#define PEER(device, type, entry) ((type *)peers[(device) * 4 + (entry)])
enum { ADDRESS_OF_EDGES, ADDRESS_OF_SUMS, ADDRESS_OF_R, ADDRESS_OF_P };
#endif

// A thread has POINTS neighbouring rows of one column; `at` is a point's place in a plane. What is so
// of which points is kept in bits: it would take a register for each otherwise.
#define EACH_POINT(m, at) UNROLL for (int m = 0, at = first_at; m < POINTS; ++m, at += pitch)
#define IS(bits) (((bits) >> m) & 1)
// Places of the present iterate's.
#define FIRST_SUM (turn * 2 * SUMS * (int)all_blocks)
#define FIRST_EDGE (turn * 2 * height * width)
#define APPLY(p)                                                                          \
    (centre * (p)[at] - c_column * ((p)[at - 1] + (p)[at + 1])                            \
     - c_row * ((p)[at - pitch] + (p)[at + pitch]))

#if PEERS > 1
#include "nanoseconds.cu"

#define LIMITS &is_lost, lost, patience
// The rows that the device before and the one after have copies of, `depth` each, as far as they are the block's:
// `give` is called with the device, the row and the column. Rows count from the block's first.
#define GIVE_ROWS(depth, give)                                                                        \
    for (int side = 0; side < 2; ++side) {                                                            \
        const int device = (int)rank + 2 * side - 1;                                                  \
        if (device < 0 || device >= PEERS) continue;                                                  \
        const int low = side ? (int)last - (depth) : (int)first, high = low + (depth);                \
        const int from = low > begin ? low - begin : 0, to = high < begin + own ? high - begin : own; \
        for (int i = thread; i < (to - from) * width; i += THREADS) {                                 \
            const int row = from + i / width, of_row = i % width;                                     \
            const index_t place = (index_t)(begin + row) * width + of_row;                            \
            give;                                                                                     \
        }                                                                                             \
    }
#else
#define LIMITS 0, 0, 0
#endif

// A value that another block puts, once it is there.
DEVICE double take(GLOBAL const word_t *words, unsigned int stamp, volatile int *is_lost, volatile int *lost,
                   index_t patience)
{
    double value;
#if PEERS > 1
    unsigned int begin = 0; // in units of 8 ns, which take a register less
    do {
        for (int tries = 0; tries < 64; ++tries)
            if (look(words, stamp, &value)) return value;
        const unsigned int time = (unsigned int)(nanoseconds() >> 3) | 1;
        if (begin == 0) begin = time;
        if (*lost || time - begin > (unsigned int)(patience >> 3)) *is_lost = *lost = 1;
    } while (!*is_lost);
#else
    while (!look(words, stamp, &value)) {}
#endif
    return value;
}

// The totals of all blocks' sums, once they are there: in scratch[0 ... SUMS), with a barrier.
DEVICE void take_sums(GLOBAL const word_t *words, int blocks, unsigned int stamp, LOCAL double *scratch,
                      int thread, volatile int *is_lost, volatile int *lost, index_t patience)
{
    const int entries = blocks * SUMS;
    double sum = 0;
    for (int at = thread; at < entries; at += IN_FLIGHT * THREADS) {
        double taken[IN_FLIGHT];
        int there = 0;
        UNROLLED(u, IN_FLIGHT) {
            if (at + u * THREADS < entries)
                there |= look(words + 2 * (at + u * THREADS), stamp, taken + u) << u;
        }
        UNROLLED(u, IN_FLIGHT) {
            if (at + u * THREADS >= entries) continue;
            if (!(there >> u & 1)) taken[u] = take(words + 2 * (at + u * THREADS), stamp, is_lost, lost, patience);
            sum += taken[u];
        }
    }
    add_up_entries(sum, scratch, thread);
}

KERNEL(THREADS, 1)
cg_persist(GLOBAL REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL REAL *p,
           GLOBAL word_t *all_edges, GLOBAL word_t *all_sums, GLOBAL const double *before,
           GLOBAL double *after,
#if PEERS > 1
           const index_t *RESTRICT peers, index_t rank, volatile int *lost, index_t patience,
#endif
           index_t rows, index_t columns, index_t first, index_t last, index_t strip,
           index_t first_block, index_t all_blocks, index_t stamp, index_t iterations,
           double row_weight, double column_weight)
{
#ifdef __OPENCL_VERSION__
    SHARED double memory[SHARED_BYTES / 8];
#else
    extern __shared__ double memory[];
#endif
#if PEERS > 1
    __shared__ int is_lost;
    if (*lost) return;
    is_lost = 0;
#endif
    const int thread = (int)threadIdx.x;
    const int width = (int)columns, height = (int)rows, pitch = width + 2;
    const int begin = (int)(first + blockIdx.x * strip);
    const int own = begin + (int)strip < (int)last ? (int)strip : (int)last - begin;
    const int plane = ((int)strip + 4) * pitch;
    LOCAL double *scratch = memory;
    LOCAL REAL *old_p = (LOCAL REAL *)(memory + SUMS * THREADS);
    LOCAL REAL *new_p = old_p + plane;
    const REAL c_row = (REAL)row_weight, c_column = (REAL)column_weight;
    const REAL centre = (REAL)(2 * (row_weight + column_weight));

    const int first_row = thread / width * POINTS - 1, column = thread % width;
    const int first_at = (first_row + 2) * pitch + 1 + column;
    // Points that are in the grid; of those, the block's own; and of those, what neighbours read.
    int exists = 0, is_own = 0, is_edge = 0;
    if (thread / width < THREADS / width) {
        UNROLLED(m, POINTS) {
            const int row = first_row + m;
            exists |= (row <= own && begin + row >= 0 && begin + row < height) << m;
            is_own |= (row >= 0 && row < own) << m;
            is_edge |= (row >= 0 && row < own && (row < 2 || row >= own - 2)) << m;
        }
    }
    const index_t first_place = (index_t)(begin + first_row) * width + column;

    int status = (int)before[STATUS];
    int count = (int)before[COUNT];
    const double target = before[TARGET];
    int turn = count & 1;

    for (int at = thread; at < 2 * plane; at += THREADS) old_p[at] = 0;
    __syncthreads();
    for (int i = thread; i < (own + 4) * width; i += THREADS) {
        const int row = i / width - 2, of_row = i % width;
        if (begin + row >= 0 && begin + row < height)
            old_p[(row + 2) * pitch + 1 + of_row] = p[(index_t)(begin + row) * width + of_row];
    }
    REAL my_x[POINTS], my_r[POINTS];
    UNROLLED(m, POINTS) {
        const index_t place = first_place + m * width;
        my_x[m] = IS(is_own) ? x[place] : 0;
        my_r[m] = IS(exists) ? r[place] : 0;
    }
    __syncthreads();

    unsigned int now = (unsigned int)stamp;
    for (int done = 0; status == RUNNING; ++done) {
        double step, growth;
        // Before iterate 0 there are no sums, and their values do not matter.
        if (count >= 0)
            take_sums(all_sums + FIRST_SUM, (int)all_blocks, now, scratch, thread, LIMITS);
#if PEERS > 1
        if (is_lost) return;
#endif
        status = next_step(count, target, scratch, &step, &growth);
        if (status != RUNNING || done == (int)iterations) break;
        const REAL alpha = (REAL)step, beta = (REAL)growth;
        ++count;
        ++now;
        turn ^= 1;
        GLOBAL word_t *edges = all_edges + FIRST_EDGE;

        EACH_POINT(m, at) {
            if (IS(exists)) {
                const REAL p_before = old_p[at];
                my_r[m] -= alpha * APPLY(old_p);
                new_p[at] = my_r[m] + beta * p_before;
                if (IS(is_own)) my_x[m] += alpha * p_before;
                if (IS(is_edge)) put(edges + 2 * (first_place + m * width), new_p[at], now);
            }
        }
        __syncthreads();
#if PEERS > 1
        GIVE_ROWS(2, put(PEER(device, word_t, ADDRESS_OF_EDGES) + FIRST_EDGE + 2 * place,
                         new_p[(row + 2) * pitch + 1 + of_row], now))
#endif

        double sums[SUMS] = {0};
        EACH_POINT(m, at) {
            if (IS(is_own)) {
                const REAL q = APPLY(new_p);
                sums[P_Q] += (double)new_p[at] * q;
                sums[Z_Q] += (double)my_r[m] * q;
                sums[Q_MQ] += (double)q * q;
                sums[R_Z] += (double)my_r[m] * my_r[m];
            }
        }
        add_up_threads(sums, scratch, thread);
        if (thread == 0) {
            const index_t place = FIRST_SUM + 2 * SUMS * (first_block + blockIdx.x);
            UNROLLED(s, SUMS) put(all_sums + place + 2 * s, sums[s], now);
#if PEERS > 1
            for (int device = 0; device < PEERS; ++device) {
                if (device == rank) continue;
                UNROLLED(s, SUMS) put(PEER(device, word_t, ADDRESS_OF_SUMS) + place + 2 * s, sums[s], now);
            }
#endif
        }

        for (int i = thread; i < 2 * width; i += THREADS) {
            const int row = i < width ? -2 : own + 1, of_row = i < width ? i : i - width;
            if (begin + row >= 0 && begin + row < height)
                new_p[(row + 2) * pitch + 1 + of_row]
                    = (REAL)take(edges + 2 * ((index_t)(begin + row) * width + of_row), now, LIMITS);
        }
        BARRIER();
        LOCAL REAL *swapped = old_p;
        old_p = new_p;
        new_p = swapped;
    }

    EACH_POINT(m, at) {
        if (IS(is_own)) {
            const index_t place = first_place + m * width;
            x[place] = my_x[m];
            r[place] = my_r[m];
            p[place] = old_p[at];
        }
    }
#if PEERS > 1
    // For the next launch, which begins when all devices have ended this one.
    __syncthreads();
    GIVE_ROWS(2, PEER(device, REAL, ADDRESS_OF_P)[place] = old_p[(row + 2) * pitch + 1 + of_row])
    GIVE_ROWS(1, PEER(device, REAL, ADDRESS_OF_R)[place] = r[place])
#endif
    if (blockIdx.x == 0 && thread == 0) {
        after[STATUS] = status;
        after[COUNT] = count;
        after[TARGET] = target;
    }
}
