"""What compiles the CPU's loops of k-means: a few small fits."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.ops.kmeans.bounded_cpu import AlwaysBounded
from hetero.ops.kmeans.fit import Fit, fit
from hetero.ops.kmeans.rows_cpu import LoopRows


def clusters(dtype: np.dtype) -> None:
    """Call every loop in both ways: by one thread and by all."""
    _fit(LoopRows, dtype, 70, 3, 3)
    _fit(LoopRows, dtype, 40_000, 32, 64)


def bounds(dtype: np.dtype) -> None:
    """Call those that skip rows, by few centroids and by many."""
    _fit(AlwaysBounded, dtype, 300, 3, 3)
    _fit(AlwaysBounded, dtype, 400, 3, 400)


def _fit(rows: Any, dtype: np.dtype, n: int, d: int, k: int) -> None:
    X = np.random.default_rng(0).random((n, d)).astype(dtype)
    asked = Fit(2, 0.0, "k-means++", random=np.random.RandomState(0), exactly=True)
    fit(rows(X, None), asked, k)
