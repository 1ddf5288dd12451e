// A barrier for all blocks of a launch that are on the device at once (a cooperative launch). OpenCL does not promise
// that blocks run at once: there it is for a single block.
//
// `arrivals` is 0 when the launch begins; at its k-th barrier all wait for `awaited` = k times the number of blocks.
// FRESH reads what another block wrote before: past the L1, which would hold an older value.

#ifdef __OPENCL_VERSION__
#define FRESH(pointer) (*(pointer))
#define ARRIVE(counter) atomic_inc(counter)
#define ARRIVED(counter) atomic_add(counter, 0)
#define FENCE() mem_fence(CLK_GLOBAL_MEM_FENCE)
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#define COUNTER volatile GLOBAL unsigned int *
#else
#define FRESH(pointer) __ldcg(pointer)
#define ARRIVE(counter) atomicAdd(counter, 1u)
#define ARRIVED(counter) (*(volatile unsigned int *)(counter))
#define FENCE() __threadfence()
#define BARRIER() __syncthreads()
#define COUNTER unsigned int *
#endif

#define MEET(arrivals, awaited)                   \
    BARRIER();                                    \
    if (threadIdx.x == 0) {                       \
        FENCE();                                  \
        ARRIVE(arrivals);                         \
        while (ARRIVED(arrivals) < (awaited)) {}  \
        FENCE();                                  \
    }                                             \
    BARRIER();
