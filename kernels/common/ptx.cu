// What pipelined kernels say in PTX: copies to shared memory that go on while the thread computes
// (compute capability 8.0), and products on tensor cores for float64. REAL and STAGES are set.

// Copy one element, or 16 bytes, to an address in shared memory; zeros where it is not there.
DEVICE void copy_piece(unsigned int to, const REAL *from, int elements, bool there)
{
    const int bytes = there ? elements * (int)sizeof(REAL) : 0;
    if (elements == 1)
        asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;"
                     ::"r"(to), "l"(from), "n"((int)sizeof(REAL)), "r"(bytes) : "memory");
    else
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                     ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// The copies since the last end make one group.
DEVICE void end_of_copies(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

// Wait until all of this thread's groups but the last STAGES - 2 are there.
DEVICE void wait_for_copies(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(STAGES - 2) : "memory");
}

DEVICE unsigned int shared_address(const void *pointer)
{
    return (unsigned int)__cvta_generic_to_shared(pointer);
}

// c += a b, 16 x 8 by 8 x 8, by a warp. Lane 4 g + t gives a: (row, k) = (g, t), (g + 8, t), (g, t + 4),
// (g + 8, t + 4); b: (k, column) = (t, g), (t + 4, g); c: (row, column) = (g, 2 t), (g, 2 t + 1),
// (g + 8, 2 t), (g + 8, 2 t + 1). Before 9.0 in four parts.
DEVICE void multiply_float64(double *c, const double *a, const double *b)
{
#if __CUDA_ARCH__ >= 900
    asm volatile("mma.sync.aligned.m16n8k8.row.col.f64.f64.f64.f64 {%0, %1, %2, %3}, "
                 "{%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
                 : "+d"(c[0]), "+d"(c[1]), "+d"(c[2]), "+d"(c[3])
                 : "d"(a[0]), "d"(a[1]), "d"(a[2]), "d"(a[3]), "d"(b[0]), "d"(b[1]));
#else
    UNROLLED(h, 2) {
        UNROLLED(r, 2)
            asm volatile("mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, "
                         "{%0, %1};"
                         : "+d"(c[2 * r]), "+d"(c[2 * r + 1])
                         : "d"(a[2 * h + r]), "d"(b[h]));
    }
#endif
}
