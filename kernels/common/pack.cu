// A vector of WIDTH elements of type REAL, 16 bytes where WIDTH > 1: its type, VECTOR, and its
// components to an array and back, and set to zero. Whoever includes this has set REAL and WIDTH.
// READ and WRITE: an array from and to a vector in memory.

#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define UNPACK4(to, v) (to)[0] = v.x; (to)[1] = v.y; (to)[2] = v.z; (to)[3] = v.w
#define PACK4(v, from) v.x = (from)[0]; v.y = (from)[1]; v.z = (from)[2]; v.w = (from)[3]
#define UNPACK2(to, v) (to)[0] = v.x; (to)[1] = v.y
#define PACK2(v, from) v.x = (from)[0]; v.y = (from)[1]
#define UNPACK1(to, v) (to)[0] = v
#define PACK1(v, from) v = (from)[0]
#define SCATTER4(to, pitch, v) (to)[0] = v.x; (to)[pitch] = v.y; (to)[2 * (pitch)] = v.z; (to)[3 * (pitch)] = v.w
#define SCATTER2(to, pitch, v) (to)[0] = v.x; (to)[pitch] = v.y
#define SCATTER1(to, pitch, v) (to)[0] = v
#define CLEAR4(v) v.x = v.y = v.z = v.w = 0
#define CLEAR2(v) v.x = v.y = 0
#define CLEAR1(v) v = 0
#if WIDTH == 1
#define VECTOR REAL
#else
#define VECTOR JOIN(REAL, WIDTH)
#endif
#define UNPACK(to, v) JOIN(UNPACK, WIDTH)(to, v)
#define PACK(v, from) JOIN(PACK, WIDTH)(v, from)
#define CLEAR(v) JOIN(CLEAR, WIDTH)(v)
#define READ(to, pointer) \
    do { \
        const VECTOR loaded_ = *(pointer); \
        UNPACK(to, loaded_); \
    } while (0)
#define WRITE(pointer, from) \
    do { \
        VECTOR packed_; \
        PACK(packed_, from); \
        *(pointer) = packed_; \
    } while (0)
