// WIDTH neighbouring elements of type REAL, 16 bytes where WIDTH > 1, as an array in registers.
// Preconditions of LOAD and STORE: the address is a multiple of WIDTH elements.

#include "pack.cu"

#define EACH(v) UNROLLED(v, WIDTH)

#define LOAD(a, pointer) READ(a, (GLOBAL const VECTOR *)(pointer))
#define STORE(pointer, a) WRITE((GLOBAL VECTOR *)(pointer), a)
#define SET_ZERO(a) EACH(v_) a[v_] = 0
#define LOAD_IF(is_there, a, pointer) do { SET_ZERO(a); if (is_there) LOAD(a, pointer); } while (0)
#define SET(a, b) EACH(v_) a[v_] = b[v_]

// A launch's threads go over `n` elements, by WIDTH of them.
#define GRID_STRIDE(at)                                                                      \
    for (index_t at = ((index_t)blockIdx.x * THREADS + threadIdx.x) * WIDTH; at < n;         \
         at += blocks * THREADS * WIDTH)
