"""Rows on the CPU: what all of them share, those by NumPy's products, and distances of `transform`.

Products are made of blocks of rows: a block's distances are looked through while they are in the
cache; the matrix of all never is. A sparse X goes the same way.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from hetero.devices.at_once import side_by_side
from hetero.host import cpu
from hetero.imports import load
from hetero.ops.kmeans.fit import Rows
from hetero.ops.kmeans.operands import check_finite

_BLOCK = 1 << 18  # bytes of a block's distances
_LEAST_ROWS = 64
_NUMBERS = 1 << 22  # of a block of `distances`: BLAS's threads wait for each other at its end
_SHARED = 1 << 22  # products from which threads share an assignment
_NEAR = 1e-6  # of two squares: a square of their difference below that has too few digits
_FAR = 1e3  # of the centroids' variance; where their mean's square is larger, it is subtracted
_FEW = 4096  # numbers that are added up without SciPy's sparse matrices: 0.15 s to import
_LONG = 1024  # numbers that are added to others at a time, where NumPy is at its fastest


class CpuRows(Rows):
    """Rows on the CPU: an array or a CSR matrix of float32 or float64, which is not changed, and
    weights of that dtype. Distances are accurate for an array, which is taken less its mean.

    ``measured`` says whether the inertia of rows that only get labels is asked for; ``given`` is
    `hetero.ops.kmeans.fit.Fit.given`.
    """

    measured = True

    def __init__(self, X: Any, weights: np.ndarray | None, given: np.ndarray | None = None) -> None:
        self.n, self._d = X.shape
        self._X, self._weights = X, weights
        if isinstance(X, np.ndarray):
            with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
                self.mean = column_means(X if given is None else given)
            if given is None and not np.isfinite(self.mean).all():
                check_finite(X)

    def restart(self, centroids: np.ndarray) -> None:
        self.labels = np.full(self.n, -1, np.int32)

    def inertia(self, centroids: np.ndarray) -> float:
        return self.weighted(self.distances(centroids)) if self.measured else math.nan

    def weighted(self, squares: np.ndarray) -> float:
        """The inertia of squared distances, which are changed."""
        if self._weights is not None and squares.size:
            squares *= self._weights
        return float(squares.sum(dtype=np.float64))

    def host_weights(self) -> np.ndarray | None:
        return self._weights


class NumpyRows(CpuRows):
    """Dense or sparse rows, by NumPy's products."""

    def __init__(self, X: Any, weights: np.ndarray | None, given: np.ndarray | None = None) -> None:
        super().__init__(X, weights, given)
        self._dense = isinstance(X, np.ndarray)
        if given is not None:
            check_finite(X if self._dense else X.data)
        if self._dense:
            self._X = X - self.mean

    def mean_variance(self) -> float:
        if self._dense:
            return float(np.mean(np.var(self._X, axis=0)))
        data = self._X.data.astype(np.float64)
        sums, squares = (
            np.bincount(self._X.indices, values, self._d) for values in (data, data * data)
        )
        return float(np.mean(np.maximum(squares / self.n - (sums / self.n) ** 2, 0.0)))

    def centred(self) -> tuple[Any, Any]:
        return self._X, self.mean

    def seeding(self) -> NumpySeeding:
        return NumpySeeding(self._X, self._weights)

    def rows(self, indices: np.ndarray) -> np.ndarray:
        return _dense(self._X[indices])

    def assign(self, centroids: np.ndarray) -> int:
        self._k = len(centroids)
        norms = np.einsum("ij,ij->i", centroids, centroids)
        doubled = np.ascontiguousarray(-2.0 * centroids.T, centroids.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // (self._k * centroids.itemsize))
        before, pending = self.labels.copy(), iter(range(0, self.n, rows))

        def label() -> None:
            for begin in pending:  # advancing a range's iterator is atomic
                distances = self._X[begin : begin + rows] @ doubled
                distances += norms
                self.labels[begin : begin + rows] = distances.argmin(axis=1)

        if self.n * centroids.size < _SHARED:
            label()
        else:
            side_by_side([label] * cpu.describe()["cores"])
        return int(np.count_nonzero(self.labels != before))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        weights = np.ones(self.n) if self._weights is None else self._weights.astype(np.float64)
        X, labels, shape = self._X, self.labels, (self._k, self._d)
        totals = np.bincount(labels, weights, self._k)
        if not self._dense:
            rows = _rows_of_entries(X)
            where = labels[rows].astype(np.int64) * self._d + X.indices
            sums = np.bincount(where, weights[rows] * X.data, self._k * self._d)
            return sums.reshape(shape), totals
        if X.size <= _FEW:
            sums = np.zeros(shape)
            np.add.at(sums, labels, weights[:, None] * X)
            return sums, totals
        csr_array = load("scipy.sparse").csr_array
        one_hot = csr_array((weights, labels, np.arange(self.n + 1)), (self.n, self._k))
        return one_hot.T @ X, totals

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        X, found = self._X, np.empty(self.n, self._X.dtype)
        if not self._dense:  # of no more terms than there are entries
            rows = _rows_of_entries(X)
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


def column_means(X: np.ndarray) -> np.ndarray:
    """The columns' means, added up in float64: float32 has not the digits for many rows.

    NumPy adds row to row, which takes long for few columns: as many rows as make `_LONG` numbers
    are added as one.
    """
    n, d = X.shape
    rows = _LONG // d
    if rows < 2 or n < 4 * rows or not X.flags.c_contiguous:
        return X.mean(axis=0, dtype=np.float64).astype(X.dtype)
    whole = n // rows * rows
    sums = X[:whole].reshape(-1, rows * d).sum(axis=0, dtype=np.float64)
    rest = X[whole:].sum(axis=0, dtype=np.float64)
    return ((sums.reshape(rows, d).sum(axis=0) + rest) / n).astype(X.dtype)


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
                apart = _dense(block[few[i]]) - centroids[j]
                found[few[i], j] = np.sqrt(np.einsum("ij,ij->i", apart, apart))
    return result


class NumpySeeding:
    """k-means++ by NumPy. See `Rows`."""

    def __init__(self, X: Any, weights: np.ndarray | None) -> None:
        self._X, self._weights, self._norms = X, weights, _norms(X)

    def first(self, index: int) -> float:
        self._closest = self._distances(np.array([index]))[0]
        return float(self._sums(self._closest))

    def draw(self, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        weighted = self._closest if self._weights is None else self._closest * self._weights
        found = np.searchsorted(np.cumsum(weighted), values)
        found = np.minimum(found, len(weighted) - 1)
        self._tried = np.minimum(self._closest, self._distances(found))
        return found, self._sums(self._tried)

    def take(self, which: int) -> None:
        self._closest = self._tried[which]

    def _sums(self, distances: np.ndarray) -> np.ndarray:
        return distances.sum(axis=-1) if self._weights is None else distances @ self._weights

    def _distances(self, indices: np.ndarray) -> np.ndarray:
        """Squared distances of all rows from some of them, (some, n)."""
        products = np.asarray(self._X @ _dense(self._X[indices]).T, float).T
        found = self._norms - 2.0 * products + self._norms[indices, None]
        found[np.arange(len(indices)), indices] = 0.0
        return np.maximum(found, 0.0)


def _norms(X: Any) -> np.ndarray:
    """The rows' squares."""
    if isinstance(X, np.ndarray):
        return np.einsum("ij,ij->i", X, X).astype(np.float64)
    squared = type(X)((np.square(X.data, dtype=np.float64), X.indices, X.indptr), X.shape)
    return squared @ np.ones(X.shape[1])


def _rows_of_entries(X: Any) -> np.ndarray:
    return np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))


def _dense(X: Any) -> np.ndarray:
    return X if isinstance(X, np.ndarray) else X.toarray()
