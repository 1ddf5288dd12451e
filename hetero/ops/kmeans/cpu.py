"""Rows on the CPU by NumPy's products, and distances of `transform`.

Products are made of blocks of rows: a block's distances are looked through while they are in the
cache; the matrix of all never is. A sparse X goes the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.devices.at_once import side_by_side
from hetero.host import cpu
from hetero.imports import load
from hetero.ops.kmeans.fit import Rows, dense_rows
from hetero.ops.kmeans.operands import check_finite

_BLOCK = 1 << 18  # bytes of a block's distances
_LEAST_ROWS = 64
_NUMBERS = 1 << 22  # of a block of `distances`: BLAS's threads wait for each other at its end
_SHARED = 1 << 22  # products from which threads share an assignment
_NEAR = 1e-6  # of two squares: a square of their difference below that has too few digits
_FAR = 1e3  # of the centroids' variance; where their mean's square is larger, it is subtracted
_FEW = 4096  # numbers that are added up without SciPy's sparse matrices: 0.15 s to import


class NumpyRows(Rows):
    """Dense or sparse rows, by NumPy's products. Distances are accurate for dense ones, which are
    taken less their mean. ``given`` is `hetero.ops.kmeans.fit.Fit.given`."""

    def __init__(self, X: Any, weights: np.ndarray | None, given: np.ndarray | None = None) -> None:
        self._dense, around = isinstance(X, np.ndarray), X if given is None else given
        super().__init__(X, weights, around if self._dense else None)
        if given is not None:
            check_finite(X if self._dense else X.data)
        self._moved = X - self.mean if self._dense else X

    @property
    def variance(self) -> float:
        squares = _norms(self._moved).sum() / self.n
        if not self._dense:  # else the mean is zero
            means = self._X.T @ np.ones(self.n) / self.n
            squares = max(squares - means @ means, 0.0)
        return float(squares / self._d)

    def assign(self, centroids: np.ndarray) -> int:
        self._k = len(centroids)
        norms = np.einsum("ij,ij->i", centroids, centroids)
        doubled = np.ascontiguousarray(-2.0 * centroids.T, centroids.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // (self._k * centroids.itemsize))
        before, pending = self.labels.copy(), iter(range(0, self.n, rows))

        def label() -> None:
            for begin in pending:  # advancing a range's iterator is atomic
                distances = self._moved[begin : begin + rows] @ doubled
                distances += norms
                self.labels[begin : begin + rows] = distances.argmin(axis=1)

        if self.n * centroids.size < _SHARED:
            label()
        else:
            side_by_side([label] * cpu.describe()["cores"])
        return int(np.count_nonzero(self.labels != before))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        weights = np.ones(self.n) if self._weights is None else self._weights.astype(np.float64)
        X, labels, shape = self._moved, self.labels, (self.n, self._k)
        totals = np.bincount(labels, weights, self._k)
        if self._dense and X.size <= _FEW:
            sums = np.zeros((self._k, self._d))
            np.add.at(sums, labels, weights[:, None] * X)
            return sums, totals
        one_hot = load("scipy.sparse").csr_array((weights, labels, np.arange(self.n + 1)), shape)
        sums = one_hot.T @ X
        return sums if self._dense else sums.toarray(), totals

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        X, found = self._moved, np.empty(self.n, self._moved.dtype)
        if not self._dense:  # of no more terms than there are entries
            rows = np.repeat(np.arange(self.n), np.diff(X.indptr))
            near = centroids[self.labels[rows], X.indices]
            terms = (X.data - near) ** 2 - near**2
            norms = np.einsum("ij,ij->i", centroids, centroids)
            squares = np.bincount(rows, terms, self.n) + norms[self.labels]
            return np.maximum(squares, 0.0, out=found, casting="same_kind")
        rows = max(_LEAST_ROWS, _BLOCK // (self._d * X.itemsize))
        for begin in range(0, self.n, rows):
            part = slice(begin, begin + rows)
            difference = X[part] - centroids[self.labels[part]]
            np.einsum("ij,ij->i", difference, difference, out=found[part])
        return found

    def first(self, index: int) -> np.ndarray:
        self._norms, self._closest = _norms(self._moved), np.inf
        return self._try(np.array([index]))

    def draw(self, values: np.ndarray, running: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.minimum(np.searchsorted(running, values), self.n - 1)
        return found, self._try(found)

    def take(self, which: int) -> None:
        self._closest = self._tried[which]

    def _try(self, indices: np.ndarray) -> np.ndarray:
        """The weighted distance of each row from the nearest seed with each of some rows as one
        more, (n, some)."""
        products = np.asarray(self._moved @ dense_rows(self._moved, indices).T, float).T
        found = self._norms - 2.0 * products + self._norms[indices, None]
        found[np.arange(len(indices)), indices] = 0.0
        self._tried = np.minimum(np.maximum(found, 0.0), self._closest)
        return (self._tried if self._weights is None else self._tried * self._weights).T


def distances(X: Any, centroids: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Distances of rows from all centroids, which are of float64, by products in double.

    Where a product would leave too few digits, they are made of differences.
    """
    (n, d), k, dense, mean = X.shape, len(centroids), isinstance(X, np.ndarray), 0.0
    if dense:
        middle = centroids.mean(axis=0)
        moved = centroids - middle
        if middle @ middle * k > _FAR * np.vdot(moved, moved):  # else it is a pass over X too much
            mean, centroids = middle, moved
    norms, wide = _norms(centroids), dense and k > d  # then the product adds the squares, too
    factors = np.vstack([-2.0 * centroids.T, np.ones(k), norms])[: d + 2 * wide]
    rows = min(n, max(_LEAST_ROWS, _NUMBERS // (d * dense + k)))
    result, part = np.empty((n, k), dtype), np.ones((rows if wide else 0, d + 2))
    room = result if dtype == np.float64 else np.empty((rows, k))
    largest = float(np.finfo(dtype).max)
    with np.errstate(all="ignore"):
        for begin in range(0, n, rows):
            block, found = X[begin : begin + rows], result[begin : begin + rows]
            squares = found if room is result else room[: len(found)]
            if wide:
                part = part[: len(found)]
                block = np.subtract(block, mean, out=part[:, :d])
                own = part[:, d] = _norms(block)
                np.matmul(part, factors, out=squares)
            else:
                block = block.astype(np.float64, copy=False)
                block = block - mean if np.any(mean) else block
                own = _norms(block)
                squares = np.matmul(block, factors, out=squares) if dense else block @ factors
                squares += own[:, None]
                squares += norms
            few = np.flatnonzero(~(squares.min(axis=1) >= _NEAR * (own + norms.max())))
            near = np.argwhere(~(squares[few] >= _NEAR * (own[few, None] + norms)))
            if squares.dtype == dtype or largest < 2.0 * (own.max() + norms.max()):
                np.sqrt(squares, out=found, casting="same_kind")
            else:  # faster, where no square overflows
                found[...] = squares
                np.sqrt(found, out=found)
            for i, j in (near[a : a + rows].T for a in range(0, len(near), rows)):
                apart = dense_rows(block, few[i]) - centroids[j]
                found[few[i], j] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    return result


def _norms(X: Any) -> np.ndarray:
    """The rows' squares."""
    if isinstance(X, np.ndarray):
        return np.einsum("ij,ij->i", X, X).astype(np.float64)
    squared = type(X)((np.square(X.data, dtype=np.float64), X.indices, X.indptr), X.shape)
    return squared @ np.ones(X.shape[1])
