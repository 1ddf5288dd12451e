"""`vectors` by NumPy alone, used where their loops are not compiled."""

from __future__ import annotations

import math

import numpy as np

__all__ = ["block_bounds", "dot", "norm", "scale_and_add", "step", "times_zero"]

_FEW = 1 << 12  # elements, of which BLAS gives its threads none


def dot(x: np.ndarray, y: np.ndarray) -> float:
    """Scalar product of contiguous vectors of float32 or float64, in float64.

    By BLAS where these are too few elements for its threads, which would spin afterwards.
    """
    if x.size <= _FEW:
        if x.dtype.char == y.dtype.char == "d":  # which asks less of NumPy than the general way
            return float(x.dot(y))
        wide = x.astype(np.float64)
        return float(wide.dot(wide if y is x else y.astype(np.float64)))
    return float(np.einsum("i,i", x, y, dtype=np.float64))


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64."""
    return math.sqrt(dot(x, x))


def scale_and_add(y: np.ndarray, scale: float, x: np.ndarray) -> None:
    """y = scale y + x."""
    y *= float(scale)  # which takes y's dtype
    y += x


def step(x: np.ndarray, r: np.ndarray, p: np.ndarray, q: np.ndarray, alpha: float) -> float:
    """r -= alpha q and x += alpha p; returns the square of the new r's 2-norm.

    NaN where the new r or x would not be finite: then x is as before.
    """
    alpha = float(alpha)  # which takes x's dtype
    r -= alpha * q
    square, new = dot(r, r), alpha * p
    new += x
    # Where a sum is finite, all of it is.
    sum_of_all = new.dot(new) if new.size <= _FEW else np.add.reduce(new)
    all_finite = math.isfinite(sum_of_all) or np.isfinite(new).all()
    if not (all_finite and math.isfinite(square)):
        return math.nan
    x[...] = new
    return square


def times_zero(x: np.ndarray) -> float:
    """0 where all of x is finite, NaN where not."""
    return 0.0 if np.isfinite(x).all() else math.nan


def block_bounds(planes: np.ndarray, across: int, bounds: np.ndarray) -> None:
    """Bounds of the absolute values in blocks; as `vectors.block_bounds`."""
    (_, height, width), down = planes.shape, bounds.shape[1]
    tall, wide = (np.arange(n + 1) * size // n for n, size in ((down, height), (across, width)))
    for b, i in np.ndindex(bounds.shape[:2]):  # a band at a time stays in the cache
        band = np.abs(planes[b, tall[i] : tall[i + 1]], dtype=np.float64).sum(axis=0)
        sums = np.add.reduceat(band, wide[:-1])
        mean = (sums / (np.diff(wide) * (tall[i + 1] - tall[i]))).max()
        bounds[b, i] = mean, sums.min(initial=np.inf, where=sums > 0.0), band.max()
