// What CUDA gives a kernel, for one that devices_on_cpu.cpp runs.
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

static unsigned int atomicAdd(unsigned int *at, unsigned int value)
{
    let_others_run();
    const unsigned int before = *at;
    *at += value;
    return before;
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
