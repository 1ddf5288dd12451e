// One pass of a multigrid cycle for -div grad u = f over a grid, fused: on the way down smoothing,
// residual and restriction; on the way up interpolation, correction, smoothing and, on the finest
// grid, the squares of the residual.
//
// Grids are boxes of nz x ny x nx points in C order, zero outside; a 2-D grid has ny = 1. wz, wy, wx
// are 1 / spacing^2 of the axes, 0 for one that is not there. A point's color is (z + y + x) mod 2.
//
// A block marches along z over a window of 2 PAIRS x ROWS points, which is a tile and as many points
// around it as the tile's own depend on. A thread owns x = 2 i and 2 i + 1 of one row, one point of
// each color, over all planes. When plane p is read, the first color is relaxed in plane p - 1, the
// second in p - 2, residuals are taken in p - 3, and restricted in p - 4: neighbours along z are then
// in the thread's own registers, and those of other threads were left in shared memory a step
// before. Neighbours along z and y of the point of one color are the thread's and other threads'
// points of the other color in the same place; those along x are the thread's other point, and one
// of the pair before (for x even) or after it (for x odd).
//
// Per point and pass: u and f read once, u written, and a coarse grid read or written. 25 flops in
// 2-D, 32 in 3-D, and about 10 for the transfer.

// FIRST: the color that is relaxed first. ALIGNED: rows begin at addresses that two elements divide. ROWS is 1 in 2-D.
// AHEAD: planes from the one that is read to the one that is called to the cache; 0: none.
#define DOWN 0  // values of MODE
#define DOWN_FROM_ZERO 1
#define UP 2
#define UP_WITH_SQUARES 3
#define THREADS (PAIRS * ROWS)
#define HALO 3
#define TAPS 4
#define BUFFERS (ROWS > 1 ? 1 : 2)  // shared memory is short in 3-D
#define RESTRICTS (MODE == DOWN || MODE == DOWN_FROM_ZERO)
#define CORRECTS (MODE == UP || MODE == UP_WITH_SQUARES)
#define NEEDS_RESIDUALS (MODE != UP)

// A window's values of one color, with a border of zeros.
#define WIDTH (PAIRS + 2)
#define PLANE (ROWS > 1 ? (ROWS + 2) * WIDTH : WIDTH)
#define ROUND(array, i) (ROWS > 1 ? array[(i) - WIDTH] + array[(i) + WIDTH] : 0)

// The lines that a warp is going to read, one thread for each.
#if AHEAD && !defined(__OPENCL_VERSION__)
#define CALL_TO_CACHE(pointer)                                                         \
    if (threadIdx.x % (128 / sizeof(REAL2)) == 0)                                      \
    asm volatile("prefetch.global.L2 [%0];" ::"l"(pointer))
#else
#define CALL_TO_CACHE(pointer)
#endif

// Coarse plane z0 interpolated to one point, in its plane.
DEVICE REAL interpolated(GLOBAL const REAL *RESTRICT coarse, index_t z0, index_t mz, index_t my,
                         index_t mx, int y_left, REAL y_weight, int x_left, REAL x_weight)
{
    REAL sum = 0;
    if (z0 < 0 || z0 >= mz) return sum;
    UNROLLED(b, ROWS > 1 ? 2 : 1) {
        const int y0 = y_left + b;
        if (y0 < 0 || y0 >= my) continue;
        GLOBAL const REAL *line = coarse + (z0 * my + y0) * mx;
        REAL value = 0;
        if (x_left >= 0 && x_left < mx) value = (1 - x_weight) * line[x_left];
        if (x_left + 1 < mx && x_weight != 0) value += x_weight * line[x_left + 1];
        sum += (ROWS == 1 ? 1 : b ? y_weight : 1 - y_weight) * value;
    }
    return sum;
}

