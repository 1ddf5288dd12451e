"""Vectors that lie on the ranks in parts: each works on its own, and sums are made by all."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks


class Vectors:
    """The functions of `hetero.kernels.cpu.vectors`, for vectors in parts.

    Partial sums are made in float64 by the compiled loops, never by what serves until these are
    compiled: its sums have another order, and results would not repeat.
    """

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks
        self._own = load("hetero.kernels.cpu.vectors")
        self.scale_and_add = self._own.scale_and_add

    def dot(self, x: np.ndarray, y: np.ndarray) -> float:
        """Scalar product."""
        return float(self._ranks.total(self._own.dot(x, y))[0])

    def norm(self, x: np.ndarray) -> float:
        """2-norm."""
        return math.sqrt(self.dot(x, x))

    def begin(self, *pairs: tuple[np.ndarray, np.ndarray], also: float = 0.0) -> Any:
        """Start scalar products, the last of which gets ``also`` added; for `end`."""
        *dots, last = (self._own.dot(x, y) for x, y in pairs)
        return self._ranks.begin(*dots, last + also)

    def end(self, begun: Any) -> list[float]:
        """The scalar products that were begun."""
        return self._ranks.end(begun).tolist()

    def step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        """r -= alpha q, x += alpha p; gives r.r, NaN where not all is finite: x is as before."""
        mine = self._own.step(x, r, p, q, alpha)
        square = float(self._ranks.total(mine)[0])
        if math.isnan(square) and not math.isnan(mine):  # another rank did not move
            self.subtract(x, alpha, p, np.empty_like(p))
        return square

    def own_step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        """`step` with no sum; gives 0 where this rank's x and r are finite, NaN where not."""
        return 0.0 * self._own.step(x, r, p, q, alpha)

    def subtract(self, y: Any, alpha: float, x: Any, spare: Any) -> None:
        """y -= alpha x; ``spare`` is overwritten."""
        np.multiply(x, y.dtype.type(alpha), out=spare)
        np.subtract(y, spare, out=y)

    def times_zero(self, x: np.ndarray) -> float:
        """0 where all of x is finite, NaN where not."""
        return float(self._ranks.total(self._own.times_zero(x))[0])
