// The recurrence of Hestenes and Stiefel by its single operations on vectors of n elements.
//
// With a preconditioner that is launches of its own, z = M r, one reduction at a time:
//     cg_dots: r.z and r.r;       cg_direct: p = z + beta p, beta = r.z / r.z of the step before;
//     q = A p, with p.q;          cg_correct: x += alpha p, r -= alpha q, alpha = r.z / p.q.
// cg_dots: a.b and b.b, 2 passes, 4 n flops. cg_direct: 3 passes, 2 n flops. cg_correct: 6 passes,
// 4 n flops.
//
// Over the ranks of an MPI communicator, of which the host knows the scalars: cg_dots; cg_times:
// z = inverse * r, 3 passes; ranks_reduce: r -= alpha q with r.r and 0 (x + alpha p), which is NaN where x would not be finite,
// 5 passes, 6 n flops; ranks_combine: out = of_a a + of_b b, 3 passes.
//
// Preconditions. THREADS is a power of two, at least 8. WIDTH > 1: n is a multiple of WIDTH, and so
// are all addresses, in elements; over ranks it is 1. `out` may be a or b, and z may be r.

#include "vectors.cu"
#define SUMS 2
#define DIAGONAL 0
#include "cg_scalars.cu"

// One thread passes the record on, with the status and what is `noted`; all end here unless it is RUNNING.
#define PASS_ON(noted) \
    if (blockIdx.x == 0 && threadIdx.x == 0) { \
        UNROLLED(entry, RECORD) after[entry] = before[entry]; \
        after[STATUS] = status; \
        noted; \
    } \
    if (status != RUNNING) return;

KERNEL(THREADS, 1)
cg_dots(GLOBAL const REAL *a, GLOBAL const REAL *b, GLOBAL double *RESTRICT partial, index_t n,
        index_t blocks)
{
    SUM_UP(blockIdx.x, {
        REAL as[WIDTH], bs[WIDTH];
        LOAD(as, a + at);
        LOAD(bs, b + at);
        EACH(v) {
            sums[0] += (double)as[v] * bs[v];
            sums[1] += (double)bs[v] * bs[v];
        }
    })
}

KERNEL(THREADS, 1)
cg_direct(GLOBAL REAL *RESTRICT p, GLOBAL const REAL *RESTRICT z, GLOBAL const double *RESTRICT partial,
          GLOBAL const double *RESTRICT before, GLOBAL double *RESTRICT after,
          index_t blocks_before, index_t n, index_t blocks)
{
    SHARED double scratch[THREADS];
    add_up_blocks(partial, blocks_before, scratch, (int)threadIdx.x);
    const double r_z = scratch[0], r_r = scratch[1];
    int status = (int)before[STATUS];
    double growth = 0;
    if (status == RUNNING) {
        if (!FINITE(r_z + r_r)) status = NOT_FINITE;
        else if (r_r <= before[TARGET] || r_r < TINY) status = CONVERGED;
        else if (!(r_z > 0)) status = INDEFINITE;
        else if (before[COUNT] > 0) growth = r_z / before[R_DOT_Z];
    }
    PASS_ON(after[R_DOT_Z] = r_z)
    const REAL beta = (REAL)growth;
    GRID_STRIDE(at) {
        REAL ps[WIDTH], zs[WIDTH];
        LOAD(ps, p + at);
        LOAD(zs, z + at);
        EACH(v) ps[v] = zs[v] + beta * ps[v];
        STORE(p + at, ps);
    }
}

KERNEL(THREADS, 1)
cg_correct(GLOBAL REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL const REAL *RESTRICT p,
           GLOBAL const REAL *RESTRICT q, GLOBAL const double *RESTRICT partial,
           GLOBAL const double *RESTRICT before, GLOBAL double *RESTRICT after,
           index_t blocks_before, index_t n, index_t blocks)
{
    SHARED double scratch[THREADS];
    add_up_blocks(partial, blocks_before, scratch, (int)threadIdx.x);
    const double p_q = scratch[0];
    const double step = before[R_DOT_Z] / p_q;
    int status = (int)before[STATUS];
    if (status == RUNNING) {
        if (!FINITE(p_q)) status = NOT_FINITE;
        else if (!(p_q > 0)) status = INDEFINITE;
        else if (!FINITE((REAL)step)) status = NOT_FINITE;
    }
    PASS_ON(if (status == RUNNING) after[COUNT] = before[COUNT] + 1)
    const REAL alpha = (REAL)step;
    GRID_STRIDE(at) {
        REAL xs[WIDTH], rs[WIDTH], ps[WIDTH], qs[WIDTH];
        LOAD(xs, x + at);
        LOAD(rs, r + at);
        LOAD(ps, p + at);
        LOAD(qs, q + at);
        EACH(v) {
            xs[v] += alpha * ps[v];
            rs[v] -= alpha * qs[v];
        }
        STORE(x + at, xs);
        STORE(r + at, rs);
    }
}

KERNEL(THREADS, 1)
cg_times(GLOBAL REAL *z, GLOBAL const REAL *inverse, GLOBAL const REAL *r, index_t n, index_t blocks)
{
    GRID_STRIDE(at)
    EACH(v) z[at + v] = inverse[at + v] * r[at + v];
}

KERNEL(THREADS, 1)
ranks_reduce(GLOBAL const REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL const REAL *RESTRICT p,
             GLOBAL const REAL *RESTRICT q, GLOBAL double *RESTRICT partial, double alpha,
             index_t n, index_t blocks)
{
    SUM_UP(blockIdx.x, {
        const REAL left = r[at] - (REAL)alpha * q[at];
        r[at] = left;
        sums[0] += (double)left * left;
        sums[1] += (x[at] + (REAL)alpha * p[at]) * (REAL)0;
    })
}

KERNEL(THREADS, 1)
ranks_combine(GLOBAL REAL *out, GLOBAL const REAL *a, GLOBAL const REAL *b, double of_a, double of_b,
              index_t n, index_t blocks)
{
    GRID_STRIDE(at) out[at] = (REAL)of_a * a[at] + (REAL)of_b * b[at];
}
