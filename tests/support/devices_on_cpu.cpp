// Several devices at once, with no GPU: each runs its launches in order, all blocks of a launch together. Every thread
// is a fiber. Which one goes on is drawn at random, from a seed: devices stop for a while, some are slower than others,
// blocks begin late. Fibers change places at barriers, and now and then where they read or write what blocks or devices
// share. The clock counts turns.
//
// Stores that devices_on_cpu.h gives to `store_later` arrive when their thread, or one that has met it since, comes to
// a fence, or else when the launch ends. Shared memory begins as NaN, and ends with guard bytes.
#include <ucontext.h>

#include <cstdlib>
#include <vector>

static const int GUARD = 64, STATIC = 64, STACK = 64 << 10;

struct Launch {
    void (*entry)(const long long *);
    const long long *arguments;
    long long device, blocks, threads, shared_bytes;
};
enum State { READY, WAITS, ENDED };
struct Block;
struct Fiber {
    ucontext_t context;
    char *stack;
    Block *block;
    Index thread;
    State state;
};
struct Block {
    const Launch *launch;
    Index index;
    char *shared;
    unsigned long long begin;
    int alive, arrived, line;
    long barriers;
    std::vector<Fiber> fibers;
};
struct Device {
    std::vector<const Launch *> queue;
    size_t next;
    std::vector<Block> blocks;
    unsigned long long stopped_until;
    unsigned slowness;
};
struct Store {
    char *target, value[16];
    int bytes;
    const Fiber *by;
    long barriers;
};

static unsigned long long state, now;
static ucontext_t scheduler;
static Fiber *current;
static std::vector<Store> stores;
static std::vector<char *> stacks;
static const char *failure;
static Machine this_machine;

static unsigned draw(unsigned below)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (unsigned)(state >> 33) % below;
}

static void change_places() { swapcontext(&current->context, &scheduler); }

static void go_on(Block &block)
{
    block.arrived = 0;
    ++block.barriers;
    for (Fiber &fiber : block.fibers)
        if (fiber.state == WAITS) fiber.state = READY;
}

// Let those stores arrive that `may` be seen.
template <class May> static void arrive(May may)
{
    size_t left = 0;
    for (const Store &store : stores) {
        if (may(store))
            std::memcpy(store.target, store.value, store.bytes);
        else
            stores[left++] = store;
    }
    stores.resize(left);
}

static void sometimes_change_places()
{
    if (draw(4) == 0) change_places();
}

static unsigned long long turns()
{
    change_places();
    return now;
}

static void meet(int line)
{
    Block &block = *current->block;
    if (block.arrived && block.line != line) failure = "threads of a block wait at different barriers";
    block.line = line;
    current->state = WAITS;
    if (++block.arrived == block.alive) go_on(block);
    change_places();
}

static char *shared_memory() { return current->block->shared; }

static void store_later(void *target, const void *value, int bytes)
{
    if ((size_t)target % bytes || (size_t)value % bytes) failure = "a misaligned copy";
    stores.push_back({(char *)target, {}, bytes, current, current->block->barriers});
    std::memcpy(stores.back().value, value, bytes);
    sometimes_change_places();
}

static void fence()
{
    sometimes_change_places();
    const Block *block = current->block;
    arrive([=](const Store &s) { return s.by == current || (s.by->block == block && s.barriers < block->barriers); });
}

static void enter()
{
    Block &block = *current->block;
    block.launch->entry(block.launch->arguments);
    current->state = ENDED;
    if (--block.alive && block.arrived == block.alive) go_on(block);
}

static void start(Device &device, const Launch *launch)
{
    device.blocks = std::vector<Block>(launch->blocks);
    for (unsigned b = 0; b < device.blocks.size(); ++b) {
        Block &block = device.blocks[b];
        block.launch = launch;
        block.index = {b, 0, 0};
        block.shared = (char *)aligned_alloc(64, (STATIC + launch->shared_bytes + GUARD + 63) / 64 * 64);
        std::memset(block.shared, 0xFF, STATIC + launch->shared_bytes + GUARD);
        block.begin = now + draw(16);
        block.alive = (int)launch->threads;
        block.fibers = std::vector<Fiber>(launch->threads);
        for (unsigned t = 0; t < launch->threads; ++t) {
            Fiber &fiber = block.fibers[t];
            if (stacks.empty()) stacks.push_back((char *)malloc(STACK));
            fiber.stack = stacks.back();
            stacks.pop_back();
            fiber.block = &block;
            fiber.thread = {t, 0, 0};
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack;
            fiber.context.uc_stack.ss_size = STACK;
            fiber.context.uc_link = &scheduler;
            makecontext(&fiber.context, enter, 0);
        }
    }
}

static void end(Device &device)
{
    arrive([&](const Store &store) {
        for (const Block &block : device.blocks)
            if (store.by->block == &block) return true;
        return false;
    });
    for (Block &block : device.blocks) {
        const char *guard = block.shared + STATIC + block.launch->shared_bytes;
        for (int i = 0; i < GUARD; ++i)
            if (guard[i] != (char)0xFF) failure = "a store beyond shared memory";
        free(block.shared);
        for (Fiber &fiber : block.fibers) stacks.push_back(fiber.stack);
    }
    device.blocks.clear();
}

static void take_turn(Device &device)
{
    if (now < device.stopped_until || draw(device.slowness)) return;
    if (draw(64) == 0) device.stopped_until = now + draw(64);
    bool runs = false;
    const unsigned first_block = draw((unsigned)device.blocks.size());
    for (size_t b = 0; b < device.blocks.size(); ++b) {
        Block &block = device.blocks[(first_block + b) % device.blocks.size()];
        runs |= block.alive > 0;
        if (now < block.begin) continue;
        const unsigned first = draw((unsigned)block.fibers.size());
        for (size_t t = 0; t < block.fibers.size(); ++t) {
            Fiber &fiber = block.fibers[(first + t) % block.fibers.size()];
            if (fiber.state != READY || draw(4) == 0) continue;
            current = &fiber;
            this_machine.thread = fiber.thread;
            this_machine.block = block.index;
            swapcontext(&scheduler, &fiber.context);
        }
    }
    if (!runs) end(device);
}

extern "C" const Machine *the_machine()
{
    this_machine = {{}, {}, meet, sometimes_change_places, turns, shared_memory, store_later, fence};
    return &this_machine;
}

// Returns what went wrong, or NULL; the turns that it took are in *taken.
extern "C" const char *run(const Launch *launches, int count, int number, unsigned seed, long long limit,
                           long long *taken)
{
    state = 0x9E3779B97F4A7C15ull * (seed + 1);
    failure = nullptr;
    std::vector<Device> devices(number);
    for (Device &device : devices) device.slowness = 1u << draw(4);
    for (int i = 0; i < count; ++i) devices[launches[i].device].queue.push_back(launches + i);
    bool more = true;
    for (now = 1; more && !failure; ++now) {
        if ((long long)now > limit) failure = "it does not end";
        more = false;
        const unsigned first = draw(number);
        for (int i = 0; i < number; ++i) {
            Device &device = devices[(first + i) % number];
            if (device.blocks.empty() && device.next == device.queue.size()) continue;
            more = true;
            if (device.blocks.empty()) start(device, device.queue[device.next++]);
            take_turn(device);
        }
    }
    if (failure)
        for (Device &device : devices) end(device);
    stores.clear();
    *taken = (long long)now;
    return failure;
}
