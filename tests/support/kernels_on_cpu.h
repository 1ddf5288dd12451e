// CUDA C as C++ of the CPU: in front of cuda_on_cpu.h, and of devices_on_cpu.h.
#include <cstring>
#include <utility>

#define KERNEL(threads, blocks) static void
#define DEVICE static inline
#define GLOBAL
#define LOCAL
#define RESTRICT
#define UNROLL
#define NO_UNROLL
#define UNROLLED_RANGE(i, begin, end, step) for (int i = begin; i < (end); i += step)
#define UNROLLED(i, n) UNROLLED_RANGE(i, 0, n, 1)
typedef long long index_t;
struct Index { unsigned x, y, z; };

template <class To, class From> static To same_bits(From value)
{
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// A kernel's arguments come as words of 64 bits.
template <class T> static T argument(index_t word) { return (T)word; }
template <> double argument<double>(index_t word) { return same_bits<double>(word); }
template <class... T, size_t... I>
static void call(void (*kernel)(T...), const index_t *words, std::index_sequence<I...>)
{
    kernel(argument<T>(words[I])...);
}
template <class... T> static void call(void (*kernel)(T...), const index_t *words)
{
    call(kernel, words, std::index_sequence_for<T...>());
}
