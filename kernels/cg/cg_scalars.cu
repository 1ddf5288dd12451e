// The scalars of conjugate gradients, kept on the device: the recurrence's coefficients, and when to
// stop.
//
// The recurrence is PR-CG (T. Chen and E. Carson, "Predict-and-recompute conjugate gradient
// variants", SIAM J. Sci. Comput. 42, 2020): r.z of the next iterate is predicted from sums over the
// present one, and computed anew a step later. That leaves one reduction per iteration.
//
// A record is RECORD doubles. There are two, and kernels read one and write the other, so that no
// block reads what another writes. Once a record's status is not RUNNING, kernels change nothing
// but copy it on: the iterate stays that of the iteration at which it stopped.

#include "block_sums.cu"

// Statuses, which the host knows by these numbers too.
enum { RUNNING, CONVERGED, INDEFINITE, NOT_FINITE };

// Entries of a record.
#define STATUS 0
#define COUNT 1    // iterations done; -1 before the first
#define ALPHA 2    // step to the iterate COUNT
#define PENDING 3  // steps that x still lacks: 0 or 1
#define TARGET 4   // stop when r.r is no more than this
#define R_DOT_Z 5  // r.z of the iterate COUNT, where kernels keep it for the next
#define RECORD 8

// Places of the sums.
enum { P_Q, Z_Q, Q_MQ, R_Z };
#define R_R (DIAGONAL ? 4 : R_Z)

// M is the diagonal `inverse`, a kernel's argument, where DIAGONAL is 1; else it is 1.
#if DIAGONAL
#define INVERSE GLOBAL const REAL *RESTRICT inverse,
#define INVERSE_AT(place) inverse[place]
#define LOAD_INVERSE(a, place) LOAD(a, inverse + (place))
#else
#define INVERSE
#define INVERSE_AT(place) 1
#define LOAD_INVERSE(a, place) EACH(v_) a[v_] = 1
#endif

// Sums over n elements of vectors, of which the body adds WIDTH up; they are those of `block`.
#define SUM_UP(block, ...) \
    SHARED double scratch[SUMS * THREADS]; \
    double sums[SUMS] = {0}; \
    GRID_STRIDE(at) __VA_ARGS__ \
    write_block_sums(sums, scratch, partial, (int)threadIdx.x, block);

#define FINITE(number) ((number) - (number) == 0)
// Below this a product of two sums has no digits left: r is zero for all that can be computed.
#define TINY 1e-290
// Rounding of the sums leaves nothing of a predicted r.z that is smaller than the present one by
// this factor. The direction is then z alone, along which the step is right whatever came before.
#define NOISE (sizeof(REAL) == 4 ? 1e-5 : 1e-13)

// alpha and beta of the step that ends at iterate count + 1, from the sums over iterate `count`.
// Returns the status; with any but RUNNING there is no step. Before the first iterate, both are 0.
DEVICE int next_step(int count, double target, LOCAL const double *sums, double *alpha,
                     double *beta)
{
    *alpha = 0;
    *beta = 0;
    if (count < 0) return RUNNING;
    const double p_q = sums[P_Q], r_z = sums[R_Z], r_r = sums[R_R];
    const double step = r_z / p_q;
    const double predicted = r_z - 2 * step * sums[Z_Q] + step * step * sums[Q_MQ];
    if (!FINITE(r_r + r_z + p_q + sums[Z_Q] + sums[Q_MQ])) return NOT_FINITE;
    if (r_r <= target || r_r < TINY) return CONVERGED;
    if (!(p_q > 0) || !(r_z > 0)) return INDEFINITE;
    if (!FINITE(predicted) || !FINITE((REAL)step)) return NOT_FINITE;
    *alpha = step;
    if (predicted > NOISE * r_z) *beta = predicted / r_z;
    return RUNNING;
}

// The same from one record to the other. `writes` is true in the one thread that passes it on.
DEVICE int take_step(GLOBAL const double *before, GLOBAL double *after, LOCAL const double *sums,
                     int writes, double pending, double *alpha, double *beta)
{
    int status = (int)before[STATUS];
    const int count = (int)before[COUNT];
    if (status == RUNNING) status = next_step(count, before[TARGET], sums, alpha, beta);
    if (writes) {
        const int goes_on = status == RUNNING;
        after[STATUS] = status;
        after[COUNT] = goes_on ? count + 1 : count;
        after[ALPHA] = goes_on ? *alpha : before[ALPHA];
        after[PENDING] = goes_on ? (count < 0 ? 0 : pending) : before[PENDING];
        after[TARGET] = before[TARGET];
    }
    return status;
}
