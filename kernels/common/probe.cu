// What a device must do right before it is believed: y[i] = 2 x[j], each block's elements reversed.
//
// It takes the parts that every other kernel needs: macros, 64-bit indices, shared memory, a barrier.
// Precondition: BLOCK threads in a block; x and y have gridDim.x * BLOCK elements.

KERNEL(BLOCK, 1)
probe(GLOBAL const float *RESTRICT x, GLOBAL float *RESTRICT y, index_t factor)
{
    SHARED float block[BLOCK];
    const index_t i = (index_t)blockIdx.x * BLOCK + threadIdx.x;
    block[threadIdx.x] = x[i];
    __syncthreads();
    y[i] = (float)factor * block[BLOCK - 1 - threadIdx.x];
}
