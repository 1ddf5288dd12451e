// jacobi_blocked for CUDA: a warp walks alone, and its lanes exchange through registers.
//
// Preconditions, besides those of jacobi_blocked.cu: LANES is 32, DEPTH is even.

#define LANES 32
#define PHASES DEPTH
#define SEPARATE_RIM
#define EXCHANGE(phase, rows)
#define LEFT(phase, rows, s) __shfl_up_sync(0xffffffffu, rows[s][WIDTH - 1], 1)
#define RIGHT(phase, rows, s) __shfl_down_sync(0xffffffffu, rows[s][0], 1)
#include "jacobi_blocked.cu"
