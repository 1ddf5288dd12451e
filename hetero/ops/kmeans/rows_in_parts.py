"""Rows in parts, each labelled and added up where it lies: Dask's blocks, the rows of MPI ranks."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.imports import load
from hetero.ops.kmeans import cluster
from hetero.ops.kmeans.backend import Run, SteppedBackend, most_changed
from hetero.ops.kmeans.cpu import NumpyBackend

_SAMPLE = 1 << 17  # rows that initial centroids are chosen of: they are brought to one place


class RowsInParts:
    """Rows with the methods that `SteppedBackend.lloyd` asks for, and `mean_variance`, `seeds`."""

    lloyd = SteppedBackend.lloyd

    def fit(
        self: Any, asked: Any, init: Any, tol: float, label_tol: float, random: Any
    ) -> tuple[Run, Any, Any]:
        """The best start of a `Problem`: how it ended, its centroids and labels."""
        self.most_changed = most_changed(label_tol, asked.dims[0])
        limit = float(tol) * self.mean_variance() if tol else 0.0
        best: Any = None
        for _ in range(asked.options.starts):
            given = isinstance(init, np.ndarray)
            centroids = init.copy() if given else self.seeds(init, asked.dims[2], random)
            ended, labels = self.lloyd(centroids, asked.options.maxiter, limit, False)
            if best is None or ended.inertia < best[0].inertia:
                best = ended, centroids, labels
        return best


def sample(n: int, k: int, random: np.random.RandomState) -> Any:
    """The rows, of n, that k initial centroids are chosen of."""
    count = max(_SAMPLE, 32 * k)
    return slice(None) if n <= count else np.unique(random.randint(n, size=count))


def seeds(rows: np.ndarray, weights: np.ndarray, how: Any, k: int, random: Any) -> np.ndarray:
    """Initial centroids, chosen among these rows as `hetero.kmeans` does."""
    backend = NumpyBackend(rows, weights)
    return backend.seeds(how, k, random) + backend.mean


def labelled(part: Any, centroids: np.ndarray, call: Any = cluster, **placed: Any) -> np.ndarray:
    """The number of each row's nearest centroid; ``call`` is `cluster`, or runs it."""
    if not len(part):
        return np.empty(0, np.int32)
    options = {"init": centroids, "n_init": 1, "max_iter": 0, "tol": 0.0, "random_state": 0}
    options |= {"sample_weight": None, "device": None, "method": None, **placed}
    return call(part, len(centroids), **options).labels


def step(
    part: Any, weights: Any, old: Any, centroids: np.ndarray, placed: Any, call: Any = cluster
) -> tuple[np.ndarray, tuple[np.ndarray, np.ndarray, int]]:
    """Labels of a part; its sums of rows and of weights, and how many labels changed."""
    labels, (n, k) = labelled(part, centroids, call, **placed), (len(part), len(centroids))
    weights = weights.astype(np.float64)
    one_hot = load("scipy.sparse").csr_array((weights, labels, np.arange(n + 1)), shape=(n, k))
    changed = n if old is None else int(np.count_nonzero(labels != old))
    return labels, (one_hot.T @ part, np.bincount(labels, weights, k), changed)


def distances(part: np.ndarray, labels: np.ndarray, centroids: np.ndarray) -> np.ndarray:
    """Squared distances of a part's rows from the centroids of their labels."""
    apart = part - centroids[labels]
    return np.einsum("ij,ij->i", apart, apart)
