"""Rows on the CPU, compared with the centroids by NumPy's products of blocks of them.

A block's distances are looked through while they are in the cache; the matrix of all never is. A
sparse X goes the same way.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np

from hetero.devices import cpu
from hetero.imports import load
from hetero.ops.kmeans import initial
from hetero.ops.kmeans.fit import Run
from hetero.ops.kmeans.lloyd import LEFT, lloyd
from hetero.ops.kmeans.single_blas import alone

_BLOCK = 1 << 18  # bytes of a block's distances
_LEAST_ROWS = 64
_SHARED = 1 << 22  # products from which threads share an assignment
_LONG = 1024  # numbers that are added to others at a time, where NumPy is at its fastest


class NumpyRows:
    """Rows of X, and what is asked of them, by NumPy's products.

    Parameters
    ----------
    X : (n, d) array or CSR matrix of float32 or float64
        It is not changed. A dense one is taken less its mean, which keeps distances accurate.
    weights : (n,) array of X's dtype, or None
    given : (k, d) array of X's dtype, optional
        See `hetero.ops.kmeans.fit.Fit.given`.
    """

    def __init__(self, X: Any, weights: np.ndarray | None, given: np.ndarray | None = None) -> None:
        self.weights = weights
        self.labels = np.empty(0, np.int32)
        if isinstance(X, np.ndarray):
            self.mean: Any = column_means(X if given is None else given)
            self.X = X - self.mean
        else:
            self.mean, self.X = 0.0, X

    def mean_variance(self) -> float:
        """See `hetero.ops.kmeans.fit.Rows`."""
        if isinstance(self.X, np.ndarray):
            return float(np.mean(np.var(self.X, axis=0)))
        n = self.X.shape[0]
        data = self.X.data.astype(np.float64)
        sums, squares = (
            np.bincount(self.X.indices, values, self.X.shape[1]) for values in (data, data * data)
        )
        return float(np.mean(np.maximum(squares / n - (sums / n) ** 2, 0.0)))

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """See `hetero.ops.kmeans.fit.Rows`."""

        def seeding() -> PlainSeeding:
            return PlainSeeding(self.X, self.weights)

        with alone:
            return initial.on_host(self.X, self.weights, how, k, random, seeding)

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        """See `hetero.ops.kmeans.fit.Rows`."""
        (n, d), k = self.X.shape, len(centroids)
        self.labels, self._was = (np.full(n, -1, np.int32) for _ in range(2))
        self._sums, self._totals = np.zeros((k, d)), np.zeros(k)
        self._counts, self._most = np.zeros(k, np.int64), np.zeros(k)
        many = n * d * k >= _SHARED
        with alone, _threads(cpu.describe()["cores"] if many else 1) as self._each:
            return lloyd(self, centroids, maxiter, tol, exactly), self.labels

    def assign(self, centroids: np.ndarray) -> bool:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        n, k = self.X.shape[0], len(centroids)
        norms = np.einsum("ij,ij->i", centroids, centroids)
        doubled = np.ascontiguousarray(-2.0 * centroids.T, centroids.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // (k * centroids.itemsize))
        self._was[...] = self.labels

        def label(begin: int) -> None:
            distances = self.X[begin : begin + rows] @ doubled
            distances += norms
            self.labels[begin : begin + rows] = distances.argmin(axis=1)

        self._each(label, range(0, n, rows))
        self._moved = np.flatnonzero(self.labels != self._was)
        return self._moved.size > 0

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """See `hetero.ops.kmeans.lloyd.Steps`; rows that kept their label are added up already."""
        self._add_moved()
        self._most = np.maximum(self._most, self._totals)
        if (self._totals < LEFT * self._most).any():
            self._moved = np.arange(len(self.labels))
            self._was[:] = -1
            for kept in (self._sums, self._totals, self._counts):
                kept[...] = 0
            self._add_moved()
            self._most = self._totals.copy()
        return self._sums.copy(), self._totals.copy()

    def _add_moved(self) -> None:
        """Change the sums by the rows that changed their label."""
        moved = self._moved
        weights = np.ones(len(moved)) if self.weights is None else self.weights[moved]
        rows = self.X[moved]
        for labels, sign in ((self.labels[moved], 1), (self._was[moved], -1)):
            if moved.size and labels[0] >= 0:  # at first no row has one
                self._add(rows, labels, sign * weights.astype(np.float64), sign)
        empty = self._counts == 0
        self._sums[empty] = 0.0  # of rows that came and went, rounding is left
        self._totals[empty] = self._most[empty] = 0.0

    def _add(self, rows: Any, labels: np.ndarray, weights: np.ndarray, sign: int) -> None:
        csr_array = load("scipy.sparse").csr_array
        m, k = len(labels), len(self._totals)
        sums = csr_array((weights, labels, np.arange(m + 1)), shape=(m, k)).T @ rows
        self._sums += sums if isinstance(sums, np.ndarray) else sums.toarray()
        self._totals += np.bincount(labels, weights, k)
        self._counts += sign * np.bincount(labels[weights != 0.0], minlength=k)

    def inertia(self, centroids: np.ndarray) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        distances = self.distances(centroids)
        if self.weights is not None:
            distances *= self.weights
        return float(distances.sum(dtype=np.float64))

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        labels = self.labels
        if not isinstance(self.X, np.ndarray):
            return _sparse_distances(self.X, centroids, labels)
        return row_distances(self.X, centroids, labels)

    def row(self, index: int) -> np.ndarray:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        row = self.X[index]
        return row if isinstance(row, np.ndarray) else row.toarray().ravel()

    def weight(self, index: int) -> float:
        """See `hetero.ops.kmeans.lloyd.Steps`."""
        return 1.0 if self.weights is None else float(self.weights[index])


@contextlib.contextmanager
def _threads(count: int) -> Iterator[Callable[[Callable[[int], None], Iterable[int]], object]]:
    """``each(work, items)`` on so many threads, which are gone afterwards."""
    with contextlib.ExitStack() as stack:
        each: Callable[..., object] = lambda work, items: [work(item) for item in items]  # noqa: E731
        if count > 1:
            with contextlib.suppress(RuntimeError):  # Python is ending: this thread does all
                executor = load("concurrent.futures").ThreadPoolExecutor
                pool = stack.enter_context(executor(count))
                pool.submit(int)
                each = lambda work, items: list(pool.map(work, items))  # noqa: E731
        yield each


def row_distances(X: np.ndarray, centroids: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared distances of rows from the centroids of their labels, block by block."""
    n, d = X.shape
    found = np.empty(n, X.dtype)
    rows = max(_LEAST_ROWS, _BLOCK // (d * X.itemsize))
    for begin in range(0, n, rows):
        part = slice(begin, begin + rows)
        difference = X[part] - centroids[labels[part]]
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


def moments(X: np.ndarray) -> tuple[np.ndarray, float]:
    """The columns' means, and the mean of their variances, with no copy of X."""
    n, d = X.shape
    rows = max(_LEAST_ROWS, _BLOCK // (d * X.itemsize))
    first = X[0].astype(np.float64)
    sums, squares = np.zeros(d), np.zeros(d)
    for begin in range(0, n, rows):
        apart = X[begin : begin + rows] - first
        sums += apart.sum(axis=0)
        squares += np.einsum("ij,ij->j", apart, apart)
    sums /= n
    return first + sums, float(np.mean(np.maximum(squares / n - sums * sums, 0.0)))


def _sparse_distances(X: Any, centroids: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared distances, of no more terms than there are entries."""
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    near = centroids[labels[rows], X.indices]
    terms = (X.data - near) ** 2 - near**2
    norms = np.einsum("ij,ij->i", centroids, centroids)
    found = np.bincount(rows, terms, X.shape[0]) + norms[labels]
    return np.maximum(found, 0.0).astype(X.dtype)


class PlainSeeding:
    """`hetero.ops.kmeans.initial.Seeding` by NumPy.

    Parameters
    ----------
    X : array or sparse matrix
    weights : array or None
    mean : (d,) array, optional
        Subtracted of a dense X, block by block.
    """

    def __init__(self, X: Any, weights: np.ndarray | None, mean: np.ndarray | None = None) -> None:
        self._X, self._weights = X, weights
        self._mean = None if mean is None else mean.astype(X.dtype)
        n, d = X.shape
        self._rows = n if mean is None else max(_LEAST_ROWS, _BLOCK // (d * X.dtype.itemsize))
        self._norms = np.concatenate([_norms(block) for block in self._blocks()])
        self._closest = self._tried = np.zeros(0)

    def first(self, index: int) -> float:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._closest = self._distances(np.array([index]))[0]
        return float(self._sums(self._closest))

    def candidates(self, values: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        weighted = self._closest if self._weights is None else self._closest * self._weights
        found = np.searchsorted(np.cumsum(weighted), values)
        return np.minimum(found, len(weighted) - 1)

    def potentials(self, indices: np.ndarray) -> np.ndarray:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._tried = np.minimum(self._closest, self._distances(indices))
        return self._sums(self._tried)

    def take(self, which: int) -> None:
        """See `hetero.ops.kmeans.initial.Seeding`."""
        self._closest = self._tried[which]

    def _sums(self, distances: np.ndarray) -> np.ndarray:
        return distances.sum(axis=-1) if self._weights is None else distances @ self._weights

    def _blocks(self) -> Iterator[Any]:
        for begin in range(0, self._X.shape[0], self._rows):
            block = self._X[begin : begin + self._rows]
            yield block if self._mean is None else block - self._mean

    def _distances(self, indices: np.ndarray) -> np.ndarray:
        """Squared distances of all rows from some of them, (some, n)."""
        rows = self._X[indices]
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        if self._mean is not None:
            dense = dense - self._mean
        products = np.concatenate([np.asarray(b @ dense.T, float) for b in self._blocks()]).T
        found = self._norms - 2.0 * products + self._norms[indices, None]
        found[np.arange(len(indices)), indices] = 0.0
        return np.maximum(found, 0.0)


def _norms(X: Any) -> np.ndarray:
    if isinstance(X, np.ndarray):
        return np.einsum("ij,ij->i", X, X).astype(np.float64)
    return np.asarray(X.multiply(X).sum(axis=1), np.float64).ravel()
