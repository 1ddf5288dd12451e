"""Lloyd's iterations on the CPU, by products of blocks of rows with the centroids.

A block's distances are looked through while they are in the cache; the matrix of all never is. A
sparse X goes the same way.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.ops.kmeans import initial
from hetero.ops.kmeans.fit import Run

_BLOCK = 1 << 18  # bytes of a block's distances
_LEAST_ROWS = 64


class BlasRows:
    """Rows of X, and what is asked of them, by NumPy's products.

    Parameters
    ----------
    X : (n, d) array or CSR matrix of float32 or float64
        It is not changed. A dense one is taken less its mean, which keeps distances accurate.
    weights : (n,) array of X's dtype, or None
    """

    def __init__(self, X: Any, weights: np.ndarray | None) -> None:
        self.weights = weights
        if isinstance(X, np.ndarray):
            self.mean: Any = X.mean(axis=0)
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
        make = lambda: PlainSeeding(self.X, self.weights)  # noqa: E731
        return initial.on_host(self.X, self.weights, how, k, random, make)

    def lloyd(
        self, centroids: np.ndarray, maxiter: int, tol: float, exactly: bool
    ) -> tuple[Run, np.ndarray]:
        """See `hetero.ops.kmeans.fit.Rows`."""
        labels = np.full(self.X.shape[0], -1, np.int32)
        before = labels.copy()
        strict = converged = False
        iterations = 0
        while iterations < maxiter:
            iterations += 1
            self.assign(centroids, labels)
            new = self.update(centroids, labels)
            shift = float(((new - centroids) ** 2).sum())
            centroids[...] = new
            if exactly:
                continue
            strict = np.array_equal(labels, before)
            converged = strict or shift <= tol
            if converged:
                break
            before[...] = labels
        if not strict:
            self.assign(centroids, labels)
        return Run(self.inertia(centroids, labels), iterations, converged), labels

    def assign(self, centroids: np.ndarray, labels: np.ndarray) -> None:
        """The number of the nearest centroid of each row, of equally near ones the first."""
        n, k = self.X.shape[0], len(centroids)
        norms = np.einsum("ij,ij->i", centroids, centroids)
        doubled = np.ascontiguousarray(-2.0 * centroids.T, centroids.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // (k * centroids.itemsize))
        for begin in range(0, n, rows):
            distances = self.X[begin : begin + rows] @ doubled
            distances += norms
            labels[begin : begin + rows] = distances.argmin(axis=1)

    def update(self, centroids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """The weighted means of the rows with each label; see `means`."""
        from scipy.sparse import csr_array

        n, k = len(labels), len(centroids)
        weights = np.ones(n, centroids.dtype) if self.weights is None else self.weights
        members = csr_array((weights, labels, np.arange(n + 1)), shape=(n, k)).T
        sums = members @ self.X
        sums = np.asarray(sums if isinstance(sums, np.ndarray) else sums.toarray(), float)
        totals = np.bincount(labels, weights, k)
        return means(self, centroids, labels, sums, totals)

    def inertia(self, centroids: np.ndarray, labels: np.ndarray) -> float:
        """The weighted sum of squared distances."""
        distances = self.distances(centroids, labels)
        if self.weights is not None:
            distances *= self.weights
        return float(distances.sum(dtype=np.float64))

    def distances(self, centroids: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Squared distances of the rows from their centroids."""
        if not isinstance(self.X, np.ndarray):
            return _sparse_distances(self.X, centroids, labels)
        n, d = self.X.shape
        found = np.empty(n, self.X.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // (d * self.X.itemsize))
        for begin in range(0, n, rows):
            part = slice(begin, begin + rows)
            difference = self.X[part] - centroids[labels[part]]
            np.einsum("ij,ij->i", difference, difference, out=found[part])
        return found

    def row(self, index: int) -> np.ndarray:
        """One row, dense."""
        row = self.X[index]
        return row if isinstance(row, np.ndarray) else row.toarray().ravel()


def _sparse_distances(X: Any, centroids: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Squared distances, of no more terms than there are entries."""
    rows = np.repeat(np.arange(X.shape[0]), np.diff(X.indptr))
    near = centroids[labels[rows], X.indices]
    terms = (X.data - near) ** 2 - near**2
    norms = np.einsum("ij,ij->i", centroids, centroids)
    found = np.bincount(rows, terms, X.shape[0]) + norms[labels]
    return np.maximum(found, 0.0).astype(X.dtype)


def means(
    rows: Any, centroids: np.ndarray, labels: np.ndarray, sums: np.ndarray, totals: np.ndarray
) -> np.ndarray:
    """New centroids of the weighted sums of rows and the sums of weights, which are changed.

    An empty cluster gets the row farthest from its centroid, the next one the next such row, as in
    scikit-learn; where all rows lie on their centroids, or a cluster stays without weight, the
    centroid of the heaviest cluster.
    """
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        distances = rows.distances(centroids, labels)
        if distances.max() > 0:
            farthest = np.argpartition(distances, -empty.size)[: -empty.size - 1 : -1]
            for cluster, index in zip(empty, farthest, strict=True):
                weight = 1.0 if rows.weights is None else float(rows.weights[index])
                moved = rows.row(index).astype(float) * weight
                sums[labels[index]] -= moved
                sums[cluster] = moved
                totals[cluster] = weight
                totals[labels[index]] -= weight
    heaviest = int(totals.argmax())
    used = totals > 0
    sums[used] /= totals[used, None]
    sums[~used] = sums[heaviest]
    return sums.astype(centroids.dtype)


class PlainSeeding:
    """`hetero.ops.kmeans.initial.Seeding` by NumPy."""

    def __init__(self, X: Any, weights: np.ndarray | None) -> None:
        self._X, self._weights = X, weights
        squares = X.multiply(X) if not isinstance(X, np.ndarray) else X * X
        self._norms = np.asarray(squares.sum(axis=1), np.float64).ravel()
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

    def _distances(self, indices: np.ndarray) -> np.ndarray:
        """Squared distances of all rows from some of them, (some, n)."""
        rows = self._X[indices]
        dense = rows if isinstance(rows, np.ndarray) else rows.toarray()
        products = np.asarray(self._X @ dense.T, np.float64).T
        found = self._norms - 2.0 * products + self._norms[indices, None]
        found[np.arange(len(indices)), indices] = 0.0
        return np.maximum(found, 0.0)
