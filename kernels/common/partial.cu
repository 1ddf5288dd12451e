// Adds up the partial results of a product that was split over k.
//
// out[b, i, j] = sum over s of partial[s, b, i, j]: partial is (parts, batch, rows, cols), contiguous;
// out has any strides. A block is LANES outputs wide and GROUPS parts deep: with many parts and few
// outputs, one thread per output would wait for its loads one after another.
// The order of the additions depends on the sizes alone, so that results repeat.
// Per output: parts additions, (parts + 1) elements moved.

#define IN_FLIGHT 4

KERNEL(LANES * GROUPS, 1)
sum_partials(GLOBAL const REAL *RESTRICT partial, GLOBAL REAL *RESTRICT out, index_t parts,
             index_t batch, index_t rows, index_t cols, index_t out_batch, index_t out_row,
             index_t out_col)
{
    SHARED REAL sums[GROUPS * LANES];
    const int lane = (int)(threadIdx.x % LANES);
    const int group = (int)(threadIdx.x / LANES);
    const index_t outputs = batch * rows * cols;
    const index_t output = (index_t)blockIdx.x * LANES + lane;
    REAL sum = 0;

    if (output < outputs) {
        for (index_t part = group; part < parts; part += GROUPS * IN_FLIGHT) {
            REAL values[IN_FLIGHT];
            UNROLLED(u, IN_FLIGHT) {
                const index_t p = part + u * GROUPS;
                values[u] = 0;
                if (p < parts) values[u] = partial[p * outputs + output];
            }
            UNROLLED(u, IN_FLIGHT) sum += values[u];
        }
    }

    if (GROUPS > 1) sums[group * LANES + lane] = sum;
    UNROLL for (int half_width = GROUPS / 2; half_width > 0; half_width /= 2) {
        __syncthreads();
        if (group < half_width) {
            sum += sums[(group + half_width) * LANES + lane];
            sums[group * LANES + lane] = sum;
        }
    }

    if (group == 0 && output < outputs) {
        const index_t j = output % cols;
        const index_t i = output / cols % rows;
        const index_t b = output / cols / rows;
        out[b * out_batch + i * out_row + j * out_col] = sum;
    }
}
