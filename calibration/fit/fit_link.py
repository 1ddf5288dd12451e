"""From measured copies to a link's constants: White's segments, with fitted breakpoints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np

from hetero.calibration.fit.fit import residuals
from hetero.registry.models import bind_link

_LEAST_POINTS, _MOST = 3, 8  # of a segment; segments
_PENALTY = 4e-4  # mean squared relative error that one more segment must save


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """(slope, intercept, squared relative error) of the line with the least relative error; neither
    constant is negative."""
    (slope, intercept), *_ = np.linalg.lstsq(np.column_stack([x / y, 1.0 / y]), np.ones_like(y))
    if slope < 0:
        slope, intercept = 0.0, np.sum(1.0 / y) / np.sum(1.0 / y**2)
    elif intercept < 0:
        slope, intercept = np.sum(x / y) / np.sum((x / y) ** 2), 0.0
    errors = np.abs((slope * x + intercept) / y - 1.0)
    return float(slope), float(intercept), float(np.sum(np.minimum(errors, 0.3) ** 2))


def segments(sizes: Sequence[float], seconds: Sequence[float]) -> dict[str, Any]:
    """White's link model with fitted breakpoints (eq. 3.14-3.15), with residuals and samples.

    ``sizes`` are bytes, increasing. The breakpoints are those with the smallest sum of squared
    relative errors; a segment more must pay for itself.
    """
    x, y = np.asarray(sizes, float), np.asarray(seconds, float)
    count = len(x)
    fits = {
        (i, j): line(x[i:j], y[i:j])
        for i in range(count)
        for j in range(i + 1, count + 1)
        if j - i >= min(_LEAST_POINTS, count)
    }
    # best[s][j]: least error of the first j points by s segments, and where the last one starts
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(_MOST):
        row: dict[int, tuple[float, int]] = {}
        for (i, j), (_, _, error) in fits.items():
            if i in best[-1]:
                total = best[-1][i][0] + error
                if j not in row or total < row[j][0]:
                    row[j] = (total, i)
        best.append(row)
    number = min(
        (s for s in range(1, _MOST + 1) if count in best[s]),
        key=lambda s: best[s][count][0] / count + s * _PENALTY,
    )
    cuts, end = [count], count
    for s in range(number, 0, -1):
        end = best[s][end][1]
        cuts.insert(0, end)
    pieces = list(itertools.pairwise(cuts))
    lines = [fits[piece][:2] for piece in pieces]
    fastest = max(float(np.max(x / y)), *(1.0 / slope for slope, _ in lines if slope > 0), 1.0)
    constants = []
    for position, ((_, j), (slope, intercept)) in enumerate(zip(pieces, lines, strict=True)):
        last = position == len(pieces) - 1
        constants.append(
            {
                "below": None if last else float(np.sqrt(x[j - 1] * x[j])),
                "bytes_per_second": fastest,
                "seconds_per_byte": max(slope - 1.0 / fastest, 0.0 if last else -1.0 / fastest),
                "seconds": intercept,
            }
        )
    model = {"form": "segments", "constants": constants}
    cost = bind_link(model)
    model["residuals"] = residuals([cost(size) for size in x], y)
    model["samples"] = {"bytes": x.tolist(), "seconds": y.tolist()}
    return model
