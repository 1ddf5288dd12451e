// How kernels read float32 numbers and cut them into pieces of float16: included after tensor_pieces.cu. CUDA C only.

// 8 elements along k; zeros where there are none.
DEVICE void load(float *x, const float *row, index_t first, index_t k, index_t stride, bool vectors)
{
    if (vectors && first + 8 <= k) {
        const float4 p = *(const float4 *)(row + first), q = *(const float4 *)(row + first + 4);
        x[0] = p.x, x[1] = p.y, x[2] = p.z, x[3] = p.w;
        x[4] = q.x, x[5] = q.y, x[6] = q.z, x[7] = q.w;
        return;
    }
    UNROLL
    for (int i = 0; i < 8; ++i) x[i] = first + i < k ? row[(first + i) * stride] : 0.0f;
}

DEVICE unsigned int magnitude(float x)
{
    return __float_as_uint(x) & 0x7fffffffu;
}

// Two numbers rounded to float16, the first one in the lower half; and their values.
DEVICE unsigned int nearest_float16(float x, float y)
{
    unsigned int both;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}

DEVICE float2 values_of_float16(unsigned int both)
{
    float2 values;
    asm("{.reg .f16 x, y; mov.b32 {x, y}, %2; cvt.f32.f16 %0, x; cvt.f32.f16 %1, y;}"
        : "=f"(values.x), "=f"(values.y) : "r"(both));
    return values;
}

// The pieces of float16 of two elements.
DEVICE void cut_in_two(float x, float y, unsigned int *pieces)
{
    pieces[0] = nearest_float16(x, y);
    const float2 high = values_of_float16(pieces[0]);
    pieces[1] = nearest_float16((x - high.x) * LIFT, (y - high.y) * LIFT);
}
