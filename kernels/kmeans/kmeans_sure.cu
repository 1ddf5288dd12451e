// Whether the label that kmeans_pieces.cu found is that of float32. C.
//
// With u = 2^-24, x.c as a chain of d multiply-adds in float32 is wrong by d u |x||c| at most; by pieces it is by
// (0.7 d + 13) u |x||c|: what is cut, what a tensor core cuts off each group of 16 products, and sums every 64. The rest
// of a distance is rounded by some u of itself. A centroid that may be the nearest has |c| <= |x| + the distance of the
// one that was found.

#define ROUNDED 5.9604645e-8f  // u

// Of the least and the second least distance of a row of this length, less its square, from centroids of d numbers.
DEVICE int is_sure(float least, float second, float length, float d)
{
    const float far = length + sqrtf(fmaxf(fmaf(length, length, least), 0.0f));  // no |c| that counts is larger
    const float wrong = 4.0f * (2.0f * d + 16.0f) * ROUNDED * length * far + 8.0f * ROUNDED * far * far;
    return second - least > 1.1f * wrong;  // no: also where one is no number
}
