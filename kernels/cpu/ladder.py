"""The CPU's ladders: loops from the textbook's order to threads, one idea in each.

A loop is compiled when it is first called. Arrays are C-contiguous and of one dtype, float32 or
float64. Inner loops run over slices: with indices into the whole array Numba leaves them scalar,
because an index could be negative and count from the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hetero.host.compiled.parts import helper, part
from hetero.host.threads import serial, threaded

__all__ = ["DEPTH", "LADDERS", "WIDTH", "Loop"]

DEPTH, WIDTH = 64, 512  # of a tile of B: 256 KiB in float64, a part of a core's own cache


class Loop(NamedTuple):
    """A step of a CPU's ladder; see `hetero.kernels.common.ladder.Rung`."""

    number: int
    name: str
    idea: str
    adds: str
    run: Callable[..., None]
    seed: str = ""
    threads: bool = False  # whether several threads run it


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
def convolution_sequential(image, taps, out):
    """One result after another, the sum over its taps: 2 flops for each."""
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            total = out[i, j]
            for u in range(taps.shape[0]):
                for v in range(taps.shape[1]):
                    total += taps[u, v] * image[i + u, j + v]
            out[i, j] = total


@serial
def convolution_reordered(image, taps, out):
    """Along a row of the result for each tap; the row stays in the cache for all of them."""
    for i in range(out.shape[0]):
        row = out[i]
        for u in range(taps.shape[0]):
            for v in range(taps.shape[1]):
                tap, line = taps[u, v], image[i + u, v:]
                for j in range(row.size):
                    row[j] += tap * line[j]


@part
def _convolution_rows(start, stop, image, taps, out):
    convolution_reordered(image[start:], taps, out[start:stop])


@threaded
def convolution_parallel(team, image, taps, out):
    """A range of the rows of the result for each thread."""
    _convolution_rows(team, out.shape[0], (image, taps, out))


# -- A Jacobi sweep over rows x columns points with zeros around them. 6 flops for each. -----------


@part
def _sweep_rows(start, stop, u, f, u_new, factor):
    """Each point looks whether it has its four neighbours."""
    rows, columns = u.shape
    quarter = u.dtype.type(0.25)
    for r in range(start, stop):
        for c in range(columns):
            total = u.dtype.type(0)
            if c > 0:
                total += u[r, c - 1]
            if c < columns - 1:
                total += u[r, c + 1]
            if r > 0:
                total += u[r - 1, c]
            if r < rows - 1:
                total += u[r + 1, c]
            u_new[r, c] = quarter * total + factor * f[r, c]


@serial
def jacobi_sequential(u, f, u_new, factor):
    """One point after another, by a team of one."""
    _sweep_rows(0, u.shape[0], (u, f, u_new, factor))


@threaded
def jacobi_parallel(team, u, f, u_new, factor):
    """A range of the rows for each thread."""
    _sweep_rows(team, u.shape[0], (u, f, u_new, factor))


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


@part
def _kmeans_rows(start, stop, X, centroids, labels):
    kmeans_sequential(X[start:stop], centroids, labels[start:stop])


@threaded
def kmeans_parallel(team, X, centroids, labels):
    """A range of the rows of X for each thread."""
    _kmeans_rows(team, X.shape[0], (X, centroids, labels))


# Family -> its loops, in their order.
_RANGES = "a range of rows for each thread"
LADDERS = {
    "matmul": (
        Loop(
            *(1, "sequential", "i-j-k, a row of A times a column of B", "nothing: the definition"),
            *(matmul_sequential, "Online book, first program"),
        ),
        Loop(
            *(2, "reordered", "i-k-j, a row of C is a sum of rows of B", "lines, and vectors"),
            *(matmul_reordered, "Jensen 2017, project 1 (mkn)"),
        ),
        Loop(
            *(3, "unrolled", "four rows of B at a time", "six accesses for four products, not 12"),
            matmul_unrolled,
        ),
        Loop(
            *(4, "blocked", "tiles of B, each for all rows of A", "B comes from the core's cache"),
            *(matmul_blocked, "Jensen 2017, project 1 (blocking)"),
        ),
        Loop(
            *(5, "parallel", _RANGES, "as many times as cores", matmul_parallel),
            *("Online book, OpenMP", True),
        ),
    ),
    "matvec": (
        Loop(
            *(1, "sequential", "a column of A at a time", "nothing: an element from each line"),
            matvec_sequential,
        ),
        Loop(
            *(2, "reordered", "a row of A at a time", "A is read along its lines, in vectors"),
            matvec_reordered,
        ),
        Loop(3, "parallel", _RANGES, "up to the memory's bandwidth", matvec_parallel, "", True),
    ),
    "convolution": (
        Loop(
            *(1, "sequential", "one result after another", "nothing: the definition"),
            *(convolution_sequential, "White 2013, figures 3.12 to 3.14"),
        ),
        Loop(
            *(2, "reordered", "along a row of the result for each tap", "a long inner loop"),
            convolution_reordered,
        ),
        Loop(3, "parallel", _RANGES, "as many times as cores", convolution_parallel, "", True),
    ),
    "jacobi": (
        Loop(
            *(1, "sequential", "one point after another", "the method is right"),
            *(jacobi_sequential, "Jensen 2017, figure 7"),
        ),
        Loop(
            *(2, "parallel", _RANGES, "up to the memory's bandwidth", jacobi_parallel),
            *("Jensen 2017, figure 7 (OpenMP)", True),
        ),
    ),
    "kmeans": (
        Loop(
            *(1, "sequential", "the distance from one centroid after another"),
            *("the method is right", kmeans_sequential),
        ),
        Loop(2, "parallel", _RANGES, "as many times as cores", kmeans_parallel, "", True),
    ),
}
