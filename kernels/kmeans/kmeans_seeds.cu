// k-means++: squared distances from the nearest seed, with each of CANDIDATES rows as one more seed, and
// the row at which the running sum of weighted distances reaches a value.

#define COLUMNS 32
#define SUMS 1
#include "block_sums.cu"

#if GATHERED // candidates are given as numbers of rows of X, by doubles from at on
#define GIVEN double
#define CANDIDATE(c, column) X[(index_t)candidates[at + (c)] * d + (column)]
#else // as rows
#define GIVEN REAL
#define CANDIDATE(c, column) candidates[(c) * d + (column)]
#endif

// tried[c, i] = min(closest[i], |x_i - candidates[c]|^2), or the distance alone for the FIRST seed; and
// sums[block, c], the sum of weights[i] tried[c, i] over the block's `length` rows, in order of rows.
// A thread has a row; rows pass through shared memory COLUMNS elements at a time.
// X is (n, d), contiguous. Per element: 3 CANDIDATES flops, 1 element moved; per point CANDIDATES + 1.
// Preconditions: THREADS is a power of two; length is a multiple of it.
KERNEL(THREADS, 1)
try_seeds(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT weights,
          GLOBAL const GIVEN *RESTRICT candidates, GLOBAL const REAL *RESTRICT closest,
          GLOBAL REAL *RESTRICT tried, GLOBAL double *RESTRICT sums, index_t n, index_t d,
          index_t length, index_t at)
{
    SHARED REAL points[THREADS * (COLUMNS + 1)];
    SHARED REAL seeds[CANDIDATES * COLUMNS];
    SHARED double scratch[THREADS];
    const int thread = (int)threadIdx.x;
    const index_t begin = (index_t)blockIdx.x * length;
    const index_t end = begin + length < n ? begin + length : n;
    double totals[CANDIDATES];
    UNROLLED(c, CANDIDATES) totals[c] = 0;

    for (index_t first = begin; first < end; first += THREADS) {
        const int rows = end - first < THREADS ? (int)(end - first) : THREADS;
        REAL distances[CANDIDATES];
        UNROLLED(c, CANDIDATES) distances[c] = 0;
        for (index_t column = 0; column < d; column += COLUMNS) {
            const int wide = d - column < COLUMNS ? (int)(d - column) : COLUMNS;
            for (int element = thread; element < THREADS * COLUMNS; element += THREADS) {
                const int row = element / COLUMNS, j = element % COLUMNS;
                if (row < rows && j < wide)
                    points[row * (COLUMNS + 1) + j] = X[(first + row) * d + column + j];
            }
            for (int element = thread; element < CANDIDATES * COLUMNS; element += THREADS) {
                const int c = element / COLUMNS, j = element % COLUMNS;
                if (j < wide) seeds[element] = CANDIDATE(c, column + j);
            }
            __syncthreads();
            if (thread < rows) {
                for (int j = 0; j < wide; ++j) {
                    const REAL x = points[thread * (COLUMNS + 1) + j];
                    UNROLLED(c, CANDIDATES) {
                        const REAL apart = x - seeds[c * COLUMNS + j];
                        distances[c] += apart * apart;
                    }
                }
            }
            __syncthreads();
        }
        if (thread < rows) {
            const index_t row = first + thread;
            const REAL weight = WEIGHTED ? weights[row] : (REAL)1;
            UNROLLED(c, CANDIDATES) {
                REAL distance = distances[c];
                if (!FIRST && closest[row] < distance) distance = closest[row];
                tried[c * n + row] = distance;
                totals[c] += (double)weight * distance;
            }
        }
    }
    for (int c = 0; c < CANDIDATES; ++c) {
        write_block_sums(totals + c, scratch, sums, thread, (index_t)blockIdx.x * CANDIDATES + c);
        __syncthreads();
    }
}

// found[at + v] = the first of the rows from asked[2 v] * length on at which the sum of weights[i] closest[i]
// from there reaches asked[2 v + 1], or the last one of its part. A block for each value.
KERNEL(THREADS, 1)
find_rows(GLOBAL const REAL *RESTRICT closest, GLOBAL const REAL *RESTRICT weights,
          GLOBAL const double *RESTRICT asked, GLOBAL double *RESTRICT found, index_t n,
          index_t length, index_t at)
{
    SHARED double before[THREADS + 1];
    const int thread = (int)threadIdx.x;
    const index_t value = blockIdx.x;
    const index_t begin = (index_t)asked[2 * value] * length;
    const index_t end = begin + length < n ? begin + length : n;
    const index_t own = length / THREADS;
    const index_t from = begin + thread * own;
    const double rest = asked[2 * value + 1];
    double sum = 0;
    for (index_t row = from; row < from + own && row < end; ++row)
        sum += (double)closest[row] * (WEIGHTED ? weights[row] : (REAL)1);
    before[thread + 1] = sum;
    if (thread == 0) before[0] = 0;
    __syncthreads();
    if (thread == 0) {
        for (int other = 0; other < THREADS; ++other) before[other + 1] += before[other];
        if (!(before[THREADS] >= rest)) found[at + value] = (double)(end - 1);
    }
    __syncthreads();
    // One thread's rows reach it: those before did not.
    if (before[thread + 1] >= rest && !(thread > 0 && before[thread] >= rest)) {
        double reached = before[thread];
        index_t row = from;
        for (; row < from + own && row < end; ++row) {
            reached += (double)closest[row] * (WEIGHTED ? weights[row] : (REAL)1);
            if (reached >= rest) break;
        }
        if (row >= from + own || row >= end) row = from + own < end ? from + own - 1 : end - 1;
        found[at + value] = (double)row;
    }
}
