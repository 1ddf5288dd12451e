// Enough of CUDA C for a kernel to run on the host, block by block, each with threads of its own.
#include <algorithm>
#include <barrier>
#include <bit>
#include <cmath>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#define DEVICE static inline
#define UNROLL
#define KERNEL(threads, blocks) static void
#define __shared__ static

typedef long long index_t;
struct alignas(16) float4 { float x, y, z, w; };
struct alignas(16) uint4 { unsigned int x, y, z, w; };
struct Place { unsigned int x; };
static thread_local Place threadIdx;
static Place blockIdx, gridDim;

static std::unique_ptr<std::barrier<>> all_threads;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static std::vector<unsigned int> lanes;

static uint4 make_uint4(unsigned int x, unsigned int y, unsigned int z, unsigned int w) { return {x, y, z, w}; }
static unsigned int __float_as_uint(float x) { return std::bit_cast<unsigned int>(x); }
static float __uint_as_float(unsigned int x) { return std::bit_cast<float>(x); }
static unsigned int max(unsigned int a, unsigned int b) { return std::max(a, b); }
static unsigned int min(unsigned int a, unsigned int b) { return std::min(a, b); }
static void __syncthreads() { all_threads->arrive_and_wait(); }

template <class Fold>
static unsigned int of_warp(unsigned int value, Fold fold)
{
    const unsigned int warp = threadIdx.x / 32;
    lanes[threadIdx.x] = value;
    warps[warp]->arrive_and_wait();
    unsigned int found = lanes[warp * 32];
    for (int lane = 1; lane < 32; ++lane) found = fold(found, lanes[warp * 32 + lane]);
    warps[warp]->arrive_and_wait();
    return found;
}
static unsigned int __reduce_max_sync(unsigned int, unsigned int x) { return of_warp(x, [](auto a, auto b) { return std::max(a, b); }); }
static unsigned int __reduce_min_sync(unsigned int, unsigned int x) { return of_warp(x, [](auto a, auto b) { return std::min(a, b); }); }
static unsigned int __reduce_add_sync(unsigned int, unsigned int x) { return of_warp(x, [](auto a, auto b) { return a + b; }); }
static float __shfl_xor_sync(unsigned int, float x, int other)
{
    const unsigned int warp = threadIdx.x / 32;
    lanes[threadIdx.x] = __float_as_uint(x);
    warps[warp]->arrive_and_wait();
    const float found = __uint_as_float(lanes[threadIdx.x ^ other]);
    warps[warp]->arrive_and_wait();
    return found;
}

template <class Fold>
static void change(unsigned int *at, Fold fold)
{
    unsigned int old = __atomic_load_n(at, __ATOMIC_SEQ_CST);
    while (!__atomic_compare_exchange_n(at, &old, fold(old), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) {}
}
static void atomicMax(unsigned int *at, unsigned int x) { change(at, [x](auto old) { return std::max(old, x); }); }
static void atomicMin(unsigned int *at, unsigned int x) { change(at, [x](auto old) { return std::min(old, x); }); }
static void atomicAdd(unsigned int *at, unsigned int x) { change(at, [x](auto old) { return old + x; }); }

// Run a kernel of so many threads on each block in turn.
template <class Call>
static void run_blocks(unsigned int blocks, unsigned int threads, Call call)
{
    gridDim.x = blocks;
    lanes.resize(threads);
    for (blockIdx.x = 0; blockIdx.x < blocks; ++blockIdx.x) {
        all_threads = std::make_unique<std::barrier<>>(threads);
        warps.clear();
        for (unsigned int warp = 0; warp < threads / 32; ++warp) warps.push_back(std::make_unique<std::barrier<>>(32));
        std::vector<std::thread> running;
        for (unsigned int thread = 0; thread < threads; ++thread)
            running.emplace_back([=] { threadIdx.x = thread; call(); });
        for (auto &one : running) one.join();
    }
}
