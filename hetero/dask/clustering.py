"""k-means of the rows of a Dask array: labels and sums by blocks, centroids on the client."""

from __future__ import annotations

import math
import warnings
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np

from hetero.arrays import Spec
from hetero.dask import by_blocks, run
from hetero.errors import outside
from hetero.ops.kmeans import FEW, cluster, estimator, fit, operands
from hetero.ops.kmeans.fit import NumpyRows, by_label

_SAMPLE = 1 << 17  # rows that initial centroids are chosen of: they come to the client


def kmeans(
    X: Any,
    n_clusters: int,
    *,
    init: Any = "k-means++",
    n_init: int | str = 1,
    max_iter: int = 300,
    tol: float = 1e-4,
    label_tol: float = 0.0,
    random_state: Any = None,
    sample_weight: Any = None,
    **placed: str,
) -> tuple[np.ndarray, da.Array, dict[str, Any]]:
    """Cluster the rows of a Dask array, as `hetero.kmeans`; the iterations are made at once.

    Parameters
    ----------
    X : (n, d) Dask array
        Read in each iteration: ``X.persist()`` where there is room for it.
    n_clusters, n_init, max_iter, tol, label_tol, random_state
        See `hetero.kmeans`.
    init : {"k-means++", "random"}, (k, d) array or callable
        As of `hetero.kmeans`, of 131 072 rows drawn by their weights where X has more.
    sample_weight : (n,) Dask array, array or number, optional
    **placed
        ``device`` and ``method`` of `hetero.kmeans`, for each block.

    Returns
    -------
    centroids : (k, d) array
        float32 if X is, else float64.
    labels : (n,) Dask array of int32
        In X's blocks of rows, less empty ones, where Dask keeps what is persisted.
    info : dict
        inertia, iterations, converged.

    Raises
    ------
    ValueError
        As `hetero.kmeans`; by Dask for unknown chunks.

    Warns
    -----
    RuntimeWarning
        Where there are fewer distinct clusters than were asked for.

    Notes
    -----
    A cluster that loses all rows gets the farthest one, as in `hetero.kmeans`: the distances of
    all rows come to the client then. Blocks are NumPy arrays.

    Examples
    --------
    >>> import dask.array as da, hetero.dask, numpy as np
    >>> X = da.from_array(np.array([[1.0], [2.0], [10.0], [11.0]]), chunks=3)
    >>> centroids, labels, info = hetero.dask.kmeans(X, 2, init=[[0.0], [9.0]])
    >>> centroids.ravel(), labels.compute(), info["inertia"]
    (array([ 1.5, 10.5]), array([0, 0, 1, 1], dtype=int32), 1.0)
    """
    X = da.asanyarray(X)
    how = {"init": init, "n_init": n_init, "max_iter": max_iter, "tol": tol, "label_tol": label_tol}
    # Dask's error for unknown chunks
    asked = operands.problem(Spec((len(X), *X.shape[1:]), X.dtype), n_clusters, **how)
    (_, d, k), (kind, starts, maxiter) = asked.dims, asked.options
    rows, random = Rows(X, sample_weight, placed), operands.checked_random(random_state)
    if kind == operands.GIVEN:
        init = operands.checked_centroids(operands.on_host(init, np.dtype(asked.dtype)), (k, d))
    lloyd = fit.Fit(maxiter, float(tol), init, starts, random, label_tol=float(label_tol))
    ended, labels, centroids = fit.fit(rows, lloyd, k)
    # The blocks of labels are computed: there is nothing to optimize.
    counts = da.bincount(labels, minlength=k).compute(optimize_graph=False)
    distinct = np.count_nonzero(counts)
    if distinct < k:
        warnings.warn(FEW.format(distinct, k), RuntimeWarning, stacklevel=outside())
    return centroids, labels, ended._asdict()


def _in_blocks(name: str, array: Any) -> da.Array:
    """A Dask array; ValueError where its blocks are no plain arrays of NumPy's."""
    array = da.asanyarray(array)
    block = da.utils.meta_from_array(array)
    if not isinstance(block, np.ndarray) or isinstance(block, np.ma.MaskedArray):
        raise ValueError(f"blocks of {name} must be NumPy arrays, got {type(block).__name__}")
    return array


