"""k-means of the rows of a Dask array: labels and sums by blocks, centroids on the client."""

from __future__ import annotations

import uuid
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import dask
import dask.array as da
import numpy as np

from hetero.arrays import Spec
from hetero.dask.blocks import run
from hetero.ops.kmeans import FEW, cluster, operands, rows_in_parts

_run = partial(run, "kmeans", call=cluster)
_step = partial(rows_in_parts.step, call=_run)


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
        As of `hetero.kmeans`, of 131 072 rows drawn at random where X has more.
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
    X, random = da.asanyarray(X), operands.checked_random(random_state)
    n, dtype = len(X), operands.float_dtype(X.dtype)  # Dask's error for unknown chunks
    weights = 1.0 if sample_weight is None else sample_weight
    weights = da.full(n, weights) if np.ndim(weights) == 0 else da.asanyarray(weights)
    options = {"init": init, "n_init": n_init, "max_iter": max_iter, "tol": tol}
    options["label_tol"] = label_tol
    options["sample_weight"] = Spec(weights.shape, dtype)
    asked = operands.problem(Spec((n, *X.shape[1:]), X.dtype), n_clusters, **options)
    _, d, k = asked.dims
    if asked.options.init == operands.GIVEN:
        init = operands.checked_centroids(operands.on_host(init, dtype), (k, d))
    rows = Rows(X.astype(dtype).rechunk({1: -1}), weights, placed)
    ended, centroids, labels = rows.fit(asked, init, tol, label_tol, random)
    distinct = np.count_nonzero(da.bincount(labels, minlength=k).compute())
    if distinct < k:
        warnings.warn(FEW.format(distinct, k), RuntimeWarning, stacklevel=2)
    return centroids, labels, ended._asdict()


class Rows(rows_in_parts.RowsInParts):
    """Rows in blocks.

    ``weights`` are of all rows; ``placed`` has the device and the method of blocks.
    """

    def __init__(self, X: da.Array, weights: da.Array, placed: dict[str, str]) -> None:
        self._X, self._placed = X, placed
        self._weights = weights.astype(X.dtype).rechunk((X.chunks[0],))
        operands.checked_weights(self._weights.max().compute()[None], 1, X.dtype)
        self._blocks = [*zip(X.to_delayed().ravel(), self._weights.to_delayed(), strict=True)]

    def mean_variance(self) -> float:
        return float(self._X.var(axis=0, dtype=np.float64).mean().compute())

    def seeds(self, how: Any, k: int, random: np.random.RandomState) -> np.ndarray:
        some = rows_in_parts.sample(len(self._X), k, random)
        sample, weights = dask.compute(self._X[some], self._weights[some])
        operands.check_finite(sample)
        return rows_in_parts.seeds(sample, weights, how, k, random)

    def restart(self, k: int) -> None:
        self._labels: list[Any] = [None] * len(self._blocks)

    def assign(self, centroids: np.ndarray) -> int:
        step, shared = dask.delayed(_step, nout=2), dask.delayed(centroids.copy())
        key, blocks = f"hetero-kmeans-{uuid.uuid4().hex}", []
        for block, labels in zip(self._blocks, self._labels, strict=True):
            name = {"dask_key_name": f"{key}-{len(blocks)}"}
            blocks.append(step(*block, labels, shared, self._placed, **name))
        blocks = dask.persist(*blocks)
        self._labels = [labels for labels, _ in blocks]
        self._sums = dask.compute(*(sums for _, sums in blocks))
        return sum(changed for _, _, changed in self._sums)

    def sums(self, centroids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sums, totals, _ = zip(*self._sums, strict=True)
        return np.sum(sums, axis=0), np.sum(totals, axis=0)

    @property
    def labels(self) -> da.Array:
        rows = zip(self._labels, self._X.chunks[0], strict=True)
        return da.concatenate([da.from_delayed(b, (n,), np.int32) for b, n in rows])

    def distances(self, centroids: np.ndarray) -> np.ndarray:
        return self._distances(centroids).compute()

    def inertia(self, centroids: np.ndarray) -> float:
        weighted = self._distances(centroids) * self._weights
        return float(weighted.sum(dtype=np.float64).compute())

    def element(self, index: int) -> tuple[np.ndarray, float, int]:
        return dask.compute(self._X[index], self._weights[index], self.labels[index])

    def _distances(self, centroids: np.ndarray) -> da.Array:
        pairs = (self._X, "ij", self.labels, "i")
        return by_rows(rows_in_parts.distances, self._X.dtype, *pairs, centroids=centroids)


def by_rows(function: Callable[..., Any], dtype: Any, *pairs: Any, **options: Any) -> da.Array:
    """A number for each row, by blocks of rows, as `dask.array.blockwise`."""
    options |= {"meta": np.empty(0, dtype), "token": "hetero-kmeans-rows"}
    return da.blockwise(function, "i", *pairs, concatenate=True, **options)


def labelled(block: Any, centroids: np.ndarray, **placed: Any) -> np.ndarray:
    """The number of the nearest centroid of each row of a block."""
    return rows_in_parts.labelled(block, centroids, _run, **placed)
