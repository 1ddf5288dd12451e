// C = A B step by step; matmul_rungs_column.cu has the steps before, matmul.cu is what comes next.
//
// 10 registers  a thread has SIDE x SIDE elements of C. Of each column of A's tile and row of B's it reads SIDE
//               elements to registers, which serve SIDE^2 products: 2 / SIDE reads of shared memory for each,
//               where `shared` took 1 + 1 / ROWS of single elements. Both tiles lie with k slow, so that what a
//               warp reads at once is one row of a tile.
// 11 quads      the rows of a thread, and its columns, are neighbours by GROUP: 16 bytes that one instruction
//               reads. A warp spends its issue slots on products, 8 reads (float32) in place of 16 for each 64.
// 12 buffered   the next tiles are on their way from memory to registers while these are multiplied, and go to a
//               second pair of tiles: nobody waits for memory, and one barrier a step is left of two.
//
// A block is BX x BY threads and has a tile of BY SIDE x BX SIDE elements of C. A's tile is 16 bytes longer in
// each row than needed, so that threads that store neighbours along k write to different banks.
// What `tiled` adds: factors of the next product are read while this one is computed; lanes of a warp lie
// 8 x 4 and share vectors; memory is read by vectors; the tile and parts of k are chosen for the sizes.

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 16
#endif
#ifndef BY
#define BY 16
#endif
#ifndef SIDE
#define SIDE 8
#endif
#ifndef DEPTH
#define DEPTH 8
#endif
#ifndef GROUP  // neighbouring rows, and columns, of a thread; divides SIDE
#define GROUP 1
#endif
#ifndef TILES  // pairs of tiles: 2 are buffered
#define TILES 1
#endif
#ifndef RESIDENT  // blocks that find registers on a multiprocessor
#define RESIDENT 1
#endif
#define THREADS (BX * BY)
#define ROWS (BY * SIDE)
#define COLUMNS (BX * SIDE)
#define PITCH (ROWS + 16 / (int)sizeof(REAL))
#define LOADS_A ((ROWS * DEPTH + THREADS - 1) / THREADS)
#define LOADS_B ((COLUMNS * DEPTH + THREADS - 1) / THREADS)

#include "matmul_rungs_arguments.cu"

// The row or column in the block's tile of the i-th one of a thread; `threads` threads lie along it.
DEVICE int own(int i, int thread, int threads) { return (i / GROUP * threads + thread) * GROUP + i % GROUP; }

// What a thread brings of a tile of A, neighbours of a warp along k, and of one of B, neighbours along a row;
// zeros beyond the matrices.
DEVICE void fetch(GLOBAL const REAL *a, GLOBAL const REAL *b, index_t a_row, index_t a_column, index_t b_row,
                  index_t b_column, int rows, int columns, int length, int thread, REAL *from_a, REAL *from_b)
{
    UNROLL
    for (int i = 0; i < LOADS_A; ++i) {
        const int at = i * THREADS + thread, r = at / DEPTH, l = at % DEPTH;
        from_a[i] = r < rows && l < length ? a[r * a_row + l * a_column] : (REAL)0;
    }
    UNROLL
    for (int i = 0; i < LOADS_B; ++i) {
        const int at = i * THREADS + thread, l = at / COLUMNS, c = at % COLUMNS;
        from_b[i] = l < length && c < columns ? b[l * b_row + c * b_column] : (REAL)0;
    }
}

// Puts it into the tiles.
DEVICE void store(LOCAL REAL *held_a, LOCAL REAL *held_b, int thread, const REAL *from_a, const REAL *from_b)
{
    UNROLL
    for (int i = 0; i < LOADS_A; ++i) {
        const int at = i * THREADS + thread;
        if (at < ROWS * DEPTH) held_a[at % DEPTH * PITCH + at / DEPTH] = from_a[i];
    }
    UNROLL
    for (int i = 0; i < LOADS_B; ++i) {
        const int at = i * THREADS + thread;
        if (at < COLUMNS * DEPTH) held_b[at] = from_b[i];
    }
}

