// Runs a CUDA kernel on the CPU, one block after another: the block's threads are fibers, which change
// places at barriers. Copies to shared memory that PTX calls asynchronous arrive when they are waited
// for and not before, and shared memory begins as NaN: what is read too early shows.
#include <ucontext.h>
#ifdef __F16C__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#define __restrict__
#define __shared__ static
#define __syncthreads() block_barrier.arrive((int)fibers.size())
#define threadIdx (fibers[current].thread)

struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) double2 { double x, y; };
struct alignas(16) uint4 { unsigned x, y, z, w; };
struct float2 { float x, y; };
static double2 make_double2(double x, double y) { return {x, y}; }
static float2 make_float2(float x, float y) { return {x, y}; }
static uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
static unsigned max(unsigned a, unsigned b) { return std::max(a, b); }
static unsigned min(unsigned a, unsigned b) { return std::min(a, b); }

#define __float_as_uint same_bits<unsigned, float>
#define __uint_as_float same_bits<float, unsigned>

struct Copy { unsigned to; const void *from; int bytes; bool there; };
struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    std::vector<std::vector<Copy>> copies;  // by group, the last one open
    Index thread;
    bool done;
};
static std::vector<Fiber> fibers;
static int current;
static ucontext_t scheduler;
static Index blockIdx, gridDim;
static const unsigned SHARED_BYTES = 227 << 10;
alignas(128) static char shared_memory[SHARED_BYTES];

static const char *failure;  // the first thing that went wrong

struct Barrier {
    int arrived = 0, generation = 0;
    void arrive(int needed)
    {
        const int mine = generation;
        if (++arrived == needed) {
            arrived = 0;
            ++generation;
        }
        while (generation == mine) swapcontext(&fibers[current].context, &scheduler);
    }
};
static Barrier block_barrier;
static std::vector<Barrier> warp_barriers;

static unsigned shared_address(const void *pointer)
{
    return (unsigned)((const char *)pointer - shared_memory);
}

template <class Real>
static void copy_piece(unsigned to, const Real *from, int elements, bool there)
{
    const int bytes = elements == 1 ? (int)sizeof(Real) : 16;
    if (elements * (int)sizeof(Real) != bytes) failure = "a piece is one element or 16 bytes";
    if (to % bytes || (size_t)from % (there ? bytes : 1)) failure = "a misaligned copy";
    if (to + bytes > SHARED_BYTES) {
        failure = "a copy beyond shared memory";
        return;
    }
    fibers[current].copies.back().push_back({to, from, bytes, there});
}

static void end_of_copies() { fibers[current].copies.emplace_back(); }

#ifdef STAGES
static void wait_for_copies()
{
    auto &groups = fibers[current].copies;
    for (; (int)groups.size() - 1 > STAGES - 2; groups.erase(groups.begin()))
        for (const Copy &copy : groups.front()) {
            if (copy.there)
                std::memcpy(shared_memory + copy.to, copy.from, copy.bytes);
            else
                std::memset(shared_memory + copy.to, 0, copy.bytes);
        }
}
#endif

static double warp_a[32][32][4], warp_b[32][32][2];
static void multiply_float64(double *c, const double *a, const double *b)
{
    const int warp = current / 32, lane = current % 32, g = lane / 4, t = lane % 4;
    std::memcpy(warp_a[warp][lane], a, sizeof warp_a[0][0]);
    std::memcpy(warp_b[warp][lane], b, sizeof warp_b[0][0]);
    warp_barriers[warp].arrive(32);
    for (int r = 0; r < 2; ++r)
        for (int q = 0; q < 2; ++q)
            for (int k = 0; k < 8; ++k)
                c[2 * r + q] += warp_a[warp][4 * g + k % 4][k / 4 * 2 + r] *
                                warp_b[warp][4 * (2 * t + q) + k % 4][k / 4];
    warp_barriers[warp].arrive(32);
}

// What threads of a warp tell each other, by their numbers.
static float told[32][32];
template <class Read> static float of_warp(float value, Read read)
{
    const int warp = current / 32;
    told[warp][current % 32] = value;
    warp_barriers[warp].arrive(32);
    const float found = read(told[warp]);
    warp_barriers[warp].arrive(32);
    return found;
}
template <class Fold> static unsigned folded(unsigned value, Fold fold)
{
    return __float_as_uint(of_warp(__uint_as_float(value), [=](const float *lanes) {
        unsigned found = __float_as_uint(lanes[0]);
        for (int lane = 1; lane < 32; ++lane) found = fold(found, __float_as_uint(lanes[lane]));
        return __uint_as_float(found);
    }));
}
static unsigned __reduce_max_sync(unsigned, unsigned x) { return folded(x, max); }
static unsigned __reduce_min_sync(unsigned, unsigned x) { return folded(x, min); }
static unsigned __reduce_add_sync(unsigned, unsigned x) { return folded(x, std::plus<unsigned>()); }
static float __shfl_xor_sync(unsigned, float x, int other)
{
    return of_warp(x, [=](const float *lanes) { return lanes[current % 32 ^ other]; });
}
static void atomicMax(unsigned *at, unsigned x) { *at = max(*at, x); }
static void atomicMin(unsigned *at, unsigned x) { *at = min(*at, x); }
static void atomicAdd(unsigned *at, unsigned x) { *at += x; }

// Rounding to 16 bits, which kernels say in PTX: by F16C, or by hand.
#ifdef __F16C__
static unsigned nearest_float16(float x, float y) { return _cvtss_sh(x, 0) | (unsigned)_cvtss_sh(y, 0) << 16; }
static float2 values_of_float16(unsigned both) { return {_cvtsh_ss(both & 0xffff), _cvtsh_ss(both >> 16)}; }
static unsigned rounded(float x)
{
    const unsigned bits = __float_as_uint(x);
    return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}
static unsigned nearest_bfloat16(float x, float y) { return rounded(x) | rounded(y) << 16; }
#endif

static void run(const std::function<void()> &kernel, int grid, int block)
{
    static std::function<void()> entry;
    entry = kernel;
    gridDim = {(unsigned)grid, 1, 1};
    for (int b = 0; b < grid; ++b) {
        blockIdx = {(unsigned)b, 0, 0};
        fibers = std::vector<Fiber>(block);
        warp_barriers = std::vector<Barrier>(block / 32);
        block_barrier = Barrier();
        std::memset(shared_memory, 0xFF, SHARED_BYTES);
        for (int i = 0; i < block; ++i) {
            Fiber &fiber = fibers[i];
            fiber.copies.emplace_back();
            fiber.thread = {(unsigned)i, 0, 0};
            fiber.stack.resize(64 << 10);
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.data();
            fiber.context.uc_stack.ss_size = fiber.stack.size();
            fiber.context.uc_link = &scheduler;
            makecontext(&fiber.context, (void (*)())[]() { entry(); fibers[current].done = true; }, 0);
        }
        for (bool more = true; more;) {
            more = false;
            for (int i = 0; i < block; ++i)
                if (!fibers[i].done) {
                    more = true;
                    current = i;
                    swapcontext(&scheduler, &fibers[i].context);
                }
        }
    }
}

// Gives what went wrong, or NULL.
template <class... T>
static const char *launched(void (*kernel)(T...), int grid, int block, const index_t *words)
{
    failure = nullptr;
    run([=] { call(kernel, words); }, grid, block);
    return failure;
}
