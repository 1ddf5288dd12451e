// Products of a sparse matrix in compressed rows (CSR) with a vector, and sums with them.
//
// csr_product: q = A p; if STEP, also the sums that a step of conjugate gradients needs
// (cg_scalars.cu: p.q, z.q, q.Mq, r.z and, with DIAGONAL, r.r).
// Per product: 2 entries flops; entries (value + index) and rows (pointer) read once, p gathered.
//
// Short rows (LANES = 1): a block takes THREADS neighbouring rows; their entries lie one after
// another. It multiplies THREADS * DEPTH of them at a time, in the order of memory, into shared
// memory; then each thread adds up its own row's. Long rows: LANES threads share a row, each with
// DEPTH entries in flight. Sums are in an order that depends on the matrix and the macros alone.
// p may have more elements than rows: columns that belong to other devices. The element of the first
// row is that of column `own`.
//
// Preconditions. THREADS and LANES are powers of two, LANES at most THREADS; shared memory for
// THREADS * DEPTH elements if LANES = 1, and for SUMS * THREADS doubles.

#define ROWS (THREADS / LANES)
#define SUMS (DIAGONAL ? 8 : 4)
#include "cg_scalars.cu"

// The DEPTH entries of a thread, of which that number u is at a place; without any, the index is -1.
#define LOAD_ENTRIES(place) \
    REAL value[DEPTH]; \
    INDEX index[DEPTH]; \
    UNROLLED(u, DEPTH) { \
        const index_t at = place; \
        value[u] = 0; \
        index[u] = -1; \
        if (at < end) { \
            index[u] = LOAD_ONCE(indices + at); \
            value[u] = LOAD_ONCE(values + at); \
        } \
    }

// The product of one row of the block's with p; every thread of the block takes part.
DEVICE REAL times_row(GLOBAL const INDEX *pointers, GLOBAL const INDEX *indices, GLOBAL const REAL *values,
                      GLOBAL const REAL *p, index_t rows, index_t tile, LOCAL REAL *products, int thread)
{
    REAL sum = 0;
#if LANES == 1
    const index_t row = tile * ROWS + thread;
    const index_t past = tile * ROWS + ROWS < rows ? tile * ROWS + ROWS : rows;
    const index_t begin = pointers[tile * ROWS], end = pointers[past];
    const index_t mine = row < rows ? pointers[row] : end;
    const index_t mine_past = row < rows ? pointers[row + 1] : end;
    for (index_t chunk = begin; chunk < end; chunk += THREADS * DEPTH) {
        LOAD_ENTRIES(chunk + u * THREADS + thread)
        UNROLLED(u, DEPTH) products[u * THREADS + thread] = index[u] >= 0 ? value[u] * p[index[u]] : 0;
        __syncthreads();
        const int from = mine > chunk ? (int)(mine - chunk) : 0;
        const index_t left = mine_past - chunk;
        const int to = left < THREADS * DEPTH ? (int)left : THREADS * DEPTH;
        for (int at = from; at < to; ++at) sum += products[at];
        __syncthreads();
    }
#else
    const int lane = thread % LANES;
    const index_t row = tile * ROWS + thread / LANES;
    const index_t begin = row < rows ? pointers[row] : 0, end = row < rows ? pointers[row + 1] : 0;
    for (index_t chunk = begin + lane; chunk < end; chunk += LANES * DEPTH) {
        LOAD_ENTRIES(chunk + u * LANES)
        UNROLLED(u, DEPTH)
            if (index[u] >= 0) sum += value[u] * p[index[u]];
    }
    products[thread] = sum;
    ADD_TREE(LANES, 1, lane, {
        OTHERS sum += products[thread + other];
        products[thread] = sum;
    })
    __syncthreads();
#endif
    return sum;
}

// Products and, when they have been added up, sums.
#define PRODUCTS (LANES == 1 ? THREADS * DEPTH : THREADS)
#define PRODUCT_DOUBLES (PRODUCTS * sizeof(REAL) / 8)
#define SHARED_DOUBLES (PRODUCT_DOUBLES > SUMS * THREADS ? PRODUCT_DOUBLES : SUMS * THREADS)

KERNEL(THREADS, 1)
csr_product(GLOBAL const INDEX *RESTRICT pointers, GLOBAL const INDEX *RESTRICT indices,
            GLOBAL const REAL *RESTRICT values, GLOBAL const REAL *RESTRICT p,
            GLOBAL REAL *RESTRICT q,
#if STEP
            GLOBAL const REAL *RESTRICT r, GLOBAL const double *RESTRICT record, INVERSE
            GLOBAL double *RESTRICT partial, index_t first_block, index_t own,
#endif
            index_t rows, index_t blocks)
{
    SHARED double scratch[SHARED_DOUBLES];
    LOCAL REAL *products = (LOCAL REAL *)scratch;
    const int thread = (int)threadIdx.x;
#if STEP
    if (record[STATUS] != RUNNING) return;
    double sums[SUMS] = {0};
#endif
    for (index_t tile = blockIdx.x; tile * ROWS < rows; tile += blocks) {
        const index_t row = tile * ROWS + thread / LANES;
        const REAL product = times_row(pointers, indices, values, p, rows, tile, products, thread);
        if (thread % LANES == 0 && row < rows) {
            q[row] = product;
#if STEP
            const double qv = product, pv = p[own + row], rv = r[row], m = INVERSE_AT(row);
            if (DIAGONAL) sums[R_R] += rv * rv;
            sums[P_Q] += pv * qv;
            sums[Z_Q] += m * rv * qv;
            sums[Q_MQ] += m * qv * qv;
            sums[R_Z] += m * rv * rv;
#endif
        }
    }
#if STEP
    write_block_sums(sums, scratch, partial, thread, first_block + blockIdx.x);
#endif
}

#if !STEP
// packed[i] = p[places[i]]: what other devices need of this one's p.
KERNEL(THREADS, 1)
csr_pack(GLOBAL const REAL *RESTRICT p, GLOBAL const INDEX *RESTRICT places,
         GLOBAL REAL *RESTRICT packed, index_t count, index_t blocks)
{
    for (index_t at = (index_t)blockIdx.x * THREADS + threadIdx.x; at < count; at += blocks * THREADS)
        packed[at] = p[places[at]];
}
#endif