#define INTERPOLATED(z0, parity) \
    interpolated(coarse, z0, mz, my, mx, row_left, row_weight, parity##_left, parity##_weight)

// What becomes of the residual at the thread's point of plane z: it is kept, or its square added.
#if RESTRICTS
#define TAKE_RESIDUAL(kept, residual, z) kept = residual;
#elif MODE == UP_WITH_SQUARES
#define TAKE_RESIDUAL(kept, residual, z) \
    const REAL r = residual; \
    if ((z) >= z_own && (z) < z_end && (odd ? odd_own : even_own)) squares[t] += (double)r * r;
#else
#define TAKE_RESIDUAL(kept, residual, z)
#endif

// The pair of points at `place`.
#define READ_PAIR(even, odd, from)                                  \
    if (ALIGNED && even_inside) {                                   \
        const REAL2 pair = *(GLOBAL const REAL2 *)((from) + place); \
        even = pair.x;                                              \
        odd = pair.y;                                               \
    }                                                               \
    if (!ALIGNED && even_inside) even = (from)[place];              \
    if (!ALIGNED && odd_inside) odd = (from)[place + 1];

// Grid: z tiles x y tiles x x tiles, the last fastest. A tile is 5 integers: its first point, the end
// of its points, the end of those that its coarse points take from, its first coarse point, and
// their end. The window must hold a tile's points with HALO more on each side, and one more in x for
// it to begin at an even one; coarse points of a tile are at most THREADS in a plane. center is
// 2 (wz + wy + wx), reciprocal 1 / center.
KERNEL(THREADS, RESIDENT)
sweep(GLOBAL const REAL *RESTRICT u, GLOBAL const REAL *RESTRICT f, GLOBAL REAL *RESTRICT out,
      GLOBAL REAL *RESTRICT coarse, GLOBAL double *RESTRICT sums, index_t nz, index_t ny, index_t nx,
      double dz, double dy, double dx, double center, double reciprocal, double relaxation,
      index_t mz, index_t my, index_t mx, GLOBAL const int *RESTRICT z_tiles,
      GLOBAL const int *RESTRICT y_tiles, GLOBAL const int *RESTRICT x_tiles, index_t y_count,
      index_t x_count, GLOBAL const int *RESTRICT z_left, GLOBAL const REAL *RESTRICT z_weight,
      GLOBAL const int *RESTRICT y_left, GLOBAL const REAL *RESTRICT y_weight,
      GLOBAL const int *RESTRICT x_left, GLOBAL const REAL *RESTRICT x_weight,
      GLOBAL const int *RESTRICT y_first, GLOBAL const REAL *RESTRICT y_taps,
      GLOBAL const int *RESTRICT x_first, GLOBAL const REAL *RESTRICT x_taps)
{
    // Of the planes that are next: the second color's values for relaxing the first, and so on.
    SHARED REAL second_old[BUFFERS * PLANE];
    SHARED REAL first_new[BUFFERS * PLANE];
    SHARED REAL second_new[BUFFERS * PLANE];  // where it needs residuals
#if RESTRICTS
    SHARED REAL residuals[BUFFERS][ROWS][2 * PAIRS];
#endif

    const REAL wz = (REAL)dz, wy = (REAL)dy, wx = (REAL)dx;
    const REAL inverse = (REAL)reciprocal;
    const REAL diagonal = (REAL)center;
    const REAL omega = (REAL)relaxation;
    const int t = (int)threadIdx.x;
    const int row = t / PAIRS;
    const int lane = t % PAIRS;
    const int place_in_plane = (ROWS > 1 ? row + 1 : 0) * WIDTH + lane + 1;
    const int block = (int)blockIdx.x;
    GLOBAL const int *z_tile = z_tiles + 5 * (block / (int)(x_count * y_count));
    GLOBAL const int *y_tile = y_tiles + 5 * (block / (int)x_count % (int)y_count);
    GLOBAL const int *x_tile = x_tiles + 5 * (block % (int)x_count);
    const int z_own = z_tile[0], z_end = z_tile[1], z_last = RESTRICTS ? z_tile[2] : z_end;
    const int y_low = ROWS > 1 ? y_tile[0] - HALO : 0;
    const int x_low = (x_tile[0] - HALO) & ~1;
    const int y = y_low + row;
    const int x = x_low + 2 * lane;
    const int row_inside = y >= 0 && y < ny;
    const int even_inside = row_inside && x >= 0 && x < nx;
    const int odd_inside = row_inside && x >= 0 && x + 1 < nx;
    const int row_own = y >= y_tile[0] && y < y_tile[1];
    const int even_own = row_own && x >= x_tile[0] && x < x_tile[1];
    const int odd_own = row_own && x + 1 >= x_tile[0] && x + 1 < x_tile[1];
    const index_t plane = ny * nx;

    // Borders of the windows are never written again; what is computed from them is not used.
    for (int i = t; i < BUFFERS * PLANE; i += THREADS) {
        second_old[i] = 0;
        first_new[i] = 0;
        if (NEEDS_RESIDUALS) second_new[i] = 0;
    }
    __syncthreads();

    // Planes p, p - 1, ...: values of the first color, of the second, f of both, second's residuals.
    REAL a0 = 0, a1 = 0, a2 = 0, a3 = 0;
    REAL b0 = 0, b1 = 0, b2 = 0, b3 = 0, b4 = 0;
    REAL fa0 = 0, fa1 = 0, fa2 = 0, fa3 = 0;
    REAL fb0 = 0, fb1 = 0, fb2 = 0, rb2 = 0, rb3 = 0;
    REAL next_u_even = 0, next_u_odd = 0, next_f_even = 0, next_f_odd = 0;

#if RESTRICTS
    const int coarse_x = x_tile[4] - x_tile[3];
    const int mine = t < coarse_x * (ROWS > 1 ? y_tile[4] - y_tile[3] : 1);
    const int y0 = ROWS > 1 && mine ? y_tile[3] + t / coarse_x : 0;
    const int x0 = mine ? x_tile[3] + t % coarse_x : 0;
    const int tap_x = mine ? x_first[x0] - x_low : 0;
    const int tap_y = ROWS > 1 && mine ? y_first[y0] - y_low : 0;
    REAL taps[TAPS];
    UNROLLED(c, TAPS) taps[c] = x_taps[x0 * TAPS + c];
    const REAL z_scale = mz == nz ? (REAL)1 : (REAL)(mz + 1) / (REAL)(nz + 1);
    REAL left_sum = 0, right_sum = 0;
#endif
    // The residual of plane z goes to coarse planes z_left[z] and the next. On the way up: the coarse planes
    // that were last interpolated, this and the next.
    int left_plane = RESTRICTS ? z_tile[3] - 1 : -3;
    REAL left_even = 0, left_odd = 0, right_even = 0, right_odd = 0;
#if MODE == UP_WITH_SQUARES
    SHARED double squares[THREADS];  // a register more would spill
    squares[t] = 0;
#endif

    const int begin = z_own - HALO;
    const int end = z_last + (MODE == UP ? HALO - 1 : RESTRICTS ? HALO + 1 : HALO);
    index_t place = begin * plane + y * nx + x;  // of the pair in the plane to read next
    for (int step = begin - 1; step < end; ++step) {
        const int reading = BUFFERS == 2 ? (step + 1) & 1 : 0;
        const int writing = BUFFERS == 2 ? step & 1 : 0;
        const int here = reading * PLANE + place_in_plane;
        // Whether the point at work has odd x: the first color's in planes step - 1 and - 3, the
        // second's in step - 2.
        const int odd = (step - 1 + y + FIRST) & 1;
        const int inside = odd ? odd_inside : even_inside;
        const int beside = odd ? here + 1 : here - 1;

        // The plane that was read in the step before.
        b4 = b3, b3 = b2;
        fa3 = fa2, fa2 = fa1;
        rb3 = rb2;
        rb2 = 0;
        a3 = a2, a2 = a1, a1 = a0;
        b2 = b1, b1 = b0;
        fa1 = fa0;
        fb2 = fb1, fb1 = fb0;
        if (CORRECTS && step >= 0 && step < nz) {
            const REAL weight = z_weight[step];
            if (even_inside) next_u_even += (1 - weight) * left_even + weight * right_even;
            if (odd_inside) next_u_odd += (1 - weight) * left_odd + weight * right_odd;
        }
        a0 = odd ? next_u_even : next_u_odd;
        b0 = odd ? next_u_odd : next_u_even;
        fa0 = odd ? next_f_even : next_f_odd;
        fb0 = odd ? next_f_odd : next_f_even;

        // Read the next plane.
        next_u_even = next_u_odd = next_f_even = next_f_odd = 0;
        if (step + 1 >= 0 && step + 1 < nz && step + 1 < z_last + HALO) {
            READ_PAIR(next_f_even, next_f_odd, f)
            if (MODE != DOWN_FROM_ZERO) {
                READ_PAIR(next_u_even, next_u_odd, u)
            }
            const int left = CORRECTS ? z_left[step + 1] : left_plane;
            if (CORRECTS && left != left_plane) {
                // Kept from step to step, these would take registers that there are not.
                const int row_left = ROWS > 1 && row_inside ? y_left[y] : 0;
                const REAL row_weight = ROWS > 1 && row_inside ? y_weight[y] : 0;
                const int even_left = even_inside ? x_left[x] : 0;
                const int odd_left = odd_inside ? x_left[x + 1] : 0;
                const REAL even_weight = even_inside ? x_weight[x] : 0;
                const REAL odd_weight = odd_inside ? x_weight[x + 1] : 0;
                left_even = right_even;
                left_odd = right_odd;
                if (left != left_plane + 1) {
                    left_even = INTERPOLATED(left, even);
                    left_odd = INTERPOLATED(left, odd);
                }
                right_even = INTERPOLATED(left + 1, even);
                right_odd = INTERPOLATED(left + 1, odd);
                left_plane = left;
            }
        }
        if (even_inside && step + 1 + AHEAD >= 0 && step + 1 + AHEAD < nz &&
            step + 1 + AHEAD < z_last + HALO) {
            CALL_TO_CACHE(f + place + AHEAD * plane);
            if (MODE != DOWN_FROM_ZERO) CALL_TO_CACHE(u + place + AHEAD * plane);
        }
        place += plane;

        // Relax the first color.
        if (inside && step - 1 >= 0 && step - 1 < nz) {
            const REAL near = wx * (b1 + second_old[beside]) + wy * ROUND(second_old, here) +
                              wz * (b0 + b2);
            a1 += omega * (inverse * (fa1 + near) - a1);
        }
        // Relax the second.
        if (inside && step - 2 >= 0 && step - 2 < nz) {
            const REAL near = wx * (a2 + first_new[beside]) + wy * ROUND(first_new, here) +
                              wz * (a1 + a3);
            const REAL target = inverse * (fb2 + near);
            b2 += omega * (target - b2);
            TAKE_RESIDUAL(rb2, diagonal * (target - b2), step - 2)
        }
        if (step - 2 >= z_own && step - 2 < z_end) {
            const index_t there = place - 4 * plane;  // place is in plane step + 2 by now
            const REAL even_value = odd ? a2 : b2, odd_value = odd ? b2 : a2;
            if (even_own) out[there] = even_value;
            if (odd_own) out[there + 1] = odd_value;
        }
        // Residuals of the first color.
        REAL ra3 = 0;
        if (NEEDS_RESIDUALS && inside && step - 3 >= 0 && step - 3 < nz) {
            const REAL near = wx * (b3 + second_new[beside]) + wy * ROUND(second_new, here) +
                              wz * (b2 + b4);
            TAKE_RESIDUAL(ra3, fa3 - diagonal * a3 + near, step - 3)
        }
#if RESTRICTS
        if (step - 4 >= z_own && step - 4 < z_last) {
            const int left = z_left[step - 4];
            if (left > left_plane) {
                if (mine && left_plane >= z_tile[3])
                    coarse[(left_plane * my + y0) * mx + x0] = left_sum;
                left_sum = right_sum;
                right_sum = 0;
                left_plane = left;
            }
            REAL sum = 0;
            if (mine) {
                UNROLLED(b, ROWS > 1 ? TAPS : 1) {
                    LOCAL const REAL *line = residuals[reading][tap_y + b] + tap_x;
                    REAL value = 0;
                    UNROLLED(c, TAPS) value += taps[c] * line[c];
                    sum += (ROWS > 1 ? y_taps[y0 * TAPS + b] : 1) * value;
                }
            }
            const REAL weight = z_weight[step - 4];
            left_sum += z_scale * (1 - weight) * sum;
            right_sum += z_scale * weight * sum;
        }
#endif
        if (BUFFERS == 1) __syncthreads();
        second_old[writing * PLANE + place_in_plane] = b0;
        first_new[writing * PLANE + place_in_plane] = a1;
        if (NEEDS_RESIDUALS) second_new[writing * PLANE + place_in_plane] = b2;
#if RESTRICTS
        residuals[writing][row][2 * lane] = odd ? rb3 : ra3;
        residuals[writing][row][2 * lane + 1] = odd ? ra3 : rb3;
#endif
        __syncthreads();
    }
#if RESTRICTS
    if (mine) {
        if (left_plane >= z_tile[3] && left_plane < z_tile[4])
            coarse[(left_plane * my + y0) * mx + x0] = left_sum;
        if (left_plane + 1 >= z_tile[3] && left_plane + 1 < z_tile[4])
            coarse[((left_plane + 1) * my + y0) * mx + x0] = right_sum;
    }
#endif
#if MODE == UP_WITH_SQUARES
    for (int count = THREADS; count > 1;) {
        const int half_count = (count + 1) / 2;
        if (t < count - half_count) squares[t] += squares[t + half_count];
        __syncthreads();
        count = half_count;
    }
    if (t == 0) sums[block] = squares[0];
#endif
}
