// A barrier for all blocks of a launch that are on the device at once (a cooperative launch). OpenCL does not promise
// that blocks run at once: there it is for a single block.
//
// `arrivals` is 0 when the launch begins; at its k-th barrier all wait for `awaited` = k times the number of blocks.
// FRESH reads what another block wrote before: past the L1, which would hold an older value.

#ifdef __OPENCL_VERSION__
#define FRESH(pointer) (*(pointer))
#define MEET(arrivals, awaited) barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE);
#else
#define FRESH(pointer) __ldcg(pointer)
#define MEET(arrivals, awaited)                                          \
    __syncthreads();                                                     \
    if (threadIdx.x == 0) {                                              \
        __threadfence();                                                 \
        atomicAdd(arrivals, 1u);                                         \
        while (*(volatile unsigned int *)(arrivals) < (awaited)) {}      \
        __threadfence();                                                 \
    }                                                                    \
    __syncthreads();
#endif
