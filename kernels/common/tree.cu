// Sums of neighbouring threads, or of groups of threads, four at a time: half the barriers of a binary tree.
//
// `count` of them have left a value each in shared memory, of which the first `least` get the sums: in each step those
// that go on add up the values of three others, four in all. `position` is the thread's or the group's number. The `body`
// adds the values of the numbers position + other, for OTHERS, to its own, and leaves the sum. All threads of the block
// take part. Preconditions: count and least are powers of two.

#define OTHERS UNROLLED_RANGE(other, next, width, next)
#define ADD_TREE(count, least, position, body) \
    UNROLL for (int width = count; width > (least); width = width >= 4 * (least) ? width / 4 : (least)) { \
        const int next = width >= 4 * (least) ? width / 4 : (least); \
        __syncthreads(); \
        if (position < next) body \
    }
