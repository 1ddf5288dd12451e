// Values that blocks give each other within a launch, without a barrier. Half a value and a stamp of 32 bits make a
// word of 64, which is written and read as a whole: who finds the stamp that it expects has the value. The blocks are
// on their devices at once (a cooperative launch; in OpenCL, one block), and the words may be another device's.
// A value may be overwritten once all who take it have told so, by values of their own.
//
// NCCL calls the format LL, for low latency.

#ifdef __OPENCL_VERSION__
typedef ulong word_t;
#define BITS(value) as_ulong(value)
#define VALUE(bits) as_double(bits)
#define BARRIER() barrier(CLK_LOCAL_MEM_FENCE | CLK_GLOBAL_MEM_FENCE)
#else
typedef unsigned long long word_t;
#define BITS(value) (word_t) __double_as_longlong(value)
#define VALUE(bits) __longlong_as_double((long long)(bits))
#define BARRIER() __syncthreads()
#endif
#define LOW 0xffffffffu

// A value takes two words, at an address that 16 divides.
DEVICE void put(GLOBAL word_t *words, double value, unsigned int stamp)
{
    const word_t high = (word_t)stamp << 32, bits = BITS(value);
#if defined(__CUDA_ARCH__)
    asm volatile("st.volatile.global.v2.u64 [%0], {%1, %2};" ::"l"(words), "l"(high | bits >> 32),
                 "l"(high | (bits & LOW))
                 : "memory");
#else
    ((volatile GLOBAL word_t *)words)[0] = high | bits >> 32;
    ((volatile GLOBAL word_t *)words)[1] = high | (bits & LOW);
#endif
}

// Whether it is there; the value then.
DEVICE int look(GLOBAL const word_t *words, unsigned int stamp, double *value)
{
    word_t first, second;
#if defined(__CUDA_ARCH__)
    asm volatile("ld.volatile.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(words) : "memory");
#else
    first = ((volatile GLOBAL const word_t *)words)[0];
    second = ((volatile GLOBAL const word_t *)words)[1];
#endif
    *value = VALUE(first << 32 | (second & LOW));
    return (unsigned int)(first >> 32) == stamp && (unsigned int)(second >> 32) == stamp;
}
