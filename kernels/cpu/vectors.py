"""Vector operations on the CPU's threads.

Between the solvers' loops they take the place of BLAS: its threads go on spinning for a while on
the cores that the loops' threads then wait for. Sums are made in float64, chunk by chunk. Vectors
of few elements are not worth a second thread, and stay with the calling one. A norm on 16 cores
with 1, 2, 4, 8 and 16 threads, us: 65536 elements 20, 22, 26, 26, 25; 131072 elements 44, 31, 34,
38, 37; 262144 elements 94, 44, 42, 44, 62; 1048576 elements 407, 216, 139, 91, 95.
"""

from __future__ import annotations

import math

import numpy as np

from hetero.host.threads import by_size, exact_part, inlined, is_finite, no_overlap, part

_CHUNK = 4096  # elements of a chunk, which one thread adds up
COLUMNS = 128  # of a block of tridiagonal systems, which one thread solves


@inlined
def product(a, b):
    """Scalar product of a chunk."""
    total = 0.0
    for i in range(a.size):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@inlined
def total(sums):
    """The sum of what chunks gave, in their order."""
    total = 0.0
    for c in range(sums.size):
        total += sums[c]
    return total


@by_size()
def dot(team, x, y):
    """Scalar product ``x, y`` of contiguous vectors of float32 or float64."""
    sums = np.empty((x.size + _CHUNK - 1) // _CHUNK)
    _products(team, sums.size, (x, y, sums))
    return total(sums)


@part
def _products(start, stop, x, y, sums):
    no_overlap()
    for c in range(start, stop):
        lo, hi = c * _CHUNK, (c + 1) * _CHUNK
        sums[c] = product(x[lo:hi], y[lo:hi])


@by_size()
def scale_and_add(team, y, scale, x):
    """y = scale y + x."""
    _scale(team, (y.size + _CHUNK - 1) // _CHUNK, (y, y.dtype.type(scale), x))


@part
def _scale(start, stop, y, scale, x):
    no_overlap()
    lo, hi = start * _CHUNK, stop * _CHUNK
    a, b = y[lo:hi], x[lo:hi]
    for i in range(a.size):
        a[i] = scale * a[i] + b[i]


@by_size()
def step(team, x, r, p, q, alpha):
    """r -= alpha q and x += alpha p; returns the square of the new r's 2-norm.

    NaN where the new r or x would not be finite: then x is as before.
    """
    alpha = x.dtype.type(alpha)
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    squares, zeros = np.empty(chunks), np.empty(chunks)
    _reduced(team, chunks, (x, r, p, q, alpha, squares, zeros))
    square, zero = total(squares), total(zeros)
    if not is_finite(square) or zero != 0.0:
        return math.nan
    add_scaled(team, chunks, (_CHUNK, x, p, alpha))
    return square


@part
def _reduced(start, stop, x, r, p, q, alpha, squares, zeros):
    no_overlap()
    for c in range(start, stop):
        lo, hi = c * _CHUNK, (c + 1) * _CHUNK
        here, left, way, gone = x[lo:hi], r[lo:hi], p[lo:hi], q[lo:hi]
        square, zero = 0.0, x.dtype.type(0.0)  # which stays 0 where x + alpha p is finite
        for i in range(here.size):
            value = left[i] - alpha * gone[i]
            left[i] = value
            square += np.float64(value) * np.float64(value)
            zero += (here[i] + alpha * way[i]) * x.dtype.type(0.0)
        squares[c], zeros[c] = square, zero


@part
def add_scaled(start, stop, size, x, p, alpha):
    """x += alpha p, by chunks of ``size`` elements."""
    no_overlap()
    lo, hi = start * size, min(stop * size, x.size)
    a, b = x[lo:hi], p[lo:hi]
    for i in range(a.size):
        a[i] += alpha * b[i]


@by_size()
def times_zero(team, x):
    """Sum of 0 x: 0 where all of x is finite, NaN where not."""
    sums = np.empty((x.size + _CHUNK - 1) // _CHUNK)
    _zeros(team, sums.size, (x, sums))
    return total(sums)


@part
def _zeros(start, stop, x, sums):
    no_overlap()
    for c in range(start, stop):
        some, zero = x[c * _CHUNK : (c + 1) * _CHUNK], x.dtype.type(0.0)
        for i in range(some.size):
            zero += some[i] * x.dtype.type(0.0)
        sums[c] = zero


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64."""
    return math.sqrt(dot(x, x))


# -- Poisson's equation along an axis --------------------------------------------------------------


@by_size(1 << 18)
def tridiagonal(team, v, nears, parts, begins, square):
    """Solve (-D + m) x = v in place, for the columns of v, each with its own m.

    v, (n, columns) and C-contiguous, has n points at a distance h; D x is (x_before - 2 x +
    x_after) / h^2, with zero outside. Row j of the factors is r_j = 1 / (h^2 p_j) for pivot p_j, by
    parts: ``nears`` (columns,), 1 where r_j tends to more than 0.5 and else 0, less ``parts``. Of
    1 - r_j that keeps the digits that count for smooth x. For each block of `COLUMNS` columns
    ``parts`` has rows from ``begins`` on; the last one stands for all that follow. ``square`` is
    h^2, of v's dtype. Per point: 6 multiplications and additions.
    """
    _tridiagonal(team, begins.size - 1, (v, nears, parts, begins, square))


@exact_part
def _tridiagonal(start, stop, v, nears, parts, begins, square):
    no_overlap()
    n, columns = v.shape
    nothing = np.zeros(COLUMNS, v.dtype)
    for block in range(start, stop):
        low, high = block * COLUMNS, min((block + 1) * COLUMNS, columns)
        width, begin, near = high - low, begins[block], nears[low:high]
        last = begins[block + 1] - width
        for j in range(1, n):
            at = min(begin + (j - 1) * width, last)
            here, before, part = v[j, low:high], v[j - 1, low:high], parts[at : at + width]
            for k in range(width):
                here[k] = (here[k] + near[k] * before[k]) - part[k] * before[k]
        for j in range(n - 1, -1, -1):
            at = min(begin + j * width, last)
            here, part = v[j, low:high], parts[at : at + width]
            after = v[j + 1, low:high] if j + 1 < n else nothing[:width]
            for k in range(width):
                whole = here[k] * square + after[k]
                here[k] = near[k] * whole - part[k] * whole


# -- How large an image's values are, block by block -----------------------------------------------


@by_size()
def block_bounds(team, planes, across, bounds):
    """Bounds of the absolute values in blocks of planes.

    ``planes`` are (batch, h, w) of float32 or float64, C-contiguous, cut into ``down`` rows of
    ``across`` blocks. ``bounds``, (batch, down, 3) of float64, gets of each row of blocks their
    largest mean, which is not finite if a value is not; the least of their sums that are not 0; and
    the largest sum over one column of a block: no value is larger.
    """
    _bound_blocks(team, bounds.shape[0] * bounds.shape[1], (planes, across, bounds))


@part
def _bound_blocks(start, stop, planes, across, bounds):
    no_overlap()
    down, (_, height, width) = bounds.shape[1], planes.shape
    total = np.empty(width)  # of each column: long loops vectorise
    for task in range(start, stop):
        b, i = task // down, task % down
        first, last = i * height // down, (i + 1) * height // down
        total[:] = 0.0
        for row in range(first, last):
            line = planes[b, row]
            for column in range(width):
                total[column] += np.float64(abs(line[column]))
        mean, least, peak, whole, end = 0.0, np.inf, 0.0, 0.0, 0
        for j in range(across):
            begin, end = end, (j + 1) * width // across
            block, inside = total[begin:end], 0.0
            for column in range(block.size):
                inside += block[column]
                peak = block[column] if block[column] > peak else peak
            each = inside / ((last - first) * block.size)
            mean = each if each > mean else mean
            least = inside if 0.0 < inside < least else least
            whole += inside
        bounds[b, i, 0] = mean if is_finite(whole) else whole
        bounds[b, i, 1], bounds[b, i, 2] = least, peak
