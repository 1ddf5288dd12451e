// What the kernels share that take tiles to two buffers in shared memory through registers. An operand is loaded by
// pieces of PIECE neighbours. Included by them, after matmul_registers.cu; STORE_NEXT(buffer) is the kernel's.

#if ALIGNED
#define PIECE WIDTH
#define LOADED VECTOR
#else
#define PIECE 1
#define LOADED REAL
#endif
#define LOAD(pointer) (*(GLOBAL const LOADED *)(pointer))
#define CLEAR_PIECE(piece) JOIN(CLEAR, PIECE)(piece)

// Store a loaded piece in a k-major shared tile: with k fast its elements go to lines that follow each other.
DEVICE void store_piece(LOCAL REAL *to, int pitch, int k_fast, LOADED piece)
{
    if (k_fast) {
        JOIN(SCATTER, PIECE)(to, pitch, piece);
    } else {
        *(LOCAL LOADED *)to = piece;
    }
}

#define TO_NEXT \
    reading = 1 - reading; \
    STORE_NEXT(reading); \
    __syncthreads()
