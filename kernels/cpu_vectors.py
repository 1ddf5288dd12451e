"""Vector operations on the CPU's threads.

Between the solvers' loops they take the place of BLAS, whose threads go on spinning for a while on
the cores that the loops' threads then wait for. Sums are made in float64, chunk by chunk.
"""

from __future__ import annotations

import math

import numpy as np

from .cpu import prange, share, threaded

__all__ = ["add_scaled", "dot", "norm", "scale_and_add", "subtract_scaled", "times_zero"]

_CHUNK = 4096


@threaded
def _dot(x, y, sums):
    for c in prange(sums.size):
        a, b = x[c * _CHUNK : (c + 1) * _CHUNK], y[c * _CHUNK : (c + 1) * _CHUNK]
        part = 0.0
        for i in range(a.size):
            part += np.float64(a[i]) * np.float64(b[i])
        sums[c] = part
    total = 0.0
    for c in range(sums.size):
        total += sums[c]
    return total


@threaded
def _add_scaled(y, scale, x, chunks):
    for c in prange(chunks):
        a, b = y[c * _CHUNK : (c + 1) * _CHUNK], x[c * _CHUNK : (c + 1) * _CHUNK]
        for i in range(a.size):
            a[i] += scale * b[i]


@threaded
def _scale_and_add(y, scale, x, chunks):
    for c in prange(chunks):
        a, b = y[c * _CHUNK : (c + 1) * _CHUNK], x[c * _CHUNK : (c + 1) * _CHUNK]
        for i in range(a.size):
            a[i] = scale * a[i] + b[i]


@threaded
def _subtract_scaled(y, scale, x, sums):
    for c in prange(sums.size):
        a, b = y[c * _CHUNK : (c + 1) * _CHUNK], x[c * _CHUNK : (c + 1) * _CHUNK]
        part = 0.0
        for i in range(a.size):
            left = a[i] - scale * b[i]
            a[i] = left
            part += np.float64(left) * np.float64(left)
        sums[c] = part
    total = 0.0
    for c in range(sums.size):
        total += sums[c]
    return total


def _chunks(x: np.ndarray) -> int:
    return -(-x.size // _CHUNK)


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Scalar product of contiguous vectors of float32 or float64."""
    with share(x.size):
        return _dot(x, y, np.empty(_chunks(x)))


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64."""
    return math.sqrt(dot(x, x))


def add_scaled(y: np.ndarray, scale: float, x: np.ndarray) -> None:
    """Y += scale x."""
    with share(x.size):
        _add_scaled(y, y.dtype.type(scale), x, _chunks(x))


def scale_and_add(y: np.ndarray, scale: float, x: np.ndarray) -> None:
    """Y = scale y + x."""
    with share(x.size):
        _scale_and_add(y, y.dtype.type(scale), x, _chunks(x))


def subtract_scaled(y: np.ndarray, scale: float, x: np.ndarray) -> float:
    """Y -= scale x; returns the square of the new y's 2-norm."""
    with share(x.size):
        return _subtract_scaled(y, y.dtype.type(scale), x, np.empty(_chunks(x)))


@threaded
def _times_zero(x, sums):
    for c in prange(sums.size):
        piece = x[c * _CHUNK : (c + 1) * _CHUNK]
        part = piece.dtype.type(0.0)
        for i in range(piece.size):
            part += piece[i] * piece.dtype.type(0.0)
        sums[c] = part
    total = 0.0
    for c in range(sums.size):
        total += sums[c]
    return total


def times_zero(x: np.ndarray) -> float:
    """Sum of 0 x: 0 where all of x is finite, NaN where not."""
    with share(x.size):
        return _times_zero(x, np.empty(_chunks(x)))
