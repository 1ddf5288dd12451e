"""Vectors that lie on the ranks in parts: each works on its own, and sums are made by all."""

from __future__ import annotations

import abc
import math
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks


class Vectors(abc.ABC):
    """The functions of `hetero.kernels.cpu.vectors`, and a few more, for vectors in parts."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @abc.abstractmethod
    def own_dot(self, x: Any, y: Any) -> float:
        """The scalar product of this rank's elements, in float64."""

    @abc.abstractmethod
    def own_step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        """`step` on this rank's elements alone."""

    @abc.abstractmethod
    def scale_and_add(self, y: Any, scale: float, x: Any) -> None:
        """y = scale y + x."""

    @abc.abstractmethod
    def subtract(self, y: Any, alpha: float, x: Any) -> None:
        """y -= alpha x."""

    @abc.abstractmethod
    def difference(self, r: Any, b: Any, q: Any) -> None:
        """r = b - q."""

    def dot(self, x: Any, y: Any) -> float:
        """Scalar product."""
        return float(self._ranks.total(self.own_dot(x, y))[0])

    def norm(self, x: Any) -> float:
        """2-norm."""
        return math.sqrt(self.dot(x, x))

    def begin(self, *pairs: tuple[Any, Any], also: float = 0.0) -> Any:
        """Start scalar products, the last of which gets ``also`` added; for `end`."""
        *dots, last = (self.own_dot(x, y) for x, y in pairs)
        return self._ranks.begin(*dots, last + also)

    def end(self, begun: Any) -> list[float]:
        """The scalar products that were begun."""
        return self._ranks.end(begun).tolist()

    def step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        """r -= alpha q, x += alpha p; gives r.r, NaN where not all is finite: x is as before."""
        mine = self.own_step(x, r, p, q, alpha)
        square = float(self._ranks.total(mine)[0])
        if math.isnan(square) and not math.isnan(mine):  # another rank did not move
            self.subtract(x, alpha, p)
        return square

    def hold(self, x: np.ndarray) -> Any:
        """A vector of the host where these functions take it."""
        return x

    def on_host(self, x: Any) -> np.ndarray:
        """What `hold` gave, on the host."""
        return x

    def synchronize(self) -> None:  # noqa: B027  # the host has nothing to wait for
        """Wait for what was started."""


class HostVectors(Vectors):
    """Vectors in the memory of the host.

    Partial sums are made by the compiled loops, and the first one waits until these are compiled:
    NumPy adds in another order, and results would not repeat.
    """

    def __init__(self, ranks: Ranks) -> None:
        super().__init__(ranks)
        self._own = load("hetero.kernels.cpu.vectors")
        self._spare: np.ndarray | None = None

    def own_dot(self, x: np.ndarray, y: np.ndarray) -> float:
        return self._own.dot(x, y)

    def own_step(self, x: Any, r: Any, p: Any, q: Any, alpha: float) -> float:
        return self._own.step(x, r, p, q, alpha)

    def scale_and_add(self, y: np.ndarray, scale: float, x: np.ndarray) -> None:
        self._own.scale_and_add(y, scale, x)

    def subtract(self, y: np.ndarray, alpha: float, x: np.ndarray) -> None:
        if self._spare is None or self._spare.dtype != x.dtype or self._spare.size != x.size:
            self._spare = np.empty_like(x)
        np.multiply(x, y.dtype.type(alpha), out=self._spare)
        np.subtract(y, self._spare, out=y)

    def difference(self, r: np.ndarray, b: np.ndarray, q: np.ndarray) -> None:
        np.subtract(b, q, out=r)
