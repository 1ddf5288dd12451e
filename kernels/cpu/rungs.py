"""The CPU's rungs: loops from the textbook's order to threads, one idea in each.

A loop is called ``<family>_<rung>``; `CPU_RUNGS` of the family's ``rungs.py`` says what is new in
it. It is compiled when it is first called. Arrays are C-contiguous and of one dtype, float32 or
float64. Inner loops run over slices: with indices into the whole array Numba leaves them scalar,
because an index could be negative and count from the end.
"""

from __future__ import annotations

import numpy as np

from hetero.host.compiled.parts import helper, part
from hetero.host.threads import serial, threaded

__all__ = ["DEPTH", "WIDTH"]

DEPTH, WIDTH = 64, 512  # of a tile of B: 256 KiB in float64, a part of a core's own cache

# -- C = A B: A of m x k, B of k x n; C holds zeros. 2 m n k flops. --------------------------------


@serial
def matmul_sequential(A, B, C):
    """i-j-k: a row of A times a column of B; each element of B comes from another line."""
    for i in range(A.shape[0]):
        for j in range(B.shape[1]):
            total = C[i, j]
            for p in range(A.shape[1]):
                total += A[i, p] * B[p, j]
            C[i, j] = total


@helper
def _add_rows(a, B, c, first):
    """c += a B for a row of C from column ``first`` on: three memory accesses for each product."""
    for p in range(a.size):
        one, line = a[p], B[p, first : first + c.size]
        for j in range(c.size):
            c[j] += one * line[j]


@serial
def matmul_reordered(A, B, C):
    """i-k-j: a row of C is the sum of rows of B."""
    for i in range(A.shape[0]):
        _add_rows(A[i], B, C[i], 0)


@helper
def _add_fours(a, B, c, first):
    """As `_add_rows`, with four rows of B: for four products C is loaded and stored once."""
    fours, last = a.size // 4 * 4, first + c.size
    for p in range(0, fours, 4):
        a0, a1, a2, a3 = a[p], a[p + 1], a[p + 2], a[p + 3]
        b0, b1 = B[p, first:last], B[p + 1, first:last]
        b2, b3 = B[p + 2, first:last], B[p + 3, first:last]
        for j in range(c.size):
            c[j] += a0 * b0[j] + a1 * b1[j] + (a2 * b2[j] + a3 * b3[j])
    _add_rows(a[fours:], B[fours:], c, first)


@serial
def matmul_unrolled(A, B, C):
    """i-k-j, four rows of B at a time."""
    for i in range(A.shape[0]):
        _add_fours(A[i], B, C[i], 0)


@serial
def matmul_blocked(A, B, C):
    """Tiles of B, each of which serves all rows of A while it is in the cache."""
    for q in range(0, B.shape[0], DEPTH):
        for j in range(0, B.shape[1], WIDTH):
            for i in range(A.shape[0]):
                _add_fours(A[i, q : q + DEPTH], B[q : q + DEPTH], C[i, j : j + WIDTH], j)


@part
def _matmul_rows(start, stop, A, B, C):
    matmul_blocked(A[start:stop], B, C[start:stop])


@threaded
def matmul_parallel(team, A, B, C):
    """A range of the rows of A and of C for each thread."""
    _matmul_rows(team, A.shape[0], (A, B, C))


# -- y = A x: A of m x k; y holds zeros. 2 m k flops. ----------------------------------------------


@serial
def matvec_sequential(A, x, y):
    """A column of A at a time: each element of A comes from another line."""
    for p in range(A.shape[1]):
        for i in range(A.shape[0]):
            y[i] += A[i, p] * x[p]


@helper
def _dot(a, x):
    total = a.dtype.type(0)
    for p in range(a.size):
        total += a[p] * x[p]
    return total


@serial
def matvec_reordered(A, x, y):
    """A row of A at a time, through each line once."""
    for i in range(A.shape[0]):
        y[i] = _dot(A[i], x)


@part
def _matvec_rows(start, stop, A, x, y):
    matvec_reordered(A[start:stop], x, y[start:stop])


