// What lies beyond an image's edges. `boundary` is the index in `BOUNDARIES` of kernels/common/launch.py:
// 0: a fill value; 1: periodic; 2: mirrored, with the edge repeated.

#ifndef POSITION
#define POSITION index_t
#endif

// Where position `at` of an extended axis lies in the image, which has n there; -1: nowhere.
DEVICE POSITION extended(POSITION at, POSITION n, int boundary)
{
    if (at >= 0 && at < n) return at;
    if (boundary == 0) return -1;
    const POSITION period = boundary == 1 ? n : 2 * n;
    at %= period;
    if (at < 0) at += period;
    return at < n ? at : 2 * n - 1 - at;
}
