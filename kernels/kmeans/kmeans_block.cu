// What kernels of this family are compiled for by default: elements, and threads of a block, of which
// LANES share a row or take neighbouring columns.

#ifndef REAL
#define REAL float
#endif
#ifndef THREADS
#define THREADS 256
#endif
#ifndef LANES
#define LANES 32
#endif
