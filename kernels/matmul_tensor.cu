// C = A B as in matmul.cu, in float64, by the tensor cores of CUDA devices of compute capability 8.0
// or more. They multiply and add doubles as the other units do: products are exact, sums are rounded
// to double. CUDA C only.
//
// A warp multiplies 16 x 4 by 4 x 8 at once (8 x 4 by 4 x 8 before 9.0). In that, lane 4 g + t holds,
// at t in k, rows g and g + 8 of A and column g of B; and of C, rows g and g + 8, columns 2 t and
// 2 t + 1. Which of the tile's rows is called g is ours to choose: here rows 2 g and 2 g + 1 take the
// places of g and g + 8, and columns 2 g and 2 g + 1 of B those of g in two products side by side. So a
// lane reads neighbours, as a vector, and ends up with 2 rows of 4 neighbouring columns of C.

#define PRODUCT_K 4
#define THREAD_B (THREAD_N / 2)
// 4 more than a multiple of 16 elements: 4 values of t, 2 of g and a vector of 2 make up 32 banks.
#define PITCH_A (TILE_M + 4)
#define PITCH_B (TILE_N + 4)
#define RUN_LENGTH 4
#define LANE_M(lane) (((lane) >> 2) * 2)
#define LANE_N(lane) (((lane) & 3) * 4)
#define LANE_A(lane) (((lane) & 3) * PITCH_A + LANE_M(lane))
#define LANE_B(lane) (((lane) & 3) * PITCH_B + LANE_M(lane))
#define READ_B(j) ((j) * 8)
#define COLUMN(j) ((j) / 4 * 16 + (j) % 4)

DEVICE void multiply_tile(double &c0, double &c1, double &c2, double &c3, double a0, double a1,
                          double b)
{
#if __CUDA_ARCH__ >= 900 && !defined(SMALL_MMA)
    asm("mma.sync.aligned.m16n8k4.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
        "{%0, %1, %2, %3};"
        : "+d"(c0), "+d"(c1), "+d"(c2), "+d"(c3)
        : "d"(a0), "d"(a1), "d"(b));
#else
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c0), "+d"(c1)
        : "d"(a0), "d"(b));
    asm("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
        : "+d"(c2), "+d"(c3)
        : "d"(a1), "d"(b));
#endif
}

#define MULTIPLY(sum, a, bs) \
    UNROLL \
    for (int i = 0; i < THREAD_M; i += 2) { \
        UNROLL \
        for (int j = 0; j < THREAD_B; ++j) { \
            const int at = j / 2 * 4 + j % 2; \
            multiply_tile(sum[i][at], sum[i][at + 2], sum[i + 1][at], sum[i + 1][at + 2], (a)[i], \
                          (a)[i + 1], (bs)[j]); \
        } \
    }

#include "matmul.cu"
