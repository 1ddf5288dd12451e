// Conjugate gradients on n elements of vectors, for any matrix, given the product q = A p.
//
// Vectors that products take, x and p, are there whole; the elements begin at `own`. Sums of the
// step begin at `first_block` in `partial`.
//
// cg_sums: the sums over iterate k that its step needs: p.q, z.q, q.Mq, r.z (and r.r), with
// z = M r; M is 1, or the diagonal `inverse`. 3 passes; 8 n flops.
// cg_residual: r = b - q; p = r, or inverse * r; sums r.r, b.b. 4 passes.
// cg_advance: adds the sums up and takes the step (cg_scalars.cu): x += alpha p, r -= alpha q,
// p = z + beta p. 7 passes; 6 n flops.
//
// Preconditions. THREADS is a power of two. WIDTH > 1: n and own are multiples of WIDTH, and so are
// all addresses, in elements.

#include "vectors.cu"
#define SUMS (DIAGONAL ? 8 : 4)
#include "cg_scalars.cu"

KERNEL(THREADS, 1)
cg_sums(GLOBAL const REAL *RESTRICT p, GLOBAL const REAL *RESTRICT q, GLOBAL const REAL *RESTRICT r,
        INVERSE GLOBAL double *RESTRICT partial, index_t own, index_t first_block, index_t n,
        index_t blocks)
{
    SUM_UP(first_block + blockIdx.x, {
        REAL ps[WIDTH], qs[WIDTH], rs[WIDTH], ms[WIDTH];
        LOAD(ps, p + own + at);
        LOAD(qs, q + at);
        LOAD(rs, r + at);
        LOAD_INVERSE(ms, at);
        EACH(v) {
            const double qv = qs[v], rv = rs[v], zv = ms[v] * rs[v], mq = ms[v] * qs[v];
            if (DIAGONAL) sums[R_R] += rv * rv;
            sums[P_Q] += ps[v] * qv;
            sums[Z_Q] += zv * qv;
            sums[Q_MQ] += qv * mq;
            sums[R_Z] += rv * zv;
        }
    })
}

KERNEL(THREADS, 1)
cg_advance(GLOBAL REAL *RESTRICT x, GLOBAL REAL *RESTRICT r, GLOBAL REAL *RESTRICT p,
           GLOBAL const REAL *RESTRICT q, INVERSE GLOBAL const double *RESTRICT partial,
           GLOBAL const double *RESTRICT before, GLOBAL double *RESTRICT after, index_t blocks_before,
           index_t own, index_t n, index_t blocks)
{
    SHARED double scratch[THREADS];
    const int thread = (int)threadIdx.x;
    double step, growth;
    add_up_blocks(partial, blocks_before, scratch, thread);
    const int writes = blockIdx.x == 0 && thread == 0;
    if (take_step(before, after, scratch, writes, 0, &step, &growth) != RUNNING) return;
    const REAL alpha = (REAL)step, beta = (REAL)growth;

    GRID_STRIDE(at) {
        REAL xs[WIDTH], rs[WIDTH], ps[WIDTH], qs[WIDTH], ms[WIDTH];
        LOAD(xs, x + own + at);
        LOAD(rs, r + at);
        LOAD(ps, p + own + at);
        LOAD(qs, q + at);
        LOAD_INVERSE(ms, at);
        EACH(v) {
            xs[v] += alpha * ps[v];
            rs[v] -= alpha * qs[v];
            ps[v] = ms[v] * rs[v] + beta * ps[v];
        }
        STORE(x + own + at, xs);
        STORE(r + at, rs);
        STORE(p + own + at, ps);
    }
}

KERNEL(THREADS, 1)
cg_residual(GLOBAL const REAL *RESTRICT b, GLOBAL const REAL *RESTRICT q, GLOBAL REAL *RESTRICT r,
            GLOBAL REAL *RESTRICT p, INVERSE GLOBAL double *RESTRICT partial, index_t own, index_t n,
            index_t blocks)
{
    SUM_UP(blockIdx.x, {
        REAL bs[WIDTH], rs[WIDTH], ps[WIDTH];
        LOAD(bs, b + at);
        LOAD(rs, q + at);
        LOAD_INVERSE(ps, at);
        EACH(v) {
            rs[v] = bs[v] - rs[v];
            ps[v] *= rs[v];
            sums[0] += (double)rs[v] * rs[v];
            sums[1] += (double)bs[v] * bs[v];
        }
        STORE(r + at, rs);
        STORE(p + own + at, ps);
    })
}
