"""Vector operations on the CPU's threads.

Between the solvers' loops they take the place of BLAS: its threads go on spinning for a while on
the cores that the loops' threads then wait for. Sums are made in float64, chunk by chunk. Vectors
of fewer than SHARED elements are not worth a second thread, and stay with the calling one. A norm
on 16 cores with 1, 2, 4, 8 and 16 threads, us: 65536 elements 20, 22, 26, 26, 25; 131072 elements
44, 31, 34, 38, 37; 262144 elements 94, 44, 42, 44, 62; 1048576 elements 407, 216, 139, 91, 95.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.host.threads import ALONE, compiled, inlined, is_finite, no_overlap, part, team_for

__all__ = ["SHARED", "dot", "norm", "scale_and_add", "step", "times_zero"]

SHARED = 1 << 17  # elements: shorter vectors gain nothing by a second thread
_CHUNK = 4096  # elements of a chunk, which one thread adds up


def _by_size(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make it ``function(x, ...)``, which takes threads if its first vector is long enough."""
    kernel = compiled(function)

    @functools.wraps(function)
    def call(x: np.ndarray, *arguments: Any) -> Any:
        return kernel(team_for(x.size, SHARED // 2) if x.size >= SHARED else ALONE, x, *arguments)

    return call


@_by_size
def dot(team, x, y):
    """Scalar product ``x, y`` of contiguous vectors of float32 or float64."""
    if x.size <= _CHUNK:  # without room for sums of chunks, which costs more than short sums do
        return _product(x, y)
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    sums = np.empty(chunks)
    _products(team, chunks, (x, y, sums))
    return _total(sums)


@part
def _products(start, stop, x, y, sums):
    no_overlap()
    for c in range(start, stop):
        lo, hi = c * _CHUNK, (c + 1) * _CHUNK
        sums[c] = _product(x[lo:hi], y[lo:hi])


@inlined
def _product(a, b):
    total = 0.0
    for i in range(a.size):
        total += np.float64(a[i]) * np.float64(b[i])
    return total


@inlined
def _total(sums):
    total = 0.0
    for c in range(sums.size):
        total += sums[c]
    return total


@_by_size
def scale_and_add(team, y, scale, x):
    """y = scale y + x."""
    scale = y.dtype.type(scale)
    if y.size <= _CHUNK:
        _scale(y, scale, x)
        return
    _scaled(team, (y.size + _CHUNK - 1) // _CHUNK, (y, scale, x))


@part
def _scaled(start, stop, y, scale, x):
    no_overlap()
    for c in range(start, stop):
        lo, hi = c * _CHUNK, (c + 1) * _CHUNK
        _scale(y[lo:hi], scale, x[lo:hi])


@inlined
def _scale(a, scale, b):
    for i in range(a.size):
        a[i] = scale * a[i] + b[i]


@_by_size
def step(team, x, r, p, q, alpha):
    """r -= alpha q and x += alpha p; returns the square of the new r's 2-norm.

    NaN where the new r or x would not be finite: then x is as before.
    """
    alpha = x.dtype.type(alpha)
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    if chunks <= 1:
        square, zero = _reduce(x, p, r, q, alpha)
        if not is_finite(square) or zero != 0.0:
            return math.nan
        _move(x, p, alpha)
        return square
    squares, zeros = np.empty(chunks), np.empty(chunks)
    _reduced(team, chunks, (x, r, p, q, alpha, squares, zeros))
    square = _total(squares)
    if not is_finite(square) or _total(zeros) != 0.0:
        return math.nan
    _moved(team, chunks, (x, p, alpha))
    return square


@part
def _reduced(start, stop, x, r, p, q, alpha, squares, zeros):
    no_overlap()
    for c in range(start, stop):
        lo, hi = c * _CHUNK, (c + 1) * _CHUNK
        squares[c], zeros[c] = _reduce(x[lo:hi], p[lo:hi], r[lo:hi], q[lo:hi], alpha)


@inlined
def _reduce(x, p, r, q, alpha):
    """r -= alpha q; returns r.r, and 0 where x + alpha p is finite, else NaN."""
    square = 0.0
    zero = x.dtype.type(0.0)
    for i in range(x.size):
        value = r[i] - alpha * q[i]
        r[i] = value
        square += np.float64(value) * np.float64(value)
        zero += (x[i] + alpha * p[i]) * x.dtype.type(0.0)
    return square, np.float64(zero)


@part
def _moved(start, stop, x, p, alpha):
    no_overlap()
    for c in range(start, stop):
        lo, hi = c * _CHUNK, (c + 1) * _CHUNK
        _move(x[lo:hi], p[lo:hi], alpha)


@inlined
def _move(x, p, alpha):
    for i in range(x.size):
        x[i] += alpha * p[i]


@_by_size
def times_zero(team, x):
    """Sum of 0 x: 0 where all of x is finite, NaN where not."""
    if x.size <= _CHUNK:
        return _zero_times(x)
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    sums = np.empty(chunks)
    _zeros(team, chunks, (x, sums))
    return _total(sums)


@part
def _zeros(start, stop, x, sums):
    no_overlap()
    for c in range(start, stop):
        sums[c] = _zero_times(x[c * _CHUNK : (c + 1) * _CHUNK])


@inlined
def _zero_times(x):
    total = x.dtype.type(0.0)
    for i in range(x.size):
        total += x[i] * x.dtype.type(0.0)
    return np.float64(total)


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64."""
    return math.sqrt(dot(x, x))
