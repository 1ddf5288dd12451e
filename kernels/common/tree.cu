// Sums of neighbouring threads, or groups of them, four at a time: half the barriers of a binary tree.
//
// Each of the first `count` has left a value in shared memory; all of them add up to those of the first `least`. Number
// `position` adds to its value, OTHERS, those of number position + other, and leaves the sum: this is the `body`. All
// threads of the block take part. Preconditions: count and least are powers of two.

#define OTHERS \
    UNROLL \
    for (int other = next; other < width; other += next)
#define ADD_TREE(count, least, position, body) \
    UNROLL \
    for (int width = count; width > (least); width = width >= 4 * (least) ? width / 4 : (least)) { \
        const int next = width >= 4 * (least) ? width / 4 : (least); \
        __syncthreads(); \
        if (position < next) body \
    }
