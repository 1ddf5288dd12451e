"""Vector operations on the CPU's threads.

Between the solvers' loops they take the place of BLAS, whose threads go on spinning for a while on
the cores that the loops' threads then wait for. Sums are made in float64, chunk by chunk. Vectors
of fewer than SHARED elements are not worth a second thread, and stay with the calling one. A norm
on 16 cores with 1, 2, 4, 8 and 16 threads, us: 65536 elements 20, 22, 26, 26, 25; 131072 elements
44, 31, 34, 38, 37; 262144 elements 94, 44, 42, 44, 62; 1048576 elements 407, 216, 139, 91, 95.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .parts import part
from .threads import shared, threaded

__all__ = ["SHARED", "dot", "norm", "scale_and_add", "step", "times_zero"]

SHARED = 1 << 17
_LIGHT = 4  # elements that are as much work as one of those that `shared` counts
_CHUNK = 4096


def _by_size(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``function(team, x, ...)`` with threads if its first vector is long enough."""
    kernel = threaded(function)

    def call(x: np.ndarray, *arguments: Any) -> Any:
        if x.size < SHARED:
            return kernel.alone(x, *arguments)
        return shared(x.size // _LIGHT, kernel, x, *arguments)

    return call


@_by_size
def _dot(team, x, y):
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    sums = np.empty(chunks)
    _products(team, chunks, (x, y, sums))
    total = 0.0
    for c in range(chunks):
        total += sums[c]
    return total


@part
def _products(start, stop, x, y, sums):
    for c in range(start, stop):
        a, b = x[c * _CHUNK : (c + 1) * _CHUNK], y[c * _CHUNK : (c + 1) * _CHUNK]
        total = 0.0
        for i in range(a.size):
            total += np.float64(a[i]) * np.float64(b[i])
        sums[c] = total


@_by_size
def _scale_and_add(team, y, scale, x):
    _scaled(team, (y.size + _CHUNK - 1) // _CHUNK, (y, scale, x))


@part
def _scaled(start, stop, y, scale, x):
    for c in range(start, stop):
        a, b = y[c * _CHUNK : (c + 1) * _CHUNK], x[c * _CHUNK : (c + 1) * _CHUNK]
        for i in range(a.size):
            a[i] = scale * a[i] + b[i]


@_by_size
def _step(team, x, r, p, q, alpha):
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    squares, zeros = np.empty(chunks), np.empty(chunks)
    _reduced(team, chunks, (x, r, p, q, alpha, squares, zeros))
    total, zero = 0.0, 0.0
    for c in range(chunks):
        total += squares[c]
        zero += zeros[c]
    if not math.isfinite(total) or zero != 0.0:
        return math.nan
    _moved(team, chunks, (x, p, alpha))
    return total


@part
def _reduced(start, stop, x, r, p, q, alpha, squares, zeros):
    for c in range(start, stop):
        to = x[c * _CHUNK : (c + 1) * _CHUNK]
        along = p[c * _CHUNK : (c + 1) * _CHUNK]
        left = r[c * _CHUNK : (c + 1) * _CHUNK]
        q_part = q[c * _CHUNK : (c + 1) * _CHUNK]
        square = 0.0
        zero = to.dtype.type(0.0)
        for i in range(to.size):
            value = left[i] - alpha * q_part[i]
            left[i] = value
            square += np.float64(value) * np.float64(value)
            zero += (to[i] + alpha * along[i]) * to.dtype.type(0.0)
        squares[c], zeros[c] = square, zero


@part
def _moved(start, stop, x, p, alpha):
    for c in range(start, stop):
        to = x[c * _CHUNK : (c + 1) * _CHUNK]
        along = p[c * _CHUNK : (c + 1) * _CHUNK]
        for i in range(to.size):
            to[i] += alpha * along[i]


@_by_size
def _times_zero(team, x):
    chunks = (x.size + _CHUNK - 1) // _CHUNK
    sums = np.empty(chunks)
    _zeros(team, chunks, (x, sums))
    total = 0.0
    for c in range(chunks):
        total += sums[c]
    return total


@part
def _zeros(start, stop, x, sums):
    for c in range(start, stop):
        piece = x[c * _CHUNK : (c + 1) * _CHUNK]
        total = piece.dtype.type(0.0)
        for i in range(piece.size):
            total += piece[i] * piece.dtype.type(0.0)
        sums[c] = total


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Scalar product of contiguous vectors of float32 or float64."""
    return _dot(x, y)


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64."""
    return math.sqrt(_dot(x, x))


def scale_and_add(y: np.ndarray, scale: float, x: np.ndarray) -> None:
    """y = scale y + x."""
    _scale_and_add(y, y.dtype.type(scale), x)


def step(x: np.ndarray, r: np.ndarray, p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """r -= alpha q and x += alpha p; returns the square of the new r's 2-norm.

    NaN where the new r or x would not be finite: then x is as before.
    """
    return _step(x, r, p, q, x.dtype.type(alpha))


def times_zero(x: np.ndarray) -> float:
    """Sum of 0 x: 0 where all of x is finite, NaN where not."""
    return _times_zero(x)
