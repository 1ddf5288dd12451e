// Columns of X: sums for their means and variances, and X less its means.

// Sums over a block's rows of x - x_0 and of its square, x_0 being the first row: for column j
// partial[(block * 2) * d + j] and partial[(block * 2 + 1) * d + j]. LANES columns side by side.
// Per element: 3 flops, 1 element moved.
KERNEL(THREADS, 1)
sum_columns(GLOBAL const REAL *RESTRICT X, GLOBAL double *RESTRICT partial, index_t n, index_t d,
            index_t blocks)
{
    SHARED double scratch[2 * THREADS];
    const int thread = (int)threadIdx.x;
    const int group = thread / LANES;
    for (index_t first = 0; first < d; first += LANES) {
        const index_t j = first + thread % LANES;
        double sum = 0, square = 0;
        if (j < d) {
            const REAL origin = X[j];
            for (index_t row = (index_t)blockIdx.x * (THREADS / LANES) + group; row < n;
                 row += blocks * (THREADS / LANES)) {
                const double apart = (double)X[row * d + j] - origin;
                sum += apart;
                square += apart * apart;
            }
        }
        scratch[thread] = sum;
        scratch[THREADS + thread] = square;
        for (int half_width = THREADS / LANES / 2; half_width > 0; half_width /= 2) {
            __syncthreads();
            if (group < half_width) {
                scratch[thread] += scratch[thread + half_width * LANES];
                scratch[THREADS + thread] += scratch[THREADS + thread + half_width * LANES];
            }
        }
        if (group == 0 && j < d) {
            partial[(index_t)blockIdx.x * 2 * d + j] = scratch[thread];
            partial[((index_t)blockIdx.x * 2 + 1) * d + j] = scratch[THREADS + thread];
        }
        __syncthreads();
    }
}

// centred[i, j] = X[i, j] - means[j]. Per element: 1 flop, 2 elements moved.
KERNEL(THREADS, 1)
centre_columns(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT means,
               GLOBAL REAL *RESTRICT centred, index_t n, index_t d)
{
    const index_t at = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (at < n * d) centred[at] = X[at] - means[at % d];
}
