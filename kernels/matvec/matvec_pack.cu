// packed[b, j] = x[b, j]: vectors of any strides (in elements) one after the other, so that one copy takes them to
// constant memory. Per element: 2 moved.

#ifndef REAL
#define REAL float
#endif
#ifndef THREADS
#define THREADS 256
#endif

KERNEL(THREADS, 1)
pack_vectors(GLOBAL const REAL *RESTRICT x, GLOBAL REAL *RESTRICT packed, index_t batch, index_t k,
             index_t x_batch, index_t x_element)
{
    const index_t at = (index_t)blockIdx.x * THREADS + threadIdx.x;
    if (at < batch * k) packed[at] = x[at / k * x_batch + at % k * x_element];
}
