"""The compiled loops of k-means on the CPU."""

from __future__ import annotations

import numpy as np

from hetero.devices import loops

CLUSTERS = loops.register(loops.Family("clusters", 10.0, f"{__name__}:clusters"))


def clusters(dtype: np.dtype) -> None:
    """Call every loop in both ways: by one thread and by all."""
    from hetero.ops.kmeans.fit import Fit, fit
    from hetero.ops.kmeans.rows_cpu import LoopRows

    for n, d, k in ((70, 3, 3), (40_000, 8, 8)):
        X = np.random.default_rng(0).random((n, d)).astype(dtype)
        asked = Fit(2, 0.0, "k-means++", random=np.random.RandomState(0), exactly=True)
        fit(LoopRows(X, None), asked, k)
