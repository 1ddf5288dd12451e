// What kernels for compute capability 9.0 say in PTX: bulk copies to shared memory and the barriers that count their
// bytes, and products of 64 x 16 by 16 x 128 16-bit numbers by four warps. Addresses are in shared memory. CUDA C only.

DEVICE unsigned int shared_place(const void *pointer)
{
    return (unsigned int)__cvta_generic_to_shared(pointer);
}

// A function that is one instruction on memory, with these operands.
#define INSTRUCTION(name, parameters, text, ...) \
    DEVICE void name parameters \
    { \
        asm volatile(text ::__VA_ARGS__ : "memory"); \
    }

INSTRUCTION(new_barrier, (unsigned int barrier, int arrivals),
            "mbarrier.init.shared::cta.b64 [%0], %1;", "r"(barrier), "r"(arrivals))
// Let copies see new barriers.
INSTRUCTION(fence_barriers, (void), "fence.mbarrier_init.release.cluster;")
INSTRUCTION(arrive, (unsigned int barrier),
            "mbarrier.arrive.shared::cta.b64 _, [%0];", "r"(barrier))
// Arrive, and let the barrier wait for bytes as well.
INSTRUCTION(expect, (unsigned int barrier, int bytes),
            "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(barrier), "r"(bytes))

// Wait until a barrier's phase of this parity is over.
DEVICE void await(unsigned int barrier, unsigned int parity)
{
    asm volatile("{.reg .pred over;\n"
                 "again: mbarrier.try_wait.parity.shared::cta.b64 over, [%0], %1;\n"
                 "@!over bra again;}"
                 ::"r"(barrier), "r"(parity) : "memory");
}

// Copy contiguous global memory; addresses and bytes are multiples of 16.
INSTRUCTION(copy_bulk, (unsigned int to, const void *from, int bytes, unsigned int barrier),
            "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
            " [%0], [%1], %2, [%3];",
            "r"(to), "l"(from), "r"(bytes), "r"(barrier))

// Registers of each thread from here on, which a whole group of four warps asks for.
template <int COUNT>
INSTRUCTION(fewer_registers, (void), "setmaxnreg.dec.sync.aligned.u32 %0;", "n"(COUNT))
template <int COUNT>
INSTRUCTION(more_registers, (void), "setmaxnreg.inc.sync.aligned.u32 %0;", "n"(COUNT))

// Wait for the turn of one of two groups of four warps, and give the turn to one.
INSTRUCTION(await_turn, (int group), "bar.sync %0, 256;", "r"(group))
INSTRUCTION(give_turn, (int group), "bar.arrive %0, 256;", "r"(group))

// An operand of `multiply`: rows of 64 bytes, of which 8 lie together, in 64-byte swizzle.
DEVICE unsigned long long tile_descriptor(unsigned int place)
{
    const unsigned long long swizzle = 2ull << 62, between = (unsigned long long)(8 * 64 / 16) << 32;
    return swizzle | between | 1ull << 16 | place / 16;
}

// Registers may be used again that products before have read or written.
INSTRUCTION(begin_products, (void), "wgmma.fence.sync.aligned;")
// The products since the last end make one group.
INSTRUCTION(end_products, (void), "wgmma.commit_group.sync.aligned;")

#define FOUR(c, i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define SIXTEEN(c, i) FOUR(c, i), FOUR(c, i + 4), FOUR(c, i + 8), FOUR(c, i + 12)
#define ALL(c) SIXTEEN(c, 0), SIXTEEN(c, 16), SIXTEEN(c, 32), SIXTEEN(c, 48)

// Wait until all groups of products but the last PENDING are done. The sums are named, so that nothing that reads them
// moves in front.
template <int PENDING>
DEVICE void await_products(float (&sum)[64])
{
    asm volatile("wgmma.wait_group.sync.aligned %64;" : ALL(sum) : "n"(PENDING) : "memory");
}

// sum = a b, or sum += a b. Lane 4 g + t of warp w has of row 16 w + g + 8 h the columns 8 j + 2 t and its neighbour,
// in sum[4 j + 2 h] and the next one.
#define MULTIPLY(type)                                                                                   \
    asm volatile("{.reg .pred adds; setp.ne.b32 adds, %66, 0;\n"                                         \
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32." type "." type " {"                       \
                 "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                \
                 "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "      \
                 "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "      \
                 "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "     \
                 "%64, %65, adds, 1, 1, 0, 0;}"                                                          \
                 : ALL(sum) : "l"(a), "l"(b), "r"((int)adds))

template <bool FLOAT16>
DEVICE void multiply(float (&sum)[64], unsigned long long a, unsigned long long b, bool adds)
{
    if (FLOAT16)
        MULTIPLY("f16");
    else
        MULTIPLY("bf16");
}

// x 2^exponent, rounded once; the exponent is from -252 to 254.
DEVICE float scaled(float x, int exponent)
{
    const int half = exponent >> 1, other = exponent - half;
    return x * __uint_as_float((unsigned int)(half + 127) << 23) * __uint_as_float((unsigned int)(other + 127) << 23);
}
