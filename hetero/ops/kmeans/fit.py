"""k-means of rows, wherever they are: a fit of several starts, Lloyd's loop, k-means++; and rows on
the CPU by NumPy's products.

Products are made of blocks of rows: a block's distances are looked through while they are in the
cache; the matrix of all never is. A sparse X goes the same way.
"""

from __future__ import annotations

import copy
import enum
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.devices.peers import side_by_side
from hetero.imports import load
from hetero.ops.kmeans.operands import PLUS_PLUS, check_finite, checked_centroids, trials

_ROUNDED = 16  # times epsilon and the row's largest number: a row nearer to its mean lies on it
_LONG = 1 << 16  # numbers from which NumPy's `mean` is slow
_ROWS = 1 << 10  # that are added up in their own dtype, for the mean of many
_BLOCK = 1 << 18  # bytes of a block's distances
_LEAST_ROWS = 64
_SHARED = 1 << 22  # products from which threads share an assignment
_FEW = 4096  # numbers that are added up without SciPy's sparse matrices: 0.15 s to import


class Stopped(enum.IntEnum):
    """Why iterations stopped, if they did: no label changed, by a tolerance, or (on a device) for
    a cluster without rows, until that has one."""

    RUNNING, REPEATED, CONVERGED, EMPTIED = range(4)


class Run(NamedTuple):
    """How one start ended."""

    inertia: float  # sum of the weighted squared distances of all rows from their centroids
    iterations: int
    converged: bool  # whether it stopped by a tolerance, or because no label changed


class Fit(NamedTuple):
    """What a method's ``run`` gets as options."""

    maxiter: int  # of each start; with 0 rows get the labels of ``init``, and nothing else is done
    tol: float  # times the mean variance; below 0 ``maxiter`` iterations are made in any case
    init: Any  # "k-means++", "random", an array on the host or a callable
    starts: int = 1
    random: Any = None  # a numpy.random.RandomState
    labels: tuple[Any, Any] | None = None  # the array on a device that gets them, and its buffer
    matrix: Any = None  # a sparse X, and its weights, which are none of the problem's inputs
    weights: np.ndarray | None = None
    report: Callable[[str], None] | None = None  # gets a line about each start
    label_tol: float = 0.0  # share of the labels

    @property
    def given(self) -> np.ndarray | None:
        """The centroids for which rows only get labels; None in a fit.

        Rows are then taken less the centroids' mean, not their own: a row's label must not depend
        on the other rows.
        """
        return self.init if self.maxiter == 0 else None


