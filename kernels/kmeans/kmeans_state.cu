// What an iteration leaves in `state`, an array of integers that the next kernels and the host look at.
// Once STOPPED is set, kernels return at once: iterations may be queued beyond the last one.

#ifndef INFINITY
#define INFINITY __int_as_float(0x7f800000)
#endif

#define STOPPED 0     // why, or 0: the iteration goes on
#define ITERATIONS 1  // that are complete
#define CHANGED 2     // how many labels changed in this one, if they are COUNTED, else 1 if any did
#define EMPTY 3       // 1 if a cluster has no weight in this one

#define REPEATED 1   // no label changed
#define CONVERGED 2  // the centroids moved by no more than the tolerance, or few labels changed
#define EMPTIED 3    // a cluster is empty, and the centroids are still to be computed

// LISTED: a kernel labels the rows that a list has, how many and then which, in place of all.
#if LISTED
#define LIST , GLOBAL const int *RESTRICT listed
#define HOW_MANY(n) listed[0]
#define ROW(i) listed[1 + (i)]
#else
#define LIST
#define HOW_MANY(n) (n)
#define ROW(i) (i)
#endif

// A centroid is the nearest so far where it is at the least distance.
#define KEEP_NEAREST(least, nearest, distance, centroid) \
    if (distance < least) { \
        least = distance; \
        nearest = centroid; \
    }

// A thread's rows have no nearest centroid yet.
#define CLEAR_NEAREST(rows) \
    UNROLLED(i, rows) { \
        least[i * THREADS + thread] = (REAL)INFINITY; \
        nearest[i * THREADS + thread] = 0; \
    }

// A label's place in memory gets a new value; tells of it if it is another one.
DEVICE void write_label(GLOBAL int *labels, GLOBAL int *state, index_t row, int label)
{
    if (labels[row] != label) {
        labels[row] = label;
#if COUNTED
        atomicAdd(state + CHANGED, 1);
#else
        state[CHANGED] = 1;
#endif
    }
}