@threaded
def matvec_parallel(team, A, x, y):
    """A range of the rows of A for each thread."""
    _matvec_rows(team, A.shape[0], (A, x, y))


# -- out[i, j] = sum of taps[u, v] image[i + u, j + v], the image extended; out holds zeros. -------


@serial
def convolve2d_sequential(image, taps, out):
    """One result after another, the sum over its taps: 2 flops for each."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = out[i, j]
            for u in range(taps.shape[0]):
                for v in range(taps.shape[1]):
                    total += taps[u, v] * image[i + u, j + v]
            out[i, j] = total


@serial
def convolve2d_reordered(image, taps, out):
    """Along a row of the result for each tap; the row stays in the cache for all of them."""
    for i in range(out.shape[0]):
        row = out[i]
        for u in range(taps.shape[0]):
            for v in range(taps.shape[1]):
                tap, line = taps[u, v], image[i + u, v:]
                for j in range(row.size):
                    row[j] += tap * line[j]


@part
def _convolve2d_rows(start, stop, image, taps, out):
    convolve2d_reordered(image[start:], taps, out[start:stop])


@threaded
def convolve2d_parallel(team, image, taps, out):
    """A range of the rows of the result for each thread."""
    _convolve2d_rows(team, out.shape[0], (image, taps, out))


# -- A Jacobi sweep over (rows, lines, columns) points, as in `jacobi.sweep`. ---------------------


@part
def _sweep_rows(start, stop, u, f, u_new, factors):
    """Each point looks whether it has its six neighbours. In 3-D 10 flops for each."""
    rows, lines, columns = u.shape
    along_rows, along_lines, along_columns, scale = factors
    for r in range(start, stop):
        for m in range(lines):
            for c in range(columns):
                total = scale * f[r, m, c]
                if r > 0:
                    total += along_rows * u[r - 1, m, c]
                if r < rows - 1:
                    total += along_rows * u[r + 1, m, c]
                if m > 0:
                    total += along_lines * u[r, m - 1, c]
                if m < lines - 1:
                    total += along_lines * u[r, m + 1, c]
                if c > 0:
                    total += along_columns * u[r, m, c - 1]
                if c < columns - 1:
                    total += along_columns * u[r, m, c + 1]
                u_new[r, m, c] = total


@serial
def jacobi_sequential(u, f, u_new, factors):
    """One point after another, by a team of one."""
    _sweep_rows(0, u.shape[0], (u, f, u_new, factors))


@threaded
def jacobi_parallel(team, u, f, u_new, factors):
    """A range of the rows for each thread."""
    _sweep_rows(team, u.shape[0], (u, f, u_new, factors))


# -- labels[i] = the nearest of k centroids to row i of X, of n x d. -------------------------------


@serial
def kmeans_sequential(X, centroids, labels):
    """The squared distance from one centroid after another: 3 n d k flops."""
    for i in range(X.shape[0]):
        label, least = 0, np.inf
        for j in range(centroids.shape[0]):
            total = X.dtype.type(0)
            for c in range(X.shape[1]):
                difference = X[i, c] - centroids[j, c]
                total += difference * difference
            if total < least:
                least, label = total, j
        labels[i] = label


@serial
def kmeans_expanded(X, centroids, labels):
    """The least c.c - 2 x.c, which is |x - c|^2 - |x|^2: X times the centroids, 2 n d k flops."""
    norms = np.empty(centroids.shape[0], X.dtype)
    for j in range(norms.size):
        norms[j] = _dot(centroids[j], centroids[j])
    for i in range(X.shape[0]):
        label, least = 0, np.inf
        for j in range(norms.size):
            score = norms[j] - 2 * _dot(X[i], centroids[j])
            if score < least:
                least, label = score, j
        labels[i] = label


@part
def _kmeans_rows(start, stop, X, centroids, labels):
    kmeans_expanded(X[start:stop], centroids, labels[start:stop])


@threaded
def kmeans_parallel(team, X, centroids, labels):
    """A range of the rows of X for each thread."""
    _kmeans_rows(team, X.shape[0], (X, centroids, labels))
