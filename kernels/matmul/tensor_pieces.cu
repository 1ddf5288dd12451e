// What `tensor_split.cu` writes and `tensor_product.cu` reads: float32 operands as sums of 16-bit pieces. CUDA C only.
//
// A row of A (a column of B) is scaled by the power of two that brings its largest magnitude into [2^14, 2^15), and each
// element x of it is cut into pieces that tensor cores multiply exactly:
//   two of float16:    x = x0 + x1 / 2^11    11 bits each; x1 is lifted, so that it does not underflow
//   three of bfloat16: x = x0 + x1 + x2      8 bits each; the range is float32's
//
// A block of pieces has 128 rows by 32 of k. Each piece has 64 bytes a row, in which groups of 8 of k change places from
// row to row as wgmma's 64-byte swizzle has it. Blocks follow each other along k, then along rows, then along the batch.

#define PANEL 128        // rows of a block
#define STEP 32          // of k in a block
#define PIECE_BYTES (PANEL * STEP * 2)
#define TOP 14           // exponent of a row's largest element, once scaled
#define LIFT 2048.0f     // of the second piece of float16

enum { BY_FLOAT16, BY_BFLOAT16, BY_TILED };  // who computes the product

// Bytes from the begin of a block to 8 elements of a row.
DEVICE int place_of(int row, int eighth, int piece)
{
    return piece * PIECE_BYTES + row * (STEP * 2) + ((eighth ^ (row >> 1 & 3)) << 4);
}

// How an operand's values limit the choice. Counts are of one row, scaled: the worst of all rows.
typedef struct {
    unsigned int tiny;   // elements below 2^-13, 2^-27 of the largest; TOO_MANY: BY_TILED
    unsigned int large;  // at least 1; infinitely many where there are no rows
} Finding;
#define TOO_MANY (1u << 30)

// Who computes a product of operands with these findings. Two pieces of float16 hold a tiny element with an error of
// 2^-36. Tiny ones add up to tiny 2^-36 2^15 at most in an element of C, and the sum of |a||b| is at least the number of
// k where both a and b are large, which is a.large + b.large - k or more: their ratio must be below 2^-24.
DEVICE int method_for(Finding a, Finding b, index_t k)
{
    if (a.tiny + b.tiny >= TOO_MANY) return BY_TILED;
    const index_t both = (index_t)a.large + b.large - k;
    return a.tiny + b.tiny == 0 || 8 * ((index_t)a.tiny + b.tiny) <= both ? BY_FLOAT16 : BY_BFLOAT16;
}
