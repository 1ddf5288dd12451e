// Rows of a grid in 16-byte pieces.
//
// A thread holds WIDTH neighbouring points in an array that is indexed by constants, and moves
// them in pieces of VECTOR elements, 16 bytes.
// Preconditions: VECTOR divides WIDTH; addresses are multiples of 16 bytes.

#include "components.cu"
#define PIECE JOIN(REAL, VECTOR)
#define UNPACK(to, v) JOIN(UNPACK, VECTOR)(to, v)
#define PACK(v, from) JOIN(PACK, VECTOR)(v, from)

// values = the WIDTH points at `from`, or zeros where there are none.
DEVICE void load_points(REAL *values, GLOBAL const REAL *from, int there)
{
    UNROLL
    for (int at = 0; at < WIDTH; at += VECTOR) {
        PIECE piece;
        UNROLL
        for (int each = 0; each < VECTOR; ++each) values[at + each] = 0;
        if (there) {
            piece = *(GLOBAL const PIECE *)(from + at);
            UNPACK(values + at, piece);
        }
    }
}

// The same for what nobody reads again soon.
DEVICE void load_points_once(REAL *values, GLOBAL const REAL *from, int there)
{
    UNROLL
    for (int at = 0; at < WIDTH; at += VECTOR) {
        PIECE piece;
        UNROLL
        for (int each = 0; each < VECTOR; ++each) values[at + each] = 0;
        if (there) {
            piece = LOAD_ONCE((GLOBAL const PIECE *)(from + at));
            UNPACK(values + at, piece);
        }
    }
}

DEVICE void store_points(GLOBAL REAL *to, const REAL *values)
{
    UNROLL
    for (int at = 0; at < WIDTH; at += VECTOR) {
        PIECE piece;
        PACK(piece, values + at);
        *(GLOBAL PIECE *)(to + at) = piece;
    }
}
