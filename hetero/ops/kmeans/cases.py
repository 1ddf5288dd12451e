"""What calibration measures of k-means: set-up and one iteration over rows, columns, clusters."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from hetero.arrays import spec
from hetero.devices.base import Device
from hetero.ops import kmeans
from hetero.ops.kmeans.fit import Fit
from hetero.runtime import registry
from hetero.runtime.cases import Budget, Case, Place, TimedSolves, numbers
from hetero.runtime.problem import DEVICE_DTYPES, Problem
from hetero.runtime.registry import Arguments

_ROWS = {"cpu": [256, 2048, 16384], "opencl": [256, 4096]}
_ROWS_OTHERS = [1024, 16384, 131072]
_COLUMNS, _CLUSTERS = [2, 16, 128], [2, 16, 128]
_COLUMNS_QUICK, _CLUSTERS_QUICK = [2, 64], [4, 128]
_STEPS, _STEPS_ON_DEVICES = TimedSolves(1, 3), TimedSolves(4, 40)  # there set-up hides a few


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation but the steps of the kernels' way, on dense rows."""
    for row in registry.lookup(kmeans.OPERATION.name):
        if row.kind != place.kind or row.run is None or row.stands_in is not None:
            continue
        columns, clusters = (_COLUMNS, _CLUSTERS)
        if budget.quick:
            columns, clusters = _COLUMNS_QUICK, _CLUSTERS_QUICK
        rows = _ROWS.get(place.kind, _ROWS_OTHERS)
        rows = [n for n in rows if n <= budget.largest_solve]
        for dtype in DEVICE_DTYPES:
            case = Case(
                row,
                dtype,
                "dense",
                _STEPS if place.kind == "cpu" else _STEPS_ON_DEVICES,
                [rows, columns, clusters],
                functools.partial(_problem, dtype),
                functools.partial(_arguments, dtype),
                seconds=0.5,
            )
            if row.excludes(case.problem(*case.smallest), place.info) is None:
                yield case


def _problem(dtype: str, n: int, d: int, k: int) -> Problem:
    return kmeans.problem(spec((n, d), dtype), k, init=spec((k, d), dtype))


def _arguments(
    dtype: str, n: int, d: int, k: int, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    """Random rows, and the first of them as centroids; no iteration is the last one."""
    X = numbers((n, d), dtype)
    fit = Fit(1, 0.0, X[:k].copy(), exactly=True, host=X)
    return Arguments((X,), np.empty((k, d), dtype), fit)
