// A vector of WIDTH elements of type REAL, 16 bytes where WIDTH > 1: its type, VECTOR, and its
// components to an array and back, and set to zero. Whoever includes this has set REAL and WIDTH.

#include "components.cu"
#if WIDTH == 1
#define VECTOR REAL
#else
#define VECTOR JOIN(REAL, WIDTH)
#endif
#define UNPACK(to, v) JOIN(UNPACK, WIDTH)(to, v)
#define PACK(v, from) JOIN(PACK, WIDTH)(v, from)
#define CLEAR(v) JOIN(CLEAR, WIDTH)(v)
