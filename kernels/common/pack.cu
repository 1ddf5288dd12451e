// A vector of WIDTH elements of type REAL, 16 bytes where WIDTH > 1: its type, VECTOR, and its
// components to an array and back. Whoever includes this has set REAL and WIDTH.

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#if WIDTH == 1
#define VECTOR REAL
#else
#define VECTOR JOIN(REAL, WIDTH)
#endif

#if WIDTH == 4
#define UNPACK(to, v) (to)[0] = v.x; (to)[1] = v.y; (to)[2] = v.z; (to)[3] = v.w
#define PACK(v, from) v.x = (from)[0]; v.y = (from)[1]; v.z = (from)[2]; v.w = (from)[3]
#elif WIDTH == 2
#define UNPACK(to, v) (to)[0] = v.x; (to)[1] = v.y
#define PACK(v, from) v.x = (from)[0]; v.y = (from)[1]
#else
#define UNPACK(to, v) (to)[0] = v
#define PACK(v, from) v = (from)[0]
#endif
