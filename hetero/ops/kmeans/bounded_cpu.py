"""Rows on the CPU with Hamerly's bounds, where these save more than they take.

How many rows they save depends on the data and is seen only on the way. They are therefore tried
once few rows change their label, and given up where too many are looked at all the same, until half
as many rows change theirs. What is decided depends on the data alone, and changes no result.
"""

from __future__ import annotations

import numpy as np

from hetero.host.compiled import loop_compiler
from hetero.host.compiled.loops import is_ready
from hetero.host.threads import shared
from hetero.kernels.cpu import kmeans as loops
from hetero.kernels.cpu import kmeans_bounds as bounds
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.loops import BOUNDS
from hetero.ops.kmeans.rows_cpu import LoopRows, cost_of_a_row

_TEAMS = 32  # that gather rows, each for itself, at most
_BLOCKS_OF_A_TEAM = 16  # at least: a team's last block is not full
_MOVED = 1 / 16  # of the rows, below which bounds are tried
_EACH = 1 << 19  # elements; as long as to read and use these an iteration takes for few rows, too
_KEPT = 25  # keeping a row's bounds takes as long as to read and use so many elements
_LOOKED = 1.15  # a row that is looked at takes so many times as long as without bounds
_GATHERED = 5  # and for each of its numbers as long as to read and use so many elements
_LEAST = 0.1  # of the rows, that may be looked at, or bounds are not tried
_CENTROIDS = 8  # rows, at least, for each centroid: they are compared with each other too


class BoundedRows(LoopRows):
    """`LoopRows` whose labels are made with bounds where that is faster."""

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        """See `hetero.ops.kmeans.fit.Rows`."""
        self._bounds: Bounds | None = None
        self._below = _MOVED
        self._few = self._worth(*centroids.shape)
        self._moving = 1.0  # part of the rows that changed their label
        return super().lloyd(centroids, maxiter, tol, exactly)

    def _worth(self, k: int, d: int) -> float:
        """The part of the rows that may be looked at; where no bounds are to be tried, 0."""
        most, name = most_looked_at(len(self._X), k, d), BOUNDS.of(self._X.dtype)
        if most < _LEAST:
            return 0.0
        if not is_ready(name):
            loop_compiler.begin(name)
            return 0.0
        return most

    def assign(self, centroids: np.ndarray) -> bool:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        n = len(self.labels)
        if not self._few or (self._bounds is None and self._moving > self._below):
            super().assign(centroids)
        else:
            fresh = self._bounds is None
            if self._bounds is None:
                self._bounds = Bounds(n, len(self._numbers), centroids)
            looked = self._with_bounds(self._bounds, centroids, fresh)
            if not fresh and looked > self._few * n:
                self._bounds, self._below = None, self._moving / 2
        moved = int(self._numbers.sum())
        self._moving = moved / n
        return moved > 0

    def _with_bounds(self, kept: Bounds, centroids: np.ndarray, fresh: bool) -> int:
        """Label the rows; of how many all distances were made."""
        asked = self._asked(centroids)
        kept.move(centroids, *asked[1:3], fresh)
        work = self._work(centroids) if fresh else len(self.labels) * _KEPT
        shared(
            *(work, bounds.assign, *asked),
            *(self._X, self.mean, centroids, kept.rounded, kept.moves, fresh),
            *(kept.of_rows, kept.reaches, kept.looked),
        )
        return int(kept.looked.sum())


class AlwaysBounded(BoundedRows):
    """`BoundedRows` with bounds from the first iteration to the last."""

    def _worth(self, k: int, d: int) -> float:
        self._below = 1.0
        return np.inf


class Bounds:
    """What is kept of n rows, and of the centroids from which their bounds are."""

    def __init__(self, n: int, parts: int, centroids: np.ndarray) -> None:
        k, dtype = len(centroids), centroids.dtype
        teams = max(1, min(_TEAMS, parts, n // (_BLOCKS_OF_A_TEAM * loops.BLOCK)))
        self.of_rows = np.empty((3, n), dtype)
        self.reaches = np.zeros((teams, k), dtype)
        self.looked = np.zeros(teams, np.int64)
        self.moves = np.zeros((k, 4), dtype)

    def move(
        self, centroids: np.ndarray, doubled: np.ndarray, norms: np.ndarray, fresh: bool
    ) -> None:
        """Make `moves` those from the centroids before to these."""
        (k, d), dtype = centroids.shape, centroids.dtype
        now = centroids.astype(np.float64)
        up = 1 + (d + 8) * float(np.finfo(dtype).eps)
        with np.errstate(over="ignore", invalid="ignore"):
            sizes = (np.sqrt(np.einsum("ij,ij->i", now, now)) * up).astype(dtype)
            self.rounded = bounds.rounding(d, dtype, sizes.max())
            if not fresh:
                apart = now - self._before
                self.moves[:, 0] = np.sqrt(np.einsum("ij,ij->i", apart, apart)) * up
                reaches = (self.reaches.max(axis=0) + self.moves[:, 0]) * dtype.type(up)
                packed = np.empty((-(-k // loops.BLOCK), d, loops.BLOCK), dtype)
                loops.pack(centroids.size, centroids, np.zeros(d, dtype), packed)
                bounds.between(
                    *(k * cost_of_a_row(k, d), packed, doubled, norms, sizes, reaches),
                    *(self.rounded, self.moves),
                )
        self._before = now


def most_looked_at(n: int, k: int, d: int) -> float:
    """The part of the rows of which all distances may be made, so that bounds save something."""
    if n < _CENTROIDS * k:
        return 0.0
    plain = cost_of_a_row(k, d)
    return (plain - _KEPT - _EACH / n) / (_LOOKED * plain + _GATHERED * d)