// Adds the products of two tiles to a thread's sums.
DEVICE void multiply(LOCAL const REAL *held_a, LOCAL const REAL *held_b, int x, int y, REAL *sums)
{
    UNROLL
    for (int l = 0; l < DEPTH; ++l) {
        REAL left[SIDE], right[SIDE];
        UNROLL
        for (int i = 0; i < SIDE; ++i) left[i] = held_a[l * PITCH + own(i, y, BY)];
        UNROLL
        for (int i = 0; i < SIDE; ++i) right[i] = held_b[l * COLUMNS + own(i, x, BX)];
        UNROLL
        for (int r = 0; r < SIDE; ++r) {
            UNROLL
            for (int c = 0; c < SIDE; ++c) sums[r * SIDE + c] += left[r] * right[c];
        }
    }
}

// Per element of C: 2 k flops, k / (BX SIDE) elements of A and k / (BY SIDE) of B asked of memory or a cache,
// 2 k / SIDE elements of shared memory.
KERNEL(THREADS, RESIDENT)
matmul_registers(MATRICES)
{
    SHARED REAL held_a[TILES * DEPTH * PITCH] __attribute__((aligned(16)));  // for reads of 16 bytes
    SHARED REAL held_b[TILES * DEPTH * COLUMNS] __attribute__((aligned(16)));
    const index_t across = (n + COLUMNS - 1) / COLUMNS, down = (m + ROWS - 1) / ROWS;
    const index_t item = blockIdx.x / (across * down), block = blockIdx.x % (across * down);
    const index_t top = block / across * ROWS, left = block % across * COLUMNS;
    const int thread = (int)threadIdx.x, x = thread % BX, y = thread / BX;
    GLOBAL const REAL *a = &AT(A, a, item, top, 0), *b = &AT(B, b, item, 0, left);
    const int rows = m - top < ROWS ? (int)(m - top) : ROWS;
    const int columns = n - left < COLUMNS ? (int)(n - left) : COLUMNS;
    REAL sums[SIDE * SIDE], from_a[LOADS_A], from_b[LOADS_B];
    UNROLL
    for (int i = 0; i < SIDE * SIDE; ++i) sums[i] = 0;
#if TILES == 2
    fetch(a, b, a_row, a_column, b_row, b_column, rows, columns, k < DEPTH ? (int)k : DEPTH, thread, from_a, from_b);
    store(held_a, held_b, thread, from_a, from_b);
    __syncthreads();
    int now = 0;
    for (index_t first = DEPTH; first < k + DEPTH; first += DEPTH, now ^= 1) {
        const int length = k - first < DEPTH ? (int)(k - first) : DEPTH;  // less than 1 behind the last tile
        a += DEPTH * a_column;
        b += DEPTH * b_row;
        fetch(a, b, a_row, a_column, b_row, b_column, rows, columns, length, thread, from_a, from_b);
        multiply(held_a + now * DEPTH * PITCH, held_b + now * DEPTH * COLUMNS, x, y, sums);
        const int next = now ^ 1;
        store(held_a + next * DEPTH * PITCH, held_b + next * DEPTH * COLUMNS, thread, from_a, from_b);
        __syncthreads();
    }
#else
    for (index_t first = 0; first < k; first += DEPTH, a += DEPTH * a_column, b += DEPTH * b_row) {
        const int length = k - first < DEPTH ? (int)(k - first) : DEPTH;
        fetch(a, b, a_row, a_column, b_row, b_column, rows, columns, length, thread, from_a, from_b);
        store(held_a, held_b, thread, from_a, from_b);
        __syncthreads();
        multiply(held_a, held_b, x, y, sums);
        __syncthreads();
    }
#endif
    UNROLL
    for (int r = 0; r < SIDE; ++r) {
        UNROLL
        for (int c = 0; c < SIDE; ++c) {
            const int i = own(r, y, BY), j = own(c, x, BX);
            if (i < rows && j < columns) AT(C, c, item, top + i, left + j) = sums[r * SIDE + c];
        }
    }
}
