// What CUDA gives a kernel, for one that devices_on_cpu.cpp runs.
#include <cstring>
#include <utility>

typedef long long index_t;
struct Index { unsigned x, y, z; };
struct Machine {
    Index thread, block;        // of the fiber that runs
    void (*meet)(int line);     // a barrier
    void (*let_others_run)();   // now and then
    unsigned long long (*turns)();  // lets others run
    char *(*shared_memory)();   // 64 bytes of static memory, then the dynamic one
    void (*store_later)(void *target, const void *value, int bytes);
    void (*fence)();
};
static const Machine *machine;
extern "C" void connect(const Machine *to) { machine = to; }

#define threadIdx machine->thread
#define blockIdx machine->block
#define __syncthreads() machine->meet(__LINE__)
#define __threadfence_system() machine->fence()
#define let_others_run() machine->let_others_run()
#define DYNAMIC (machine->shared_memory() + 64)
#define STATIC_INT(name) \
    int &name = *(int *)machine->shared_memory()
#define KERNEL(threads, blocks) static void
#define DEVICE static inline
#define GLOBAL
#define LOCAL
#define RESTRICT
#define UNROLL
#define NO_UNROLL
#define UNROLLED(i, n) for (int i = 0; i < (n); ++i)

static unsigned int atomicAdd(unsigned int *at, unsigned int value)
{
    let_others_run();
    const unsigned int before = *at;
    *at += value;
    return before;
}

template <class To, class From> static To same_bits(From value)
{
    To bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}
#define __double_as_longlong same_bits<long long, double>
#define __longlong_as_double same_bits<double, long long>

// What a copy stores arrives late.
template <int BYTES> struct alignas(BYTES) Unit {
    char bytes[BYTES];
    void operator=(const Unit &value) { machine->store_later(this, &value, BYTES); }
};
typedef Unit<16> int4;
typedef Unit<8> int2;
typedef Unit<4> int1;

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
