"""Rows on the CPU by compiled loops around BLAS's products, with Hamerly's bounds where they help.

How many rows bounds save depends on the data and is seen only on the way. They are therefore tried
once few rows change their label, and given up where too many are looked at all the same, until half
as many rows change theirs. What is decided depends on the data alone, and changes no result.
"""

from __future__ import annotations

import contextlib
import math

import numpy as np

from hetero.host import cpu
from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.cpu import kmeans as loops
from hetero.ops.kmeans.fit import Rows
from hetero.ops.kmeans.operands import check_finite

_PARTS = 64  # that threads share: of rows, and of sums
_LEAST_BLOCKS = 4
_ALONE = 1 << 10  # numbers of centroids; products of these are too small for more BLAS threads
_PRODUCTS = 16  # products of a block that take as long as to read and use one element
_ARGMIN = 8  # products, that look at one distance takes as long as
_ROWS_OF_A_SUM = 4  # as many rows, at least, for each row of a part's sums
# Sums that are kept are made anew where a cluster's weight falls below this part of what it was: of
# rows that left, rounding in the size of their weight stays.
_LEFT = 1e-3

_KEPT = 25  # keeping a row's bounds takes as long as to read and use that many elements
_COSTLY = 60  # elements; bounds are tried where a row's distances take as long,
_LEAST = 1 << 20  # and those of all rows
_MOVED = 1 / 16  # of the rows, below which bounds are tried
_LOOKED = 1 / 2  # of the rows; where more are looked at, bounds are given up


