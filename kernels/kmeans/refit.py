"""A card's figures for k-means: those by which the iterations that are chosen are the fastest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..common import refit as common
from ..common.launch import ELEMENT_BYTES, VECTOR_BYTES, LaunchPlan
from ..common.refit import Clock, Limits, RefitCase, Search, Timer
from ..common.tuning import Table
from .plan import STATE, plan_lloyd

__all__ = ["candidates", "refit"]

_FEW = ((100_000, 2, 8), (1_000_000, 8, 16), (1_000_000, 3, 4))
_MORE = ((200_000, 16, 20), (200_000, 8, 50), (200_000, 8, 100))
_COLUMNS = ((200_000, 24, 128), (200_000, 48, 128))
_CLUSTERS = (40, 70, 130, 200, 260)
_RATES = (0.6, 0.7, 0.8, 0.9, 1.0)
_SORTED = ((1_000_000, 32, 64), (200_000, 128, 512), (100_000, 128, 16))


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's."""
    return common.refit_by_search(table, _searches(table, limits), Timer(clock), "kmeans")


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """What may be timed."""
    return common.candidates(table, _searches(table, limits))


def _searches(table: Table, limits: Limits) -> Iterator[Search]:
    """All figures, in the order in which they are found."""
    few, more, columns, by_label = (
        [_iteration(*shape, dtype, limits) for shape in shapes for dtype in ELEMENT_BYTES]
        for shapes in (_FEW, _MORE, _COLUMNS, _SORTED)
    )
    yield Search("kmeans.small_blocks", (2, 4, 8), few)
    yield Search("kmeans.small_items", (1, 2, 4), more)
    yield Search("kmeans.few_columns", (16, 32, 64), columns)
    for dtype, rates in table["kmeans.tile_rates"].items():
        for many, d in enumerate((16, 80)):
            cases = [_iteration(200_000, d, k, dtype, limits) for k in _CLUSTERS]
            for tile in rates:
                yield Search("kmeans.tile_rates", _RATES, cases, (dtype, tile, many))
    yield Search("kmeans.sums_blocks", (2, 4, 8), by_label)


def _iteration(n: int, d: int, k: int, dtype: str, limits: Limits) -> RefitCase:
    """Labels, sums and means of one iteration."""
    size = ELEMENT_BYTES[dtype]
    buffers: dict[str, Any] = {
        "X": n * d * size,
        "centroids": k * d * size,
        "labels": np.arange(n, dtype=np.int32) % k,
        "state": np.zeros(STATE, np.int32),
    }

    def plan(table: Table) -> LaunchPlan:
        found = plan_lloyd(
            n=n, d=d, k=k, dtype=dtype, weighted=False, alignment=VECTOR_BYTES, tuning=table,
            **limits._asdict(),
        )  # fmt: skip
        for name, nbytes in found.scratch.items():
            if name != "state":
                buffers[name] = max(nbytes, buffers.get(name, 0))
        return LaunchPlan((*found.assign, *found.update, found.finish[0]), 0, "")

    return RefitCase(plan, buffers)
