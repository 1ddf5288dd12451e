// What matrix-vector kernels are compiled with, and arithmetic on vectors of WIDTH elements of REAL: a
// block has GROUPS groups of LANES threads, each with DEPTH loads in flight.

#ifndef REAL
#define REAL float
#endif
#ifndef WIDTH
#define WIDTH 1
#endif
#ifndef LANES
#define LANES 32
#endif
#ifndef GROUPS
#define GROUPS 8
#endif
#ifndef DEPTH
#define DEPTH 4
#endif

#define THREADS (LANES * GROUPS)
#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if WIDTH == 1
#define VECTOR REAL
#else
#define VECTOR JOIN(REAL, WIDTH)
#endif

// What is done to a vector's components: s += a . b; s += a * b with a scalar b; a = 0; and storing
// them one by one, since y may have any stride.
#if WIDTH == 4
#define ADD_DOT(s, a, b) s += a.x * b.x; s += a.y * b.y; s += a.z * b.z; s += a.w * b.w
#define ADD_SCALED(s, a, b) s.x += a.x * b; s.y += a.y * b; s.z += a.z * b; s.w += a.w * b
#define SET_ZERO(a) a.x = a.y = a.z = a.w = 0
#define STORE_EACH(y, at, stride, v) \
    y[(at) * stride] = v.x; y[(at + 1) * stride] = v.y; \
    y[(at + 2) * stride] = v.z; y[(at + 3) * stride] = v.w
#define UNPACK_VECTOR(to, v) (to)[0] = v.x; (to)[1] = v.y; (to)[2] = v.z; (to)[3] = v.w
#elif WIDTH == 2
#define UNPACK_VECTOR(to, v) (to)[0] = v.x; (to)[1] = v.y
#define ADD_DOT(s, a, b) s += a.x * b.x; s += a.y * b.y
#define ADD_SCALED(s, a, b) s.x += a.x * b; s.y += a.y * b
#define SET_ZERO(a) a.x = a.y = 0
#define STORE_EACH(y, at, stride, v) y[(at) * stride] = v.x; y[(at + 1) * stride] = v.y
#else
#define UNPACK_VECTOR(to, v) (to)[0] = v
#define ADD_DOT(s, a, b) s += a * b
#define ADD_SCALED(s, a, b) s += a * b
#define SET_ZERO(a) a = 0
#define STORE_EACH(y, at, stride, v) y[(at) * stride] = v
#endif

#define AT(pointer, offset) (*(GLOBAL const VECTOR *)((pointer) + (offset)))
#define AT_ONCE(pointer, offset) LOAD_ONCE((GLOBAL const VECTOR *)((pointer) + (offset)))
