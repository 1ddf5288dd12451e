// Thread block clusters in PTX (compute capability 9.0): CLUSTER neighbouring blocks run at once and read
// each other's shared memory. With CLUSTER = 1 a kernel is as any other, and portable.

#ifndef CLUSTER
#define CLUSTER 1
#endif

#if CLUSTER > 1
#define IN_CLUSTER __cluster_dims__(CLUSTER, 1, 1)

// A barrier for all threads of the cluster.
DEVICE void cluster_barrier(void)
{
    asm volatile("barrier.cluster.arrive.aligned;\n\tbarrier.cluster.wait.aligned;" ::: "memory");
}

// What another block of the cluster has where this one has `mine`, in shared memory.
DEVICE REAL of_block(const REAL *mine, int rank)
{
    unsigned int there;
    REAL value;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(there)
                 : "r"((unsigned int)__cvta_generic_to_shared(mine)), "r"(rank));
    if (sizeof(REAL) == 4) {
        unsigned int bits;
        asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(bits) : "r"(there) : "memory");
        value = (REAL)__uint_as_float(bits);
    } else {
        double whole;
        asm volatile("ld.shared::cluster.f64 %0, [%1];" : "=d"(whole) : "r"(there) : "memory");
        value = (REAL)whole;
    }
    return value;
}
#else
#define IN_CLUSTER
#endif