class CompiledRows(Rows):
    """Dense rows, C-contiguous, which are packed in blocks for compiled loops.

    Sums are kept from one iteration to the next: rows that changed their label are added and taken
    away.
    """

    def __init__(
        self, X: np.ndarray, weights: np.ndarray | None, given: np.ndarray | None = None
    ) -> None:
        super().__init__(X, weights, X if given is None else given)
        self._X = as_loops_take(X)
        if given is not None:
            return  # rows that only get labels are not packed
        self._each_weight = np.ones(self.n, X.dtype) if weights is None else as_loops_take(weights)
        self._packed = cpu.empty((-(-self.n // loops.BLOCK), self._d, loops.BLOCK), X.dtype)
        loops.pack(X.size, len(self._packed), self._X, self.mean, self._packed)

    @property
    def variance(self) -> float:
        # Zeros that fill the last block change nothing.
        flat = self._packed.reshape(-1)
        return float(load("hetero.kernels.cpu.vectors").dot(flat, flat)) / self._X.size

    def nearest(self, centroids: np.ndarray, measured: bool = True) -> float:
        labels = self.labels = np.empty(self.n, np.int32)
        with contextlib.nullcontext() if centroids.size <= _ALONE else cpu.one_thread():
            squares = self._squares(centroids, measured, False)
        if labels.min() < 0:
            check_finite(self._X)
            np.maximum(labels, 0, out=labels)
        return self.weighted(squares) if measured else math.nan

    def inertia(self, centroids: np.ndarray) -> float:
        return self.weighted(self._squares(centroids, True, True))

    def _squares(self, centroids: np.ndarray, measured: bool, known: bool) -> np.ndarray:
        """Squared distances of the rows, which get labels unless these are known."""
        squares = np.empty(self.n if measured else 0, self._X.dtype)
        arrays = self._X, self.mean, centroids, *_doubled(centroids), self.labels, squares, known
        work = self._X.size if known else self.n * _cost_of_a_row(*centroids.shape)
        loops.nearest(work, -(-self.n // loops.WIDE), *arrays)
        return squares

    def restart(self, centroids: np.ndarray) -> None:
        super().restart(centroids)
        (k, d), dtype = centroids.shape, centroids.dtype
        parts = max(1, min(_PARTS, len(self._packed) // _LEAST_BLOCKS))
        # The labels by which rows are in the sums; of each block the rows with others, how many.
        self._added, self._moved = self.labels.copy(), np.empty(self.n, np.uint8)
        self._numbers = np.zeros(len(self._packed), np.int64)
        self._sums, self._totals, self._most = np.zeros((k, d)), np.zeros(k), np.zeros(k)
        self._moving, self._below = 1.0, _MOVED  # the part of the rows that changed their label
        cost = _cost_of_a_row(k, d)
        self._bounded = cost >= _COSTLY and self.n * cost >= _LEAST
        self._before: np.ndarray | None = None  # the centroids that bounds are of
        self._moves, self._reaches = np.zeros((3, k), dtype), np.zeros((parts, k), dtype)
        self._looked = np.zeros(parts, np.int64)

    def assign(self, centroids: np.ndarray) -> int:
        asked = self._packed, *_doubled(centroids), self.labels
        asked += self._added, self._moved, self._numbers
        work, fresh = self.n * _cost_of_a_row(*centroids.shape), self._before is None
        if not self._bounded or (fresh and self._moving > self._below):
            loops.assign(work, len(self._packed), *asked)
        else:
            rounded = self._move(centroids)
            arrays = self._X, self.mean, centroids, rounded, self._moves, fresh
            kept = self._bounds, self._reaches, self._looked
            work = work if fresh else self.n * _KEPT
            loops.assign_undecided(work, len(self._looked), *asked, *arrays, *kept)
            if not fresh and self._looked.sum() > _LOOKED * self.n:  # not worth it
                self._before, self._below = None, self._moving / 2
        moved = int(self._numbers.sum())
        self._moving = moved / self.n
        return moved

    def _move(self, centroids: np.ndarray) -> tuple[np.generic, ...]:
        """Note how far centroids moved; what numbers are rounded by."""
        (k, d), dtype, now = centroids.shape, centroids.dtype, centroids.astype(np.float64)
        up = 1 + (d + 8) * float(np.finfo(dtype).eps)
        with np.errstate(over="ignore", invalid="ignore"):
            longest = np.sqrt(np.einsum("ij,ij->i", now, now).max()) * up
            rounded = loops.rounding(d, dtype, longest)
            if self._before is None:
                self._bounds = np.empty((3, self.n), dtype)
            else:
                apart = now - self._before
                self._moves[0] = np.sqrt(np.einsum("ij,ij->i", apart, apart)) * up
                reaches = (self._reaches.max(axis=0) + self._moves[0]) * dtype.type(up)
                turned = np.ascontiguousarray(centroids.T)
                work = k * k * (d + 2 * _ARGMIN)
                loops.between(work, k, turned, reaches, rounded, self._moves)
        self._before = now
        return rounded

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        self._add_moved()
        self._most = np.maximum(self._most, self._totals)
        if (self._totals < _LEFT * self._most).any():
            self._added[:], self._sums[:], self._totals[:] = -1, 0.0, 0.0
            self._moved[:], self._numbers[:] = np.arange(self.n) % loops.BLOCK, loops.BLOCK
            self._add_moved()
            self._most = self._totals.copy()
        return self._sums.copy(), self._totals.copy()

    def _add_moved(self) -> None:
        """Change the sums by the rows that changed their label."""
        (k, d), moved = self._sums.shape, int(self._numbers.sum())
        parts = max(1, min(len(self._looked), moved // (_ROWS_OF_A_SUM * k)))
        sums, totals = np.empty((parts + 1, k, d)), np.empty((parts, k))
        rows = self._X, self.mean, self._each_weight, self.labels, self._added, self._moved
        loops.move_rows(moved * d, parts, *rows, self._numbers, sums[1:], totals)
        sums[0] = self._sums
        np.add.reduce(sums, axis=0, out=self._sums)
        self._totals += totals.sum(axis=0)

    def first(self, index: int) -> np.ndarray:
        shape, dtype = (len(self._packed), loops.BLOCK), self._packed.dtype
        self._padded, self._closest = np.zeros(shape, dtype), np.zeros(shape, dtype)
        self._padded.reshape(-1)[: self.n] = self._each_weight
        self._closest.reshape(-1)[: self.n] = np.inf
        self._tried = np.array([index])
        return self._potentials(self._tried, False)

    def draw(self, blocks: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        terms = self._padded[blocks].astype(np.float64) * self._closest[blocks]
        within = np.count_nonzero(terms.cumsum(axis=1) < rest[:, None], axis=1)
        found = blocks * loops.BLOCK + np.minimum(within, loops.BLOCK - 1)
        self._tried = np.minimum(found, self.n - 1)
        return self._tried, self._potentials(self._tried, False)

    def take(self, which: int) -> None:
        self._potentials(self._tried[which : which + 1], True)

    def _potentials(self, rows: np.ndarray, keep: bool) -> np.ndarray:
        """Of each block the potential with each of some rows as one more seed."""
        sums, work = np.empty((len(self._packed), len(rows))), self._packed.size * len(rows)
        seeds = self._packed[rows // loops.BLOCK, :, rows % loops.BLOCK]
        arrays = self._packed, seeds, self._padded, self._closest, sums
        loops.potentials(work // _PRODUCTS, len(sums), *arrays, keep)
        return sums


CompiledBackend = CompiledRows  # as scikit-learn's own tests of seeds know it


def _doubled(centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """-2 times the centroids, and their squares."""
    return -2.0 * centroids, np.einsum("ij,ij->i", centroids, centroids)


def _cost_of_a_row(k: int, d: int) -> int:
    """What a row's distances from all centroids take, in elements that are read and used once."""
    return k * (d + _ARGMIN) // _PRODUCTS


# -- What compiles the loops: the examples of `hetero.host.loops.register` ------------------------


def compile_clusters(dtype: np.dtype) -> None:
    """Call every loop of `CompiledRows` but those of bounds."""
    rows = CompiledRows(np.random.default_rng(0).random((70, 3)).astype(dtype), None)
    rows.lloyd(rows.seeds("k-means++", 3, np.random.RandomState(0)), 2, -1.0)


def compile_bounds(dtype: np.dtype) -> None:
    """Call the loops of bounds, which take as long to compile as all others."""
    rows = CompiledRows(np.random.default_rng(0).random((70, 3)).astype(dtype), None)
    centroids = rows._X[:3] - rows.mean
    rows.restart(centroids)
    rows._bounded, rows._below = True, 1.0  # with bounds from the first iteration on
    for _ in range(2):
        rows.assign(centroids)
