"""Vectors that lie on the ranks in parts: each works on its own, and sums are made by all."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.imports import load
from hetero.mpi.ranks import Ranks


class Vector:
    """This rank's elements of a vector: an array or a buffer, or None after a failure."""

    def __init__(self, vectors: Vectors, values: Any) -> None:
        self._vectors, self.values, self.dtype = vectors, values, vectors.dtype

    def copy(self) -> Vector:
        """Another vector of the same elements."""
        return self._vectors.made(self._vectors.own.copy, self.values)

    def __sub__(self, other: Vector) -> Vector:
        return self._vectors.made(self._vectors.own.difference, self.values, other.values)


class Vectors:
    """The functions of `hetero.kernels.cpu.vectors` for `cg_cpu.iterate`, and a few more.

    Where a rank's own work fails, it goes on, and all ranks raise with the next sum.

    Parameters
    ----------
    own : HostVectors or DeviceVectors
        What works on this rank's elements.
    """

    def __init__(self, ranks: Ranks, own: Any, dtype: np.dtype) -> None:
        self._ranks, self.own, self.dtype = ranks, own, dtype

    def made(self, work: Callable[..., Any], *values: Any) -> Vector:
        """A new vector, of what ``work(*values)`` gives."""
        return Vector(self, self._ranks.attempt(work, *values))

    def dot(self, x: Vector, y: Vector) -> float:
        """Scalar product."""
        return self._ranks.total(self._ranks.attempt(self.own.dot, x.values, y.values))

    def norm(self, x: Vector) -> float:
        """2-norm."""
        return math.sqrt(self.dot(x, x))

    def scale_and_add(self, y: Vector, scale: float, x: Vector) -> None:
        """y = scale y + x."""
        self._ranks.attempt(self.own.scale_and_add, y.values, scale, x.values)

    def step(self, x: Vector, r: Vector, p: Vector, q: Vector, alpha: float) -> float:
        """r -= alpha q, x += alpha p; gives r.r, NaN where not all is finite: x is as before."""
        parts = (vector.values for vector in (x, r, p, q))
        mine = self._ranks.attempt(self.own.step, *parts, alpha)
        square = self._ranks.total(mine)
        if math.isnan(square) and not math.isnan(mine):  # another rank did not move
            self._ranks.attempt(self.own.subtract, x.values, alpha, p.values)
        return square

    def multiplier(self, diagonal: np.ndarray) -> Callable[[Vector, Vector], None]:
        """``f(r, z)`` that writes z = diagonal * r."""
        m = self.made(self.own.hold, diagonal).values

        def multiply(r: Vector, z: Vector) -> None:
            self._ranks.attempt(self.own.multiply, m, r.values, z.values)

        return multiply


class HostVectors:
    """A rank's vectors in the memory of the host: arrays.

    Partial sums are made by the compiled loops, and the first one waits until these are compiled:
    NumPy adds in another order, and results would not repeat.
    """

    def __init__(self) -> None:
        loops = load("hetero.kernels.cpu.vectors")
        self.dot, self.step, self.scale_and_add = loops.dot, loops.step, loops.scale_and_add
        self.copy, self.difference, self.multiply = np.copy, np.subtract, np.multiply

    def subtract(self, y: np.ndarray, alpha: float, x: np.ndarray) -> None:
        """y -= alpha x."""
        y -= y.dtype.type(alpha) * x

    def hold(self, x: np.ndarray) -> np.ndarray:
        """An array of the host where these functions take it."""
        return x

    def on_host(self, x: np.ndarray) -> np.ndarray:
        """What `hold` gave, on the host."""
        return x
