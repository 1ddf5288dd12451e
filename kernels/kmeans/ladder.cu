// The labels of k-means and how many of them changed, kernel after kernel: naive first, one idea each, after the
// project of the course 18-645 (2014), where these two are the GPU's part of an iteration. ladder.py has a table of the
// steps. The label of a row of X, n x d, is the centroid of k, k x d, with the least sum of squared differences. A
// block has BX threads, a power of two.

// -- All steps: a thread for each point. 3 d k flops a point ----------------------------------------------------------
// naive: a point's elements lie together (x_row = d, x_column = 1: an array of structures). coalesced: those of
// neighbouring points do (1, n: a structure of arrays), so that a warp reads whole lines.
KERNEL(BX, 1)
kmeans_nearest(GLOBAL const REAL *RESTRICT X, GLOBAL const REAL *RESTRICT centroids, GLOBAL int *RESTRICT labels,
               GLOBAL int *RESTRICT changed, index_t n, index_t d, index_t k, index_t x_row, index_t x_column)
{
    const index_t row = (index_t)blockIdx.x * BX + threadIdx.x;
    if (row >= n) return;
    REAL least = 0;
    int label = 0;
    for (index_t c = 0; c < k; ++c) {
        REAL distance = 0;
        for (index_t j = 0; j < d; ++j) {
            const REAL apart = X[row * x_row + j * x_column] - centroids[c * d + j];
            distance += apart * apart;
        }
        if (c == 0 || distance < least) {
            least = distance;
            label = (int)c;
        }
    }
    changed[row] = labels[row] != label;
    labels[row] = label;
}

// -- 1 and 2. naive, coalesced: one thread counts the labels that changed ---------------------------------------------
KERNEL(1, 1)
kmeans_count(GLOBAL const int *RESTRICT changed, GLOBAL int *RESTRICT total, index_t n)
{
    int sum = 0;
    for (index_t i = 0; i < n; ++i) sum += changed[i];
    total[0] = sum;
}

// -- 3 and 4. reduction, occupancy: blocks count by a tree, and one block adds up what they found ---------------------
// The project's program had a thread for each block's count in one block, and failed beyond 1024 of them: here a thread
// goes on as long as counts are left. occupancy: larger blocks, of which more threads fit on a multiprocessor.
KERNEL(BX, 1)
kmeans_reduce(GLOBAL const int *RESTRICT counts, GLOBAL int *RESTRICT sums, index_t n, index_t blocks)
{
    SHARED int found[BX];
    const int thread = (int)threadIdx.x;
    int sum = 0;
    for (index_t i = (index_t)blockIdx.x * BX + thread; i < n; i += blocks * BX) sum += counts[i];
    found[thread] = sum;
    for (int half_of = BX / 2; half_of > 0; half_of /= 2) {
        __syncthreads();
        if (thread < half_of) found[thread] += found[thread + half_of];
    }
    if (thread == 0) sums[blockIdx.x] = found[0];
}

// -- 2 to 4. The other order of X, made once before the first iteration -----------------------------------------------
KERNEL(BX, 1)
kmeans_turn(GLOBAL const REAL *RESTRICT X, GLOBAL REAL *RESTRICT turned, index_t n, index_t d)
{
    const index_t at = (index_t)blockIdx.x * BX + threadIdx.x;
    if (at < n * d) turned[at % d * n + at / d] = X[at];
}
