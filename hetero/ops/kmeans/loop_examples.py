"""What compiles the CPU's loops of k-means: a small fit, and calls."""

from __future__ import annotations

import numpy as np

from hetero.kernels.cpu import kmeans as loops
from hetero.kernels.cpu import kmeans_bounds
from hetero.ops.kmeans.bounded_cpu import Bounds
from hetero.ops.kmeans.fit import Fit, fit
from hetero.ops.kmeans.rows_cpu import LoopRows


def clusters(dtype: np.dtype) -> None:
    """Call every loop."""
    X = np.random.default_rng(0).random((70, 3)).astype(dtype)
    asked = Fit(2, 0.0, "k-means++", random=np.random.RandomState(0), exactly=True)
    fit(LoopRows(X, None), asked, 3)


def bounds(dtype: np.dtype) -> None:
    """Call those that skip rows, and none of the others: these are compiled beside."""
    n, d, k = loops.BLOCK, 3, 2
    X, centroids = np.zeros((n, d), dtype), np.zeros((k, d), dtype)
    packed, mean = np.zeros((1, d, n), dtype), np.zeros(d, dtype)
    norms, kept = np.zeros(k, dtype), Bounds(n, 1, centroids)
    rounded = kmeans_bounds.rounding(d, dtype, 0.0)
    lists = np.zeros(n, np.int32), np.zeros(n, np.int64), np.zeros(n, np.int32), np.zeros(1, int)
    kmeans_bounds.between(0, packed, centroids, norms, norms, norms.copy(), rounded, kept.moves)
    kmeans_bounds.assign(
        *(packed, centroids, norms, *lists, X, mean, centroids, rounded, kept.moves, True),
        *(kept.of_rows, kept.reaches, kept.looked),
    )
