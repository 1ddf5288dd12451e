// y = A x, kernel after kernel: naive first, one idea each, after White (2013), chapter 4. A is m x k, by rows; 2 m k
// flops, and A is to be read once: 4 or 8 bytes for every 2 flops. ladder.py has a table of the steps.
//
// From step 2 on x is in constant memory, `held`, of 64 KiB. A block has BX threads, of which each makes EACH rows.
// From step 3 on it has BX rows, takes BX columns at a time, and BY threads share a row; BY divides BX. Of the kernels those
// of STEP alone are compiled.

CONSTANT_MEMORY(REAL, held, 65536 / (int)sizeof(REAL))

// -- 1 and 2. naive, constant: a thread for each row ------------------------------------------------------------------
// Neighbouring threads read elements that lie a row apart: each load of a warp touches 32 sectors of memory, and caches
// have to make up for it. grouped: a thread has EACH neighbouring rows, one after another. spread (SPREAD): rows that
// are as far apart as there are threads.
// constant (step 2): x in constant memory, which gives one element to all threads of a warp at once.
#if STEP == 1 || STEP == 2
#if STEP == 1
#define VECTOR GLOBAL const REAL *RESTRICT held
#else
#define VECTOR CONSTANT(REAL, held)
#endif
KERNEL(BX, 1)
matvec_naive(GLOBAL const REAL *RESTRICT A, VECTOR, GLOBAL REAL *RESTRICT y, index_t m, index_t k)
{
    const index_t thread = (index_t)blockIdx.x * BX + threadIdx.x, threads = (m + EACH * BX - 1) / (EACH * BX) * BX;
    NO_UNROLL
    for (int e = 0; e < EACH; ++e) {
        const index_t row = SPREAD ? thread + e * threads : thread * EACH + e;
        if (row >= m) return;
        REAL sum = 0;
        for (index_t j = 0; j < k; ++j) sum += A[row * k + j] * held[j];
        y[row] = sum;
    }
}
#endif

// The sums of the BY threads of a row become that of part 0, which writes it. `room` has BX BY elements.
#define WRITE_SUMS(room)                                                                                    \
    (room)[part * BX + thread] = sum;                                                                       \
    __syncthreads();                                                                                        \
    if (part == 0 && thread < high) {                                                                       \
        for (int other = 1; other < BY; ++other) sum += (room)[other * BX + thread];                        \
        y[first + thread] = sum;                                                                            \
    }

// Which of the block's rows and parts a thread has, its first row, and how many rows the block has.
#define FIND_ROWS                                                                                           \
    const int thread = (int)threadIdx.x % BX, part = (int)threadIdx.x / BX, begin = part * (BX / BY);       \
    const index_t first = (index_t)blockIdx.x * BX;                                                         \
    const int high = m - first < BX ? (int)(m - first) : BX;

// -- 3, 4 and 5. shared, split, padded: a square of A goes to shared memory by whole lines ----------------------------
// shared (listing 4.6): BX threads make BX rows. They fetch a square of A, a line of it at a time, then each goes along
// its own line of the square, where all threads of a warp meet in one bank.
// split (listing 4.9): BY threads share a row: BY times the loads in flight.
// padded (listing 4.11; PAD = 1): a line of the square takes one element more, so that the elements of a column lie in
// different banks; blocks start at different squares, so that they do not ask the same partition of memory.
// Beyond the matrix a thread loads the last row or column again, and nobody adds that up.
#if STEP == 3 || STEP == 4 || STEP == 5
#define PAD (STEP == 5)
KERNEL(BX *BY, 1)
matvec_squares(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, index_t m, index_t k)
{
    SHARED REAL square[BX * (BX + PAD)];
    FIND_ROWS
    const int squares = (int)((k + BX - 1) / BX), start = (int)(blockIdx.x % 8) * (256 / (int)sizeof(REAL)) / BX;
    REAL sum = 0;
    for (int step = 0; step < squares; ++step) {
        const int j = (PAD ? (start + step) % squares : step) * BX, wide = k - j < BX ? (int)k - j : BX;
        UNROLLED_RANGE(r, begin, begin + BX / BY, 1) {
            const index_t row = first + (r < high ? r : high - 1);
            square[r * (BX + PAD) + thread] = A[row * k + j + (thread < wide ? thread : wide - 1)];
        }
        __syncthreads();
        for (int i = begin; i < begin + BX / BY; ++i)
            if (i < wide) sum += square[thread * (BX + PAD) + i] * held[j + i];
        __syncthreads();
    }
    WRITE_SUMS(square)
}
#endif

// -- 6 and 7. unrolled, tuned: fine-tuning (listing 4.16) -------------------------------------------------------------
// As padded; whole squares are loaded without tests, all loads of a thread at once, and loops are unrolled.
#if STEP == 6 || STEP == 7
#define SHARE (BX / BY)
KERNEL(BX *BY, 1)
matvec_unrolled(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, index_t m, index_t k)
{
    SHARED REAL square[BX * (BX + 1)];
    FIND_ROWS
    LOCAL REAL *const to = square + begin * (BX + 1) + thread;
    LOCAL const REAL *const mine = square + thread * (BX + 1) + begin;
    const int low = begin < high ? begin : high - 1, rows = high - low;  // those past the last one repeat it
    const int whole = (int)k / BX, wide = (int)k % BX;
    GLOBAL const REAL *from = A + (first + low) * k + thread;
    REAL sum = 0;
    NO_UNROLL
    for (int at = 0; at < whole; ++at, from += BX) {
        REAL fetched[SHARE];
        GLOBAL const REAL *one = from;
        UNROLLED(r, SHARE) {
            fetched[r] = *one;
            if (r + 1 < rows) one += k;
        }
        UNROLLED(r, SHARE) to[r * (BX + 1)] = fetched[r];
        __syncthreads();
        UNROLLED(i, SHARE) sum += mine[i] * held[at * BX + begin + i];
        __syncthreads();
    }
    if (wide) {
        for (int r = 0; r < SHARE; ++r)
            if (begin + r < high && thread < wide) to[r * (BX + 1)] = from[r * k];
        __syncthreads();
        for (int i = 0; i < SHARE && begin + i < wide; ++i) sum += mine[i] * held[whole * BX + begin + i];
        __syncthreads();
    }
    WRITE_SUMS(square)
}
#endif
