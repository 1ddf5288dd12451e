"""`vectors` by NumPy alone, used while its loops are compiled.

Vectors are gone through in chunks that stay in the cache; sums are made in float64.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

__all__ = ["dot", "norm", "scale_and_add", "step", "times_zero"]

_CHUNK = 1 << 15  # elements of several vectors that stay in the cache together
_ALONE = 1 << 13  # elements: BLAS uses no threads for so few


def _chunks(size: int, *vectors: np.ndarray) -> Iterator[tuple[np.ndarray, ...]]:
    for first in range(0, vectors[0].size, size):
        yield tuple([vector[first : first + size] for vector in vectors])


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Scalar product of contiguous vectors of float32 or float64."""
    total = 0.0
    for a, b in _chunks(_ALONE, x, y):
        wide = a.astype(np.float64, copy=False)
        total += float(np.dot(wide, wide if y is x else b.astype(np.float64, copy=False)))
    return total


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64."""
    return math.sqrt(dot(x, x))


def scale_and_add(y: np.ndarray, scale: float, x: np.ndarray) -> None:
    """y = scale y + x."""
    scale = y.dtype.type(scale)
    for a, b in _chunks(_CHUNK, y, x):
        a *= scale
        a += b


def step(x: np.ndarray, r: np.ndarray, p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """r -= alpha q and x += alpha p; returns the square of the new r's 2-norm.

    NaN where the new r or x would not be finite: then x is as before.
    """
    alpha = x.dtype.type(alpha)
    new, square = np.empty_like(x), 0.0
    spare = np.empty(min(x.size, _CHUNK), x.dtype)
    for to, along, now, left, gone in _chunks(_CHUNK, new, p, x, r, q):
        left -= np.multiply(gone, alpha, out=spare[: gone.size])
        square += dot(left, left)
        np.multiply(along, alpha, out=to)
        to += now
    if not math.isfinite(square) or times_zero(new) != 0.0:
        return math.nan
    x[...] = new
    return square


def times_zero(x: np.ndarray) -> float:
    """Sum of 0 x: 0 where all of x is finite, NaN where not."""
    zeros, total = np.zeros(min(x.size, _ALONE), x.dtype), 0.0
    with np.errstate(invalid="ignore"):
        for (part,) in _chunks(_ALONE, x):
            total += float(np.dot(part, zeros[: part.size]))
    return total