class Rows:
    """The rows of X where they are computed with, and Lloyd's loop over them.

    There are ``n``; they are taken less ``mean``, so that distances are accurate, as are centroids,
    which are (k, d) arrays on the host. ``labels``, (n,) of int32, are those of the last
    assignment: on the host, or where `Fit.labels` says. What is here of X and its weights is for
    those on the host, an array or a CSR matrix of float32 or float64, which is not changed, and
    weights of that dtype or None. A place has

    - ``restart(centroids)``: begins a start from these centroids: no row has a label
    - ``assign(centroids)``: labels each row with its nearest centroid, of equally near ones the
      first; gives how many labels changed
    - ``sums()``: the weighted sums of the rows with each label, (k, d), and of their weights, (k,),
      of float64
    - ``distances(centroids)``: squared distances of the rows from those of their labels
    - of k-means++, on what `seeding` gives: the weighted distances of the rows from the nearest
      seed add up to its potential, by blocks of rows. ``first(index)`` gives the potentials,
      (blocks, 1), with a row as the only seed; ``draw(blocks, rest)`` the rows at which the sums
      within some blocks reach the rest, and the potentials, (blocks, rows), with each of them as
      one more seed; ``take(which)`` takes one

    They are `NumpyRows`, on the CPU, dense or sparse; `CompiledRows` (`compiled_cpu.py`), packed
    for compiled loops; `DeviceRows` (`device.py`), on one device, which iterates by itself;
    `RangeRows`, on the host, from where they go to devices.
    """

    mean: Any = 0.0
    variance: float  # the mean over the columns of their variances
    labels: Any

    def __init__(
        self, X: Any, weights: np.ndarray | None, around: np.ndarray | None = None
    ) -> None:
        """``around``: rows or centroids, of which the columns' means are to be subtracted."""
        self.n, self._d = X.shape
        self._X, self._weights = X, weights
        if around is not None:
            with np.errstate(invalid="ignore", over="ignore"):  # of rows that are refused for it
                self.mean = column_means(around)
            if not np.isfinite(self.mean).all():
                check_finite(X)

    def on_host(self) -> Any:
        """X on the host."""
        return self._X

    def host_weights(self) -> np.ndarray | None:
        """The rows' weights on the host; None where there are none."""
        return self._weights

    def host_labels(self) -> np.ndarray:
        """The labels on the host."""
        return self.labels

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        found = np.empty(self.n, centroids.dtype)
        rows = max(_LEAST_ROWS, _BLOCK // (self._d * centroids.itemsize))
        for begin in range(0, self.n, rows):
            part = slice(begin, begin + rows)
            apart = self.rows(part) - centroids[self.labels[part]]
            np.einsum("ij,ij->i", apart, apart, out=found[part])
        return found

    def rows(self, indices: Any) -> np.ndarray:
        """Some rows on the host, less `mean`."""
        return dense_rows(self._X, indices) - self.mean

    def picked(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Some rows less `mean`, their weights and their labels."""
        weights = self.host_weights()
        weights = np.ones(len(indices)) if weights is None else weights[indices]
        return self.rows(indices), weights, self.host_labels()[indices]

    def restart(self, centroids: np.ndarray) -> None:
        self.labels = np.full(self.n, -1, np.int32)

    def lloyd(self, centroids: np.ndarray, maxiter: int, tol: float, most: int = 0) -> Run:
        """Iterate from these centroids, which are changed; scikit-learn's rules to stop.

        Done when the squared shifts add up to at most ``tol``, or when at most ``most`` labels
        change. With a ``tol`` below 0 ``maxiter`` iterations are made whatever happens.
        """
        if not maxiter:
            return Run(self.nearest(centroids), 0, False)
        self.restart(centroids)
        stopped, done = Stopped.RUNNING, 0
        while done < maxiter and stopped == Stopped.RUNNING:
            stopped, done = self.iterate(centroids, done, maxiter, tol, most)
        if stopped != Stopped.REPEATED:
            self.label(centroids)
        return Run(self.inertia(centroids), done, stopped != Stopped.RUNNING)

    def iterate(
        self, centroids: np.ndarray, done: int, maxiter: int, tol: float, most: int
    ) -> tuple[Stopped, int]:
        """Make one iteration after the ``done`` ones, or several; whether it was the last one, and
        how many are done."""
        changed = self.assign(centroids)
        new, moved = means(self, centroids)
        shift = float(np.square(new - centroids).sum())
        centroids[...] = new
        return ending(changed, moved, shift, tol, most), done + 1

    def label(self, centroids: np.ndarray) -> None:
        """Let the labels fit the centroids."""
        self.assign(centroids)

    def nearest(self, centroids: np.ndarray, measured: bool = True) -> float:
        """Label the rows, once; their inertia, NaN where that is not to be measured."""
        self.restart(centroids)
        self.label(centroids)
        return self.inertia(centroids) if measured else math.nan

    def inertia(self, centroids: np.ndarray) -> float:
        """The weighted sum of the squared distances of the rows from the centroids of their
        labels."""
        return self.weighted(self.distances(centroids))

    def weighted(self, squares: np.ndarray) -> float:
        """The inertia of squared distances, which are changed."""
        if self._weights is not None:
            squares *= self._weights
        return float(squares.sum(dtype=np.float64))

    def seeding(self) -> Any:
        """What k-means++ is made with; what that holds goes with it."""
        return copy.copy(self)

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        """Initial centroids by "k-means++", "random" or a callable, by scikit-learn's numbers."""
        if callable(how):
            X, mean = self.on_host(), 0.0
            if isinstance(X, np.ndarray):
                mean = column_means(X)
                X = X - mean
            made = np.array(how(X, k, random_state=random), X.dtype, order="C")
            return checked_centroids(made, (k, X.shape[1])) + (mean - self.mean)
        weights = self.host_weights()
        shares = np.full(self.n, 1.0 / self.n) if weights is None else weights / weights.sum()
        if how != PLUS_PLUS:
            return self.rows(random.choice(self.n, size=k, replace=False, p=shares))
        # Of several candidates for a seed the best each time.
        seeding, chosen, best = self.seeding(), np.full(k, random.choice(self.n, p=shares)), 0
        sums = seeding.first(int(chosen[0]))
        for number in range(1, k):
            seeding.take(best)
            values = random.uniform(size=trials(k)) * sums.sum(axis=0)[best]
            running = np.cumsum(sums[:, best])
            blocks = np.minimum(np.searchsorted(running, values), len(running) - 1)
            rest = values - np.concatenate([[0.0], running])[blocks]
            candidates, sums = seeding.draw(blocks, rest)
            best = int(np.argmin(sums.sum(axis=0)))
            chosen[number] = candidates[best]
        return self.rows(chosen)


def dense_rows(X: Any, indices: Any) -> np.ndarray:
    """Some rows of an array or a sparse matrix."""
    return X[indices] if isinstance(X, np.ndarray) else X[indices].toarray()


def column_means(X: np.ndarray) -> np.ndarray:
    """The columns' means. float32 has not the digits for the sum of many rows: blocks of them are
    added up in float64."""
    if X.size >= _LONG and X.flags.c_contiguous:
        # NumPy adds row to row, which takes long for few columns: rows of a block by BLAS.
        whole = len(X) // _ROWS * _ROWS
        with np.errstate(over="ignore", invalid="ignore"):
            blocks = np.ones(_ROWS, X.dtype) @ X[:whole].reshape(-1, _ROWS, X.shape[1])
            sums = blocks.sum(axis=0, dtype=np.float64) + X[whole:].sum(axis=0, dtype=np.float64)
        if np.isfinite(sums).all():  # else a block's sum was too large
            return (sums / len(X)).astype(X.dtype)
    return X.mean(axis=0, dtype=np.float64).astype(X.dtype)  # to the last bit as scikit-learn


class NumpyRows(Rows):
    """Dense or sparse rows, by NumPy's products. Distances are accurate for dense ones, which are
    taken less their mean. ``given`` is `Fit.given`."""

    def __init__(self, X: Any, weights: np.ndarray | None, given: np.ndarray | None = None) -> None:
        self._dense, around = isinstance(X, np.ndarray), X if given is None else given
        super().__init__(X, weights, around if self._dense else None)
        if given is not None:
            check_finite(X if self._dense else X.data)
        self._moved = X - self.mean if self._dense else X

    @property
    def variance(self) -> float:
        squares = norms_of(self._moved).sum() / self.n
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

        cores = load("hetero.host.cpu").describe()["cores"]
        side_by_side([label] * (cores if self.n * centroids.size >= _SHARED else 1))
        return int(np.count_nonzero(self.labels != before))

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        weights = np.ones(self.n) if self._weights is None else self._weights.astype(np.float64)
        totals = np.bincount(self.labels, weights, self._k)
        if self._dense and self._X.size <= _FEW:
            sums = np.zeros((self._k, self._d))
            np.add.at(sums, self.labels, weights[:, None] * self._moved)
            return sums, totals
        return by_label(self._moved, weights, self.labels, self._k), totals

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        if self._dense:
            return super().distances(centroids)
        X = self._X  # of no more terms than there are entries
        rows = np.repeat(np.arange(self.n), np.diff(X.indptr))
        near = centroids[self.labels[rows], X.indices]
        squares = np.bincount(rows, (X.data - near) ** 2 - near**2, self.n)
        squares = squares + np.einsum("ij,ij->i", centroids, centroids)[self.labels]  # or integers
        return np.maximum(squares, 0.0).astype(X.dtype)

    def first(self, index: int) -> np.ndarray:
        self._norms, self._closest = norms_of(self._moved), np.inf
        return self._try(np.array([index]))

    def draw(self, blocks: np.ndarray, rest: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return blocks, self._try(blocks)  # each row is a block

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


def by_label(X: Any, weights: np.ndarray, labels: np.ndarray, k: int) -> np.ndarray:
    """The weighted sums of the rows with each of k labels, (k, d)."""
    n = len(labels)
    one_hot = load("scipy.sparse").csr_array((weights, labels, np.arange(n + 1)), shape=(n, k))
    sums = one_hot.T @ X
    return sums if isinstance(sums, np.ndarray) else sums.toarray()


def norms_of(X: Any) -> np.ndarray:
    """The rows' squares, of an array or a sparse matrix."""
    if isinstance(X, np.ndarray):
        return np.einsum("ij,ij->i", X, X).astype(np.float64)
    squared = type(X)((np.square(X.data, dtype=np.float64), X.indices, X.indptr), X.shape)
    return squared @ np.ones(X.shape[1])


def fit(rows: Rows, asked: Fit, k: int) -> tuple[Run, Any, np.ndarray]:
    """How the best start ended, its labels as `Rows.labels` has them, and the centroids in the
    coordinates of X."""
    most, tol = most_changed(asked.label_tol, rows.n), min(asked.tol, 0.0)
    if asked.tol > 0.0 and asked.maxiter > 0:
        tol = asked.tol * rows.variance
    best: tuple[Run, Any, np.ndarray] | None = None
    for start in range(asked.starts):
        given = isinstance(asked.init, np.ndarray)
        first = asked.init if given else rows.seeds(asked.init, k, asked.random) + rows.mean
        centroids = np.array(first - rows.mean, order="C")
        if not tol <= float(np.finfo(centroids.dtype).max):
            tol = np.inf  # squares overflow, also those of shifts: it ends at once, as elsewhere
        run = rows.lloyd(centroids, asked.maxiter, tol, most)
        labels = rows.labels
        if asked.report is not None:
            ended = "converged" if run.converged else "stopped"
            asked.report(
                f"start {start}: {ended} after {run.iterations} iterations, inertia {run.inertia}"
            )
        if best is None or (run.inertia < best[0].inertia and not _same(labels, best[1], k)):
            best = run, labels, centroids + rows.mean
    assert best is not None
    return best


def most_changed(label_tol: float, n: int) -> int:
    """The largest number of n labels that is a share of at most ``label_tol``, but for rounding."""
    return math.floor(min(label_tol, 1.0) * n * (1.0 + 1e-12))


def _same(labels: Any, others: Any, k: int) -> bool:
    """Whether two clusterings differ by the clusters' numbers alone."""
    labels, others = np.asarray(labels), np.asarray(others)
    number = np.full(k, -1, np.int32)
    number[labels] = others  # of each cluster: that of some row of it in the other clustering
    return bool(np.array_equal(number[labels], others))


def ending(changed: int, moved: bool, shift: float, tol: float, most: int) -> Stopped:
    """Whether an iteration was the last one: by the labels that changed, whether rows were moved to
    other clusters, and the sum of the centroids' squared shifts."""
    if tol < 0.0:
        return Stopped.RUNNING
    if not changed and not moved:
        return Stopped.REPEATED  # the labels fit the centroids
    return Stopped.CONVERGED if changed <= most or shift <= tol else Stopped.RUNNING


def means(rows: Rows, centroids: np.ndarray) -> tuple[np.ndarray, bool]:
    """The weighted means of the rows with each label, and whether rows without their label count.

    An empty cluster gets the row farthest from its centroid, the next one the next such row, as in
    scikit-learn. Rows that lie on their centroids, but for rounding, are not moved: the same ones
    would be in each iteration. Where all do, or a cluster has no weight even then, it gets the mean
    of the heaviest cluster.
    """
    (sums, totals), moved = rows.sums(), False
    empty = np.flatnonzero(totals == 0)
    if empty.size:
        rounded = _ROUNDED * float(np.finfo(centroids.dtype).eps)
        farthest = np.argpartition(rows.distances(centroids), -empty.size)[: -empty.size - 1 : -1]
        for cluster, row, weight, old in zip(empty, *rows.picked(farthest), strict=True):
            row, weight = row.astype(np.float64), float(weight)
            if np.abs(row - centroids[old]).max() > rounded * np.abs(row).max():
                moved = True
                sums[old] -= row * weight
                sums[cluster] = row * weight
                totals[cluster] = weight
                totals[old] -= weight
    used = totals > 0
    sums[used] /= totals[used, None]
    sums[~used] = sums[totals.argmax()]
    return sums.astype(centroids.dtype), moved
