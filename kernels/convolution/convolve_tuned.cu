// Convolution, steps 5 and 6 of convolve_rungs.cu. unrolled: as `padded`, but pointers move along instead of products
// of indices, and the taps of a piece are unrolled, STEP at a time; the last TAIL of them (the filter's width modulo
// STEP, 0 where that divides it) too. A product takes two loads of shared memory, one of them the same for a warp.
// tuned: the shape of a block derived from device and filter (hetero/kernels/convolution/rungs.py), not chosen by hand.
//
// Arguments and the copies: see convolve_padded. STEP divides BX.

#ifndef REAL
#define REAL float
#endif
#ifndef BX
#define BX 32
#endif
#ifndef BY
#define BY 8
#endif
#ifndef STEP
#define STEP 8
#endif
#ifndef TAIL
#define TAIL 0
#endif

KERNEL(BX * BY, 1)
convolve_tuned(GLOBAL const REAL *RESTRICT padded, GLOBAL REAL *RESTRICT out, index_t filter_height,
               index_t filter_width, index_t out_height, index_t out_width, index_t pad_batch, index_t pad_row,
               index_t pad_taps, index_t tap_pitch, index_t tiles_down, index_t tiles_across,
               index_t out_batch, index_t out_row, index_t out_column)
{
    SHARED REAL tile_rows[BY * 2 * BX];
    SHARED REAL tile_taps[BX];
    const int x = (int)threadIdx.x % BX, y = (int)threadIdx.x / BX;
    const unsigned int tile = blockIdx.x / (unsigned int)tiles_across;
    const index_t column = (index_t)(blockIdx.x % (unsigned int)tiles_across) * BX + x;
    const index_t row = (index_t)(tile % (unsigned int)tiles_down) * BY + y;
    const index_t b = tile / (unsigned int)tiles_down;
    GLOBAL const REAL *from = padded + b * pad_batch + row * pad_row + column;
    GLOBAL const REAL *taps = padded + pad_taps + x;
    LOCAL REAL *const mine = tile_rows + y * 2 * BX + x;
    const int width = (int)filter_width;
    REAL sum = 0;

    NO_UNROLL
    for (int u = 0; u < (int)filter_height; ++u) {
        NO_UNROLL
        for (int v = 0; v < width; v += BX) {
            const int steps = (width - v < BX ? width - v : BX) / STEP;
            const REAL near = from[v], far = from[v + BX];
            const REAL tap = y == 0 ? taps[v] : (REAL)0;
            __syncthreads();
            mine[0] = near;
            mine[BX] = far;
            if (y == 0) tile_taps[x] = tap;
            __syncthreads();
            NO_UNROLL
            for (int step = 0; step < steps; ++step) {
                UNROLL
                for (int i = 0; i < STEP; ++i) sum += mine[step * STEP + i] * tile_taps[step * STEP + i];
            }
#if TAIL > 0
            if (steps < BX / STEP) {
                UNROLL
                for (int i = 0; i < TAIL; ++i) sum += mine[steps * STEP + i] * tile_taps[steps * STEP + i];
            }
#endif
        }
        from += pad_row;
        taps += tap_pitch;
    }
    if (row < out_height && column < out_width)
        out[b * out_batch + row * out_row + column * out_column] = sum;
}
