// y = A x step by step, to be read in this order: the way from one thread a row to matvec_tuned.cu, after A. White,
// "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn University, 2013, chapter 4. Any
// shape and any strides (in elements); 2 m k flops, and A is to be read once: 4 or 8 bytes for every 2 flops.
//
// 1 naive     a thread for each row. Neighbouring threads read elements that lie a row apart, so that every load of
//             a warp touches 32 sectors of memory; caches have to make up for it
// 1 or grouped  a thread has ROWS neighbouring rows, one after another: fewer threads have fewer loads in flight
// 1 or spread   rows that are as far apart as there are threads. White times both over the number of threads, and
//             takes as many threads as rows (figures 4.5 and 4.6)
// 2 constant  x in constant memory, which gives one element to all threads of a warp at once: half of the loads
//             no longer pass through the L1
// 3 shared    a square of A goes to shared memory first, by whole lines: each sector is asked for once
// 4 split     PARTS threads share a row: as many times the threads, and so loads in flight
// 5 padded    a row of the square takes one element more, so that the elements of a column lie in different banks;
//             and blocks start at different columns, so that they do not all ask the same part of memory
// 6 unrolled  fine-tuning: loops are unrolled, pointers move along: in matvec_tuned.cu
// 7 tuned     the same kernel, the shape of a block derived from the device
//
// Constant memory has HELD elements. Longer vectors pass through it in pieces, each with a launch that adds to y
// (`add`); of shorter ones, several of a batch are held at once.
//
// Preconditions: PARTS divides SIDE; 1 <= count, and vectors * count <= HELD.

#include "matvec_held.cu"

#ifndef THREADS
#define THREADS 128
#endif
#ifndef SIDE
#define SIDE 32
#endif
#ifndef PARTS
#define PARTS 8
#endif
#ifndef ROWS  // of a thread
#define ROWS 1
#endif
#ifndef SPREAD  // 1: they are no neighbours
#define SPREAD 0
#endif
#define PARTITIONS 8  // of the memory of White's Tesla T10, each of 256 bytes in turn
#define PARTITION_BYTES 256

// 1. naive, grouped, spread. Per row: 2 k loads. Of naive a thread has one row.
KERNEL(THREADS, 1)
matvec_naive(GLOBAL const REAL *RESTRICT A, GLOBAL const REAL *RESTRICT x, GLOBAL REAL *RESTRICT y,
             index_t m, index_t k, index_t tiles, index_t a_batch, index_t a_row, index_t a_col,
             index_t x_batch, index_t x_element, index_t y_batch, index_t y_element)
{
    const index_t vector = blockIdx.x / (unsigned int)tiles;
    const index_t thread = (index_t)(blockIdx.x % (unsigned int)tiles) * THREADS + threadIdx.x;
    x += vector * x_batch;
    NO_UNROLL
    for (int r = 0; r < ROWS; ++r) {
        const index_t row = SPREAD ? thread + r * tiles * THREADS : thread * ROWS + r;
        if (row >= m) return;
        GLOBAL const REAL *const a = A + vector * a_batch + row * a_row;
        REAL sum = 0;
        for (index_t j = 0; j < k; ++j) sum += a[j * a_col] * x[j * x_element];
        y[vector * y_batch + row * y_element] = sum;
    }
}

// 2. constant. Per row: k loads, and k elements of constant memory, the same for all threads.
KERNEL(THREADS, 1)
matvec_constant(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, HELD_ARGUMENTS)
{
    const index_t vector = blockIdx.x / (unsigned int)tiles;
    const index_t row = (index_t)(blockIdx.x % (unsigned int)tiles) * THREADS + threadIdx.x;
    if (row >= m) return;
    A += a_start + vector * a_batch + row * a_row;
    REAL sum = 0;
    for (int j = 0; j < count; ++j) sum += A[j * a_col] * held[vector * count + j];
    STORE_SUM(row)
}

