"""Rows on the CPU, by compiled loops around BLAS's products."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.host.compiled.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.cpu import kmeans as loops
from hetero.ops.kmeans import initial
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.lloyd import LEFT, lloyd
from hetero.ops.kmeans.rows_numpy import column_means
from hetero.ops.kmeans.single_blas import alone

_PARTS = 64  # that threads share: of blocks, and of sums
_LEAST_BLOCKS = 4
_PRODUCTS = 16  # products of a block that take as long as to read and use one element
_ARGMIN = 8  # products, that look at one distance takes as long as
_ROWS_OF_A_SUM = 4  # as many rows, at least, for each row of a part's sums


class LoopRows:
    """Rows of X, and what is asked of them.

    Parameters
    ----------
    X : (n, d) array of float32 or float64
        C-contiguous; it is not changed.
    weights : (n,) array of X's dtype, or None
    given : (k, d) array of X's dtype, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    """

    def __init__(
        self, X: np.ndarray, weights: np.ndarray | None, given: np.ndarray | None = None
    ) -> None:
        n, d = X.shape
        self._X = as_loops_take(X)
        self._unweighted = weights is None
        weights = np.ones(n, X.dtype) if weights is None else as_loops_take(weights)
        self._weights = weights
        self.mean = column_means(X if given is None else given)
        blocks = -(-n // loops.BLOCK)
        self._packed = np.empty((blocks, d, loops.BLOCK), X.dtype)
        loops.pack(X.size, self._X, self.mean, self._packed)
        self.labels = np.empty(0, np.int32)
        self._sums = self._totals = self._counts = np.empty(0)

    def mean_variance(self) -> float:
        """See `hetero.ops.kmeans.fit.Rows`; zeros that fill the last block change nothing."""
        n, d = self._X.shape
        flat = self._packed.reshape(-1)
        return float(_dot(flat, flat)) / (n * d)

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """See `hetero.ops.kmeans.fit.Rows`."""
        n = self._X.shape[0]
        if callable(how):
            return initial.by_callable(how, self._X - self.mean, k, random)
        weights = None if self._unweighted else self._weights
        if how == initial.PLUS_PLUS:
            first = initial.weighted_choice(n, weights, random)
            seeding = PackedSeeding(self._packed, self._weights)
            rows = initial.plus_plus(seeding, first, k, random)
        else:
            rows = initial.weighted_choice(n, weights, random, k)
        return self._X[rows] - self.mean

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        """See `hetero.ops.kmeans.fit.Rows`."""
        (n, d), k, blocks = self._X.shape, len(centroids), len(self._packed)
        self.labels = np.full(n, -1, np.int32)
        self._moved, self._was = np.empty(n, np.int64), np.empty(n, np.int32)
        parts = max(1, min(_PARTS, blocks // _LEAST_BLOCKS))
        self._numbers = np.zeros(parts, np.int64)
        self._sums = np.zeros((k, d))
        self._totals, self._counts = np.zeros(k), np.zeros(k, np.int64)
        self._most = np.zeros(k)
        with alone:
            return lloyd(self, centroids, maxiter, tol, exactly), self.labels

    def assign(self, centroids: np.ndarray) -> bool:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        loops.assign(self._work(centroids), *self._asked(centroids))
        return bool(self._numbers.any())

    def _work(self, centroids: np.ndarray) -> int:
        """What the distances from all centroids take, as `kernels.cpu.kmeans` counts it."""
        return len(self.labels) * cost_of_a_row(*centroids.shape)

    def _asked(self, centroids: np.ndarray) -> tuple[np.ndarray, ...]:
        """The arguments of `kernels.cpu.kmeans.assign`."""
        norms = np.einsum("ij,ij->i", centroids, centroids)
        lists = self._moved, self._was, self._numbers
        return self._packed, -2.0 * centroids, norms, self.labels, *lists

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        self._add_moved(centroids)
        self._most = np.maximum(self._most, self._totals)
        if (self._totals < LEFT * self._most).any():
            n, blocks, parts = len(self.labels), len(self._packed), len(self._numbers)
            self._moved[:], self._was[:] = np.arange(n), -1
            first = np.arange(parts + 1) * blocks // parts * loops.BLOCK
            self._numbers[:] = np.diff(np.minimum(first, n))
            for kept in (self._sums, self._totals, self._counts):
                kept[...] = 0
            self._add_moved(centroids)
            self._most = self._totals.copy()
        return self._sums.copy(), self._totals.copy()

    def _add_moved(self, centroids: np.ndarray) -> None:
        """Change the sums by the rows that changed their label."""
        moved = int(self._numbers.sum())
        k, d = centroids.shape
        parts = max(1, min(len(self._numbers), moved // (_ROWS_OF_A_SUM * k)))
        sums, totals = np.empty((parts, k, d)), np.empty((parts, k))
        counts = np.empty((parts, k), np.int64)
        if moved:
            loops.move_rows(
                *(moved * d, self._X, self.mean, self._weights, self.labels),
                *(self._moved, self._was, self._numbers, len(self._packed)),
                *(sums, totals, counts),
            )
            loops.add_parts(sums.size, self._sums, sums)
            self._totals += totals.sum(axis=0)
            self._counts += counts.sum(axis=0)
            empty = self._counts == 0
            self._sums[empty] = 0.0  # of rows that came and went, rounding is left
            self._totals[empty] = self._most[empty] = 0.0

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        found = np.empty(len(self.labels), self._X.dtype)
        loops.distances(self._X.size, self._packed, centroids, self.labels, found)
        return found

    def row(self, index: int) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return self._X[index] - self.mean

    def weight(self, index: int) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return float(self._weights[index])

    def inertia(self, centroids: np.ndarray) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        distances = self.distances(centroids)
        distances *= self._weights
        return float(distances.sum(dtype=np.float64))


def cost_of_a_row(k: int, d: int) -> int:
    """What a row's distances from all centroids take, in elements that are read and used once."""
    return k * (d + _ARGMIN) // _PRODUCTS


class PackedSeeding:
    """`hetero.ops.kmeans.initial.Seeding` of packed rows."""

    def __init__(self, packed: np.ndarray, weights: np.ndarray) -> None:
        self._packed = packed
        blocks, _, size = packed.shape
        self._n = len(weights)
        self._weights = np.zeros((blocks, size), packed.dtype)
        self._weights.reshape(-1)[: self._n] = weights
        self._closest = np.full((blocks, size), np.inf, packed.dtype)
        self._closest.reshape(-1)[self._n :] = 0.0
        self._sums = np.empty(blocks)
        self._tried = np.empty(0, np.int64)

    def first(self, index: int) -> float:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._add(self._row(index))
        return float(self._sums.sum())

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        found = np.empty(len(values), np.int64)
        running = np.cumsum(self._sums)
        loops.find_rows(self._weights, self._closest, running, values, found)
        return np.minimum(found, self._n - 1)

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._tried = indices
        sums = np.empty((len(self._packed), len(indices)))
        work = self._packed.size * len(indices) // _PRODUCTS
        loops.potentials(work, self._packed, indices, self._weights, self._closest, sums)
        return sums.sum(axis=0)

    def take(self, which: int) -> None:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._add(self._row(self._tried[which]))

    def _add(self, seed: np.ndarray) -> None:
        loops.nearest_seed(
            self._packed.size // _PRODUCTS,
            self._packed,
            seed,
            self._weights,
            self._closest,
            self._sums,
        )

    def _row(self, index: int) -> np.ndarray:
        return self._packed[index // loops.BLOCK, :, index % loops.BLOCK].copy()


def _dot(x: np.ndarray, y: np.ndarray) -> float:
    vectors = load("hetero.kernels.cpu.vectors")
    return vectors.dot(x, y)
