"""A card's figures for multigrid passes: those by which the plans chosen are the fastest."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..common import refit as common
from ..common.launch import ELEMENT_BYTES, Launch, LaunchPlan
from ..common.refit import Clock, Limits, RefitCase, Search, Timer
from ..common.tuning import Table
from .plan import DOWN, TABLES, UP, plan_sweep
from .transfers import Transfer, tiles, transfer

__all__ = ["candidates", "refit"]

_FLAT = ((511, 1, 511), (1024, 1, 1024), (2047, 1, 2047))
_SOLID = ((63, 63, 63), (128, 128, 128))
_SUMS_BYTES = 1 << 20


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's."""
    return common.refit_by_search(table, _searches(table, limits), Timer(clock), "multigrid")


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """What may be timed."""
    return common.candidates(table, _searches(table, limits))


def _searches(table: Table, limits: Limits) -> Iterator[Search]:
    """All figures, in the order in which they are found."""
    flat = {d: [_passes(shape, d, limits) for shape in _FLAT] for d in ELEMENT_BYTES}
    solid = {d: [_passes(shape, d, limits) for shape in _SOLID] for d in ELEMENT_BYTES}
    every = list(itertools.chain(*flat.values(), *solid.values()))
    yield Search("multigrid.pairs", (64, 128, 256), list(itertools.chain(*flat.values())))
    for dtype, cases in flat.items():
        blocks = table["multigrid.resident"][dtype]
        near = [n for n in range(blocks - 1, blocks + 2) if n > 0]
        yield Search("multigrid.resident", near, cases, (dtype,))
    yield Search("multigrid.ahead", (2, 4, 8), list(itertools.chain(*flat.values())))
    for dtype, cases in solid.items():
        yield Search("multigrid.window_rows", (16, 20, 24, 28), cases, (dtype,))
    yield Search("multigrid.most_planes", (16, 32, 64), every)
    yield Search("multigrid.least_planes", (2, 4, 8), every)
    yield Search("multigrid.blocks", (2, 4, 8, 16), every)


def _passes(shape: tuple[int, int, int], dtype: str, limits: Limits) -> RefitCase:
    """A pass down and a pass up between a grid and the next coarser one."""
    coarse = tuple(n // 2 if n > 1 else 1 for n in shape)
    axes = {axis: transfer(n, m) for axis, n, m in zip("zyx", shape, coarse, strict=True)}
    weights = (1.0, 1.0 if shape[1] > 1 else 0.0, 1.0)
    buffers = _Tiles(
        axes, dict.fromkeys(("u", "f", "work"), math.prod(shape) * ELEMENT_BYTES[dtype])
    )
    buffers |= {"coarse": math.prod(coarse) * ELEMENT_BYTES[dtype], "sums": _SUMS_BYTES}
    for name in TABLES:
        axis, field = name.split()
        values = getattr(axes[axis], field)
        buffers[name] = values if values.dtype == np.int32 else values.astype(dtype)

    def plan(table: Table) -> LaunchPlan:
        sweep = plan_sweep(shape, coarse, dtype, limits.target(table))
        tiles = {axis: f"{axis} {points}" for axis, points in zip("zyx", sweep.tile, strict=True)}
        counts = tuple(len(buffers[name]) for name in tiles.values())

        def one(mode: int, **names: str) -> Launch:
            names |= tiles
            launch = sweep.launch(weights, counts, 1.0, shape[2] % 2 == 0, 0, mode)
            return launch._replace(arguments=tuple(names.get(a, a) for a in launch.arguments))

        passes = one(DOWN, out="work"), one(UP, u="work", out="u")
        return LaunchPlan(passes, 0, "")

    return RefitCase(plan, buffers, cold=False)


class _Tiles(dict[str, Any]):
    """Buffers, of which tiles are made when they are asked for: "z 32" are of 32 coarse points."""

    def __init__(self, axes: dict[str, Transfer], buffers: dict[str, Any]) -> None:
        super().__init__(buffers)
        self._axes = axes

    def __missing__(self, name: str) -> np.ndarray:
        axis, points = name.split()
        found = self[name] = tiles(self._axes[axis], int(points))
        return found