// An element of the square from column j on. Beyond the matrix it is that of the last row or column, which nobody
// adds up: without tests, all loads of a thread are asked for at once.
#define ELEMENT(row, column) \
    A[((row) < high ? (row) : high - 1) * a_row + (j + ((column) < wide ? (column) : wide - 1)) * a_col]

// 3. shared. SIDE threads make SIDE rows. They fetch a square of A, a line of it at a time, then each goes along
// its own line of the square. There, all threads of a warp meet in one bank.
KERNEL(SIDE, 1)
matvec_shared(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, HELD_ARGUMENTS)
{
    SHARED REAL square[SIDE * SIDE];
    const int thread = (int)threadIdx.x;
    FIND_ROWS
    REAL sum = 0;
    for (int j = 0; j < count; j += SIDE) {
        const int wide = count - j < SIDE ? (int)count - j : SIDE;
        UNROLL
        for (int r = 0; r < SIDE; ++r) square[r * SIDE + thread] = ELEMENT(r, thread);
        __syncthreads();
        if (thread < high)
            for (int i = 0; i < wide; ++i) sum += square[thread * SIDE + i] * held[own + j + i];
        __syncthreads();
    }
    if (thread < high) STORE_SUM(first + thread)
}

// 4. split. PARTS times the threads: each fetches SIDE / PARTS lines' elements, and adds up as many columns of its row.
// The parts of a row are added up at the end, in the memory of the square.
KERNEL(SIDE * PARTS, 1)
matvec_split(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, HELD_ARGUMENTS)
{
    SHARED REAL square[SIDE * SIDE];
    const int thread = (int)threadIdx.x % SIDE, part = (int)threadIdx.x / SIDE;
    const int begin = part * (SIDE / PARTS), end = begin + SIDE / PARTS;
    FIND_ROWS
    REAL sum = 0;
    for (int j = 0; j < count; j += SIDE) {
        const int wide = count - j < SIDE ? (int)count - j : SIDE;
        UNROLL
        for (int r = 0; r < SIDE / PARTS; ++r) square[(begin + r) * SIDE + thread] = ELEMENT(begin + r, thread);
        __syncthreads();
        for (int i = begin; i < end; ++i)
            if (thread < high && i < wide) sum += square[thread * SIDE + i] * held[own + j + i];
        __syncthreads();
    }
    ADD_PARTS(square)
    if (part == 0 && thread < high) STORE_SUM(first + thread)
}

// 5. padded. As split, with lines of SIDE + 1 elements, and from another square on in each block, round the end.
KERNEL(SIDE * PARTS, 1)
matvec_padded(GLOBAL const REAL *RESTRICT A, CONSTANT(REAL, held), GLOBAL REAL *RESTRICT y, HELD_ARGUMENTS)
{
    SHARED REAL square[SIDE * (SIDE + 1)];
    const int thread = (int)threadIdx.x % SIDE, part = (int)threadIdx.x / SIDE;
    const int begin = part * (SIDE / PARTS), end = begin + SIDE / PARTS;
    FIND_ROWS
    const int squares = (int)(count + SIDE - 1) / SIDE;
    const int start = (int)(blockIdx.x % PARTITIONS) * (PARTITION_BYTES / (int)sizeof(REAL)) / SIDE;
    REAL sum = 0;
    for (int step = 0; step < squares; ++step) {
        const int j = (start + step) % squares * SIDE;
        const int wide = count - j < SIDE ? (int)count - j : SIDE;
        UNROLL
        for (int r = 0; r < SIDE / PARTS; ++r) square[(begin + r) * (SIDE + 1) + thread] = ELEMENT(begin + r, thread);
        __syncthreads();
        for (int i = begin; i < end; ++i)
            if (thread < high && i < wide) sum += square[thread * (SIDE + 1) + i] * held[own + j + i];
        __syncthreads();
    }
    ADD_PARTS(square)
    if (part == 0 && thread < high) STORE_SUM(first + thread)
}
