// y = A x, steps 6 and 7 of matvec_rungs.cu. unrolled: the square of `padded`; those that have all their columns are
// loaded without tests but for the last row, their loops are unrolled, and a pointer moves along instead of products of
// indices. So a thread has SIDE / PARTS loads in flight, and little but these and the sums. tuned: the number of rows
// and of the threads that share one derived from the device (hetero/kernels/matvec/rungs.py), not chosen by hand.
//
// SIDE rows to a block of SIDE PARTS threads. Preconditions as in matvec_rungs.cu.

#include "matvec_held.cu"

#ifndef SIDE
#define SIDE 32
#endif
#ifndef PARTS
#define PARTS 8
#endif
#ifndef RESIDENT
#define RESIDENT 1
#endif
#define SHARE (SIDE / PARTS)
#define PITCH (SIDE + 1)

KERNEL(SIDE * PARTS, RESIDENT)
matvec_tuned(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, HELD_ARGUMENTS)
{
    SHARED REAL square[SIDE * PITCH];
    const int thread = (int)threadIdx.x % SIDE, part = (int)threadIdx.x / SIDE;
    const int begin = part * SHARE;
    FIND_ROWS
    const int squares = (int)(count + SIDE - 1) / SIDE;
    const int whole = (int)count / SIDE;
    // Rows past the last one repeat it, and are not stored.
    const int low = begin < high ? begin : high - 1, rows = high - low;
    LOCAL REAL *const to = square + begin * PITCH + thread;
    LOCAL const REAL *const mine = square + thread * PITCH + begin;
    REAL sum = 0;
    A += low * a_row + thread * a_col;

    NO_UNROLL
    for (int at = 0; at < squares; ++at) {
        const int j = at * SIDE;
        if (at < whole) {
            REAL fetched[SHARE];
            GLOBAL const REAL *from = A;
            UNROLL
            for (int r = 0; r < SHARE; ++r) {
                fetched[r] = *from;
                if (r + 1 < rows) from += a_row;
            }
            UNROLL
            for (int r = 0; r < SHARE; ++r) to[r * PITCH] = fetched[r];
        } else {
            for (int r = 0; r < SHARE; ++r)
                to[r * PITCH] = begin + r < high && j + thread < count ? A[r * a_row] : (REAL)0;
        }
        A += SIDE * a_col;
        __syncthreads();
        if (at < whole) {
            UNROLL
            for (int i = 0; i < SHARE; ++i) sum += mine[i] * held[own + j + begin + i];
        } else {
            for (int i = 0; i < SHARE && j + begin + i < count; ++i)
                sum += mine[i] * held[own + j + begin + i];
        }
        __syncthreads();
    }
    ADD_PARTS(square)
    if (part == 0 && thread < high) STORE_SUM(first + thread)
}
