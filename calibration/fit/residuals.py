"""How far predictions are from measurements."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def residuals(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """Relative errors |predicted - measured| / measured: mean, p95, worst."""
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1.0)
    return {
        "mean": float(errors.mean()),
        "p95": float(np.percentile(errors, 95)),
        "worst": float(errors.max()),
        "count": int(errors.size),
    }
