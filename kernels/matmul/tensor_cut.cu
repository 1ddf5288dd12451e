// How kernels read float32 numbers and cut them into pieces: included after tensor_pieces.cu. CUDA C only.

// 8 elements along k; zeros where there are none.
DEVICE void load(float *x, const float *row, index_t first, index_t k, index_t stride, bool vectors)
{
    if (vectors && first + 8 <= k) {
        const float4 p = *(const float4 *)(row + first), q = *(const float4 *)(row + first + 4);
        x[0] = p.x, x[1] = p.y, x[2] = p.z, x[3] = p.w;
        x[4] = q.x, x[5] = q.y, x[6] = q.z, x[7] = q.w;
        return;
    }
    UNROLLED(i, 8) x[i] = first + i < k ? row[(first + i) * stride] : 0.0f;
}

// The bits of the largest magnitude among groups of 8 elements of a row, from one on, each `each` further.
DEVICE unsigned int largest_of(const float *row, index_t group, index_t each, index_t k, index_t stride, bool vectors)
{
    unsigned int largest = 0;
    float x[8];
    #pragma unroll 2
    for (; group * 8 < k; group += each) {
        load(x, row, group * 8, k, stride, vectors);
        UNROLLED(i, 8) largest = max(largest, __float_as_uint(x[i]) & 0x7fffffffu);
    }
    return largest;
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
DEVICE void cut(float x, float y, unsigned int (&pieces)[2])
{
    pieces[0] = nearest_float16(x, y);
    const float2 high = values_of_float16(pieces[0]);
    pieces[1] = nearest_float16((x - high.x) * LIFT, (y - high.y) * LIFT);
}

// Two numbers rounded to bfloat16, the first one in the lower half.
DEVICE unsigned int nearest_bfloat16(float x, float y)
{
    unsigned int both;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(y), "f"(x));
    return both;
}

// The pieces of bfloat16 of two elements.
DEVICE void cut(float x, float y, unsigned int (&pieces)[3])
{
    UNROLLED(p, 3) {
        pieces[p] = nearest_bfloat16(x, y);
        x -= __uint_as_float(pieces[p] << 16);
        y -= __uint_as_float(pieces[p] & 0xffff0000u);
    }
}

// Cut 8 elements of a row of a PANEL, and write their pieces among those of the PANEL.
template <int COUNT>
DEVICE void write_pieces(unsigned char *to, index_t row, index_t group, const float *x)
{
    unsigned int pieces[4][COUNT];
    UNROLLED(i, 4) cut(x[2 * i], x[2 * i + 1], pieces[i]);
    to += group / 4 * (COUNT * PIECE_BYTES);
    UNROLLED(p, COUNT)
        *(uint4 *)(to + place_of((int)(row % PANEL), (int)(group % 4), p)) =
            make_uint4(pieces[0][p], pieces[1][p], pieces[2][p], pieces[3][p]);
}
