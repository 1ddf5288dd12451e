"""What calibration measures of k-means: set-up and one iteration over rows, columns, clusters.

Fits from k-means++ are another layout, which is measured of the first method of a kind, with one
iteration. What they take beyond it is their set-up: with the rows on a GPU nearly all of it is k
round trips for k seeds, of which the distances tell nothing.
"""

from __future__ import annotations

import copy
import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import spec
from hetero.devices.base import Device
from hetero.ops import kmeans
from hetero.ops.cases import Budget, Case, Place, TimedSolves, grid, numbers
from hetero.ops.kmeans.fit import Fit
from hetero.ops.kmeans.methods import seeding_iterations
from hetero.ops.kmeans.operands import DENSE, PLUS_PLUS, SEEDED
from hetero.registry import Arguments
from hetero.registry.models import ModelKey, Work, bind
from hetero.registry.problem import DEVICE_DTYPES, Problem

_ROWS = {"cpu": [256, 2048, 16384], "opencl": [256, 4096]}
_ROWS_OTHERS = [1024, 16384, 131072]
_MANY_ROWS, _MANY_CORES = 65536, 8  # that many cores are not busy with less
_COLUMNS, _CLUSTERS = [2, 16, 128], [2, 16, 128]
_COLUMNS_QUICK, _CLUSTERS_QUICK = [2, 64], [4, 128]
_COLUMNS_SEEDED, _CLUSTERS_SEEDED, _CLUSTERS_SEEDED_QUICK = [2, 128], [2, 16, 64], [2, 32]
_STEPS, _STEPS_ON_DEVICES = TimedSolves(1, 3, 9), TimedSolves(4, 40)  # there set-up hides a few
_FIRST = "first"  # the layout of fits from k-means++ that end after an iteration
_LEAST = 0.02  # of such a fit's time: its set-up, where the distances seem to take all


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation, on dense rows."""
    on_cpu, quick = place.kind == "cpu", budget.quick
    rows = _ROWS.get(place.kind, _ROWS_OTHERS)
    if on_cpu and place.info.get("cores", 1) >= _MANY_CORES:
        rows = [*rows, _MANY_ROWS]
    rows = [n for n in rows if n <= budget.largest_solve]
    whole, seeded = [rows, _COLUMNS, _CLUSTERS], [rows, _COLUMNS_SEEDED, _CLUSTERS_SEEDED]
    if quick:
        whole = [rows, _COLUMNS_QUICK, _CLUSTERS_QUICK]
        columns = _COLUMNS_QUICK if on_cpu else _COLUMNS_SEEDED
        seeded = [[rows[0], rows[-1]], columns, _CLUSTERS_SEEDED_QUICK]
    layouts = [(DENSE, _STEPS if on_cpu else _STEPS_ON_DEVICES, whole)]
    layouts.append((_FIRST, TimedSolves(1, 1), seeded))
    row = next(r for r in registry.lookup(kmeans.OPERATION.name) if r.kind == place.kind)
    for dtype, (layout, how, axes) in itertools.product(DEVICE_DTYPES, layouts):
        make = (functools.partial(of, layout, dtype) for of in (_problem, _arguments))
        case = Case(row, dtype, layout, how, axes, *make, seconds=0.5)
        if row.obstacle(case.problem(*case.smallest), place.info) is None:
            yield case


def derived(models: dict[ModelKey, dict]) -> dict[ModelKey, dict]:
    """Of fits from k-means++: iterations as of others, and the set-up that is left of the measured.

    A method that was not measured gets the set-up of the one that was, and what its own takes more.
    """
    found = {}
    first_of = {(key.place, key.dtype): key for key in models if key.layout == _FIRST}
    for key, model in models.items():
        first = first_of.get((key.place, key.dtype))
        if key.operation == kmeans.OPERATION.name and key.layout == DENSE and first is not None:
            measured = models.get(first._replace(layout=DENSE))
            if measured:
                found[key._replace(layout=SEEDED)] = _seeded(model, measured, models[first])
    return found


def _seeded(model: dict[str, Any], measured: dict[str, Any], first: dict[str, Any]) -> dict:
    made, own, other = copy.deepcopy(model), bind(model), bind(measured)
    part = first["constants"]["step"]
    setup = []
    for dims, whole in zip(grid(part["axes"]), part["seconds"], strict=True):
        passes = Work(dims, 0.0, 0.0, repeat=2)  # an iteration, and the labels
        seconds = whole + sum(own(passes)) - sum(other(passes))
        _, priced = own(passes._replace(repeat=2 + seeding_iterations(dims[-1])))
        setup.append(float(f"{max(seconds - priced, _LEAST * whole):.5g}"))
    made["constants"]["setup"] = {"axes": part["axes"], "seconds": setup}
    return made


def _problem(layout: str, dtype: str, n: int, d: int, k: int) -> Problem:
    if layout == _FIRST:
        return kmeans.problem(spec((n, d), dtype), k, max_iter=1)
    return kmeans.problem(spec((n, d), dtype), k, init=spec((k, d), dtype))


def _arguments(
    layout: str, dtype: str, n: int, d: int, k: int, *, devices: tuple[Device, ...] = ()
) -> Arguments:
    """Random rows, and the first of them as centroids; no iteration is the last one."""
    X = numbers((n, d), dtype)
    init = PLUS_PLUS if layout == _FIRST else X[:k].copy()
    random = np.random.RandomState(0)
    fit = Fit(1, -1.0, init, random=random)
    return Arguments((X,), np.empty((k, d), dtype), fit)
