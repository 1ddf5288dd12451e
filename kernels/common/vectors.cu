// WIDTH neighbouring elements of type REAL, 16 bytes where WIDTH > 1, as an array in registers.
// Preconditions of LOAD and STORE: the address is a multiple of WIDTH elements.

#ifndef REAL
#define REAL double
#endif
#ifndef WIDTH
#define WIDTH 1
#endif

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if WIDTH == 1
#define VECTOR REAL
#else
#define VECTOR JOIN(REAL, WIDTH)
#endif

#define EACH(v) \
    UNROLL      \
    for (int v = 0; v < WIDTH; ++v)

#if WIDTH == 4
#define UNPACK(a, loaded) a[0] = loaded.x; a[1] = loaded.y; a[2] = loaded.z; a[3] = loaded.w
#define PACK(packed, a) packed.x = a[0]; packed.y = a[1]; packed.z = a[2]; packed.w = a[3]
#elif WIDTH == 2
#define UNPACK(a, loaded) a[0] = loaded.x; a[1] = loaded.y
#define PACK(packed, a) packed.x = a[0]; packed.y = a[1]
#else
#define UNPACK(a, loaded) a[0] = loaded
#define PACK(packed, a) packed = a[0]
#endif

#define LOAD(a, pointer)                                              \
    do {                                                              \
        const VECTOR loaded_ = *(GLOBAL const VECTOR *)(pointer);     \
        UNPACK(a, loaded_);                                           \
    } while (0)
#define STORE(pointer, a)                                             \
    do {                                                              \
        VECTOR packed_;                                               \
        PACK(packed_, a);                                             \
        *(GLOBAL VECTOR *)(pointer) = packed_;                        \
    } while (0)
#define SET_ZERO(a) EACH(v_) a[v_] = 0
#define SET(a, b) EACH(v_) a[v_] = b[v_]
