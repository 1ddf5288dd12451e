// The time that all of a host's devices agree on, about. CUDA.
DEVICE unsigned long long nanoseconds()
{
    unsigned long long now;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    return now;
}
