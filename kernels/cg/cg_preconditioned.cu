// Conjugate gradients with a preconditioner that is launches of its own: z = M r.
//
// The recurrence of Hestenes and Stiefel, one reduction at a time:
//     cg_dots: r.z and r.r;       cg_direct: p = z + beta p, beta = r.z / r.z of the step before;
//     q = A p, with p.q;          cg_correct: x += alpha p, r -= alpha q, alpha = r.z / p.q.
// cg_dots: a.b and b.b, 2 passes, 4 n flops; it follows a product that gives no sums, too (a = q,
// b = p). cg_direct: 3 passes, 2 n flops. cg_correct: 6 passes, 4 n flops.
//
// Of several devices each has its own rows. r and z (a and b) have room for the whole grid, on which
// the rows begin at element `start`; x and p have `halo` elements of a neighbour before them. Its
// sums begin at `first_block` among those of all.
//
// Preconditions. THREADS is a power of two. WIDTH > 1: n is a multiple of WIDTH, and so are all
// addresses, in elements.

#include "vectors.cu"
#define SUMS 2
#define DIAGONAL 0
#include "cg_scalars.cu"

DEVICE void pass_on(GLOBAL const double *before, GLOBAL double *after, int status)
{
    UNROLL
    for (int entry = 0; entry < RECORD; ++entry) after[entry] = before[entry];
    after[STATUS] = status;
}

KERNEL(THREADS, 1)
cg_dots(GLOBAL const REAL *RESTRICT a, GLOBAL const REAL *RESTRICT b, GLOBAL double *RESTRICT partial,
        index_t start, index_t first_block, index_t n, index_t blocks)
{
    SHARED double scratch[SUMS * THREADS];
    double sums[SUMS] = {0, 0};
    GRID_STRIDE(at)
    {
        REAL as[WIDTH], bs[WIDTH];
        LOAD(as, a + start + at);
        LOAD(bs, b + start + at);
        EACH(v)
        {
            sums[0] += (double)as[v] * bs[v];
            sums[1] += (double)bs[v] * bs[v];
        }
    }
    write_block_sums(sums, scratch, partial, (int)threadIdx.x, first_block + blockIdx.x);
}

KERNEL(THREADS, 1)
cg_direct(GLOBAL REAL *RESTRICT p, GLOBAL const REAL *RESTRICT z, GLOBAL const double *RESTRICT partial,
          GLOBAL const double *RESTRICT before, GLOBAL double *RESTRICT after,
          index_t blocks_before, index_t start, index_t n, index_t blocks)
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
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        pass_on(before, after, status);
        after[R_DOT_Z] = r_z;
    }
    if (status != RUNNING) return;
    const REAL beta = (REAL)growth;
    GRID_STRIDE(at)
    {
        REAL ps[WIDTH], zs[WIDTH];
        LOAD(ps, p + at);
        LOAD(zs, z + start + at);
        EACH(v) ps[v] = zs[v] + beta * ps[v];
        STORE(p + at, ps);
    }
}

KERNEL(THREADS, 1)
cg_correct(GLOBAL REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL const REAL *RESTRICT p,
           GLOBAL const REAL *RESTRICT q, GLOBAL const double *RESTRICT partial,
           GLOBAL const double *RESTRICT before, GLOBAL double *RESTRICT after,
           index_t blocks_before, index_t start, index_t halo, index_t n, index_t blocks)
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
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        pass_on(before, after, status);
        if (status == RUNNING) after[COUNT] = before[COUNT] + 1;
    }
    if (status != RUNNING) return;
    const REAL alpha = (REAL)step;
    GRID_STRIDE(at)
    {
        REAL xs[WIDTH], rs[WIDTH], ps[WIDTH], qs[WIDTH];
        LOAD(xs, x + halo + at);
        LOAD(rs, r + start + at);
        LOAD(ps, p + halo + at);
        LOAD(qs, q + at);
        EACH(v)
        {
            xs[v] += alpha * ps[v];
            rs[v] -= alpha * qs[v];
        }
        STORE(x + halo + at, xs);
        STORE(r + start + at, rs);
    }
}
