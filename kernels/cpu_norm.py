"""The 2-norm on the CPU's threads.

Between the solvers' loops it takes the place of BLAS, whose threads go on spinning for a while on
the cores that the loops' threads then wait for.
"""

from __future__ import annotations

import math

import numpy as np

from .cpu import prange, share, threaded

__all__ = ["norm"]

_CHUNK = 4096


@threaded
def _squares(x, sums):
    for c in prange(sums.size):
        part = 0.0
        piece = x[c * _CHUNK : (c + 1) * _CHUNK]
        for i in range(piece.size):
            part += np.float64(piece[i]) * np.float64(piece[i])
        sums[c] = part
    total = 0.0
    for c in range(sums.size):
        total += sums[c]
    return total


def norm(x: np.ndarray) -> float:
    """2-norm of a contiguous vector of float32 or float64, summed in float64, chunk by chunk."""
    with share(x.size):
        return math.sqrt(_squares(x, np.empty(-(-x.size // _CHUNK))))