class Rows(fit.Rows):
    """Rows in blocks, and their weights, with what `hetero.ops.kmeans.fit.fit` asks for; ``placed``
    has the device and the method of blocks."""

    def __init__(self, X: da.Array, weights: Any, placed: dict[str, Any]) -> None:
        X, self._placed, dtype = _in_blocks("X", X), placed, operands.float_dtype(X.dtype)
        self.n = len(X)
        self._X = X.astype(dtype).rechunk({0: tuple(filter(None, X.chunks[0])), 1: -1})
        if np.ndim(weights) == 0:
            weights = da.full(self.n, 1.0 if weights is None else weights)
        weights = _in_blocks("sample_weight", weights)
        operands.weights_operand(Spec(weights.shape, dtype), self.n)
        self._weights = weights.astype(dtype).rechunk((self._X.chunks[0],))
        operands.checked_weights(self._weights.max().compute()[None], 1, dtype)

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        count, least, rows = max(_SAMPLE, 32 * k), -np.inf, slice(None)
        if self.n > count:
            # By N. Duffield, C. Lund and M. Thorup, "Priority sampling for estimation of
            # arbitrary subset sums", J. ACM 54 (2007): a light row drawn stands for others.
            draw = da.random.RandomState(random.randint(1 << 31)).uniform
            priorities = self._weights / (1.0 - draw(size=self.n, chunks=self._X.chunks[:1]))
            order = da.argtopk(priorities, count + 1).compute()
            least, rows = priorities[order[-1]].compute(), np.sort(order[:-1])
        sample, weights = dask.compute(self._X[rows], self._weights[rows])
        backend = NumpyRows(sample, np.maximum(weights, least, dtype=weights.dtype))
        return backend.seeds(how, k, random) + backend.mean

    @property
    def variance(self) -> float:
        return float(self._X.var(axis=0, dtype=np.float64).mean().compute())

    def restart(self, centroids: np.ndarray) -> None:
        self.labels = da.full(self.n, -1, np.int32, chunks=self._X.chunks[:1])

    def assign(self, centroids: np.ndarray) -> int:
        (k, d), old = centroids.shape, self.labels
        labels = nearest(self._X, centroids, self._placed)
        blocks = self._X, "ij", self._weights, "i", labels, "i", old, "i"
        options = {"new_axes": {"k": k, "s": d + 2}, "adjust_chunks": {"i": 1}}
        sums = by_blocks("kmeans-sums", block_sums, "iks", float, *blocks, k=k, **options)
        self.labels, whole = dask.persist(labels, sums.sum(axis=0))
        self._sums = whole.compute()
        return int(self._sums[:, -1].sum())

    def sums(self) -> tuple[np.ndarray, np.ndarray]:
        return self._sums[:, :-2], self._sums[:, -2]

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        return self._distances(centroids).compute()

    def inertia(self, centroids: np.ndarray) -> float:
        return float((self._distances(centroids) * self._weights).sum(dtype=np.float64))

    def _distances(self, centroids: np.ndarray) -> da.Array:
        made = {"new_axis": 1, "chunks": self._X.chunks, "dtype": centroids.dtype}
        own = self.labels.map_blocks(partial(np.take, centroids, axis=0), **made)
        return ((self._X - own) ** 2).sum(axis=1)

    def picked(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        return dask.compute(self._X[indices], self._weights[indices], self.labels[indices])


def nearest(X: da.Array, centroids: np.ndarray, placed: dict[str, Any]) -> da.Array:
    """The number of the nearest centroid of each row, of which a block has all columns."""
    options = {"centroids": dask.delayed(centroids.copy()), **placed}
    return by_blocks("kmeans", labelled, "i", np.int32, X, "ij", **options)


def labelled(rows: list[np.ndarray], centroids: np.ndarray, **placed: Any) -> np.ndarray:
    """The number of the nearest centroid of each row of a block, the only one of these rows."""
    (block,) = rows
    if not len(block):
        return np.empty(0, np.int32)
    options = {"init": centroids, "n_init": 1, "max_iter": 0, "tol": 0.0, **placed}
    return run("kmeans", block, len(centroids), call=partial(cluster, few=None), **options)[1]


def block_sums(
    rows: list[np.ndarray], weights: np.ndarray, labels: np.ndarray, old: np.ndarray, k: int
) -> np.ndarray:
    """For each label of a block the sums of its rows and of their weights, and how many rows had
    another label before: (1, k, d + 2)."""
    weights, changed = weights.astype(float), labels[labels != old]
    counts = np.bincount(labels, weights, k), np.bincount(changed, minlength=k)
    return np.column_stack((by_label(rows[0], weights, labels, k), *counts))[None]


class KMeans(estimator.KMeans):
    """`hetero.KMeans` of Dask arrays, with the same parameters and attributes.

    `fit` and `score` compute at once, see `hetero.dask.kmeans`; `predict` and `transform` give
    Dask arrays that are not computed.

    Examples
    --------
    >>> import dask.array as da, hetero.dask, numpy as np
    >>> X = da.from_array(np.array([[1.0], [2.0], [10.0], [11.0]]), chunks=3)
    >>> hetero.dask.KMeans(2, init=np.array([[0.0], [9.0]])).fit(X).predict(X).compute()
    array([0, 0, 1, 1], dtype=int32)
    """

    def _validated(self, X: Any, *, reset: bool, finite: bool = True) -> da.Array:
        X = da.asanyarray(X)
        if reset:
            return X
        estimator.check_is_fitted(self)
        if X.ndim != 2:
            raise ValueError(f"X must have 2 dimensions, got shape {X.shape}")
        if X.shape[1] != self.n_features_in_:
            raise ValueError(f"X has {X.shape[1]} features, expected {self.n_features_in_}")
        return X.rechunk({1: -1})

    @staticmethod
    def _cluster(X: Any, n_clusters: int, *, report: Any, few: Any, **options: Any) -> Any:
        return kmeans(X, n_clusters, **options)

    def _assigned(self, X: Any, weights: Any = None, measured: bool = False) -> Any:
        X, centroids = self._validated(X, reset=False), self.cluster_centers_
        placed = {"device": self.device, "method": self.method}
        if measured:
            rows = Rows(X, weights, placed)
            inertia = rows.nearest(centroids)
            return rows.labels, inertia
        return nearest(X, centroids, placed), math.nan

    def _distances(self, X: da.Array) -> da.Array:
        centroids = self.cluster_centers_
        dtype = np.promote_types(operands.float_dtype(X.dtype), centroids.dtype)
        far = partial(estimator.distances, centroids=centroids.astype(float), dtype=dtype)
        new = {"k": len(centroids)}
        return by_blocks("kmeans-rows", lambda r: far(*r), "ik", dtype, X, "ij", new_axes=new)
