// A vector of WIDTH elements of type REAL, 16 bytes where WIDTH > 1: its type, VECTOR, and its
// components to an array and back, and set to zero. Whoever includes this has set REAL and WIDTH.
// READ and WRITE: an array from and to a vector in memory.

#include "components.cu"
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
