"""A card's figures for Jacobi sweeps: those by which the plans chosen are the fastest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..common import refit as common
from ..common.launch import ELEMENT_BYTES, Launch, LaunchPlan
from ..common.refit import Clock, Limits, RefitCase, Search, Timer
from ..common.tuning import Table
from .grid_slab import GridSlab
from .plan import DEPTHS, blocked, default_depth

__all__ = ["candidates", "refit"]

_GRIDS = ((500, 500), (1000, 1000), (3000, 3000))
_START_ROWS = (2, 4, 8, 16, 32)


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's."""
    return common.refit_by_search(table, _searches(table, limits), Timer(clock), "jacobi")


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """What may be timed."""
    return common.candidates(table, _searches(table, limits))


def _searches(table: Table, limits: Limits) -> Iterator[Search]:
    """All figures, in the order in which they are found."""
    for dtype, shapes in table["jacobi.blocked_shapes"].items():
        for depth, (blocks, _) in shapes.items():
            cases = [_passes(shape, dtype, limits, 2 * int(depth), int(depth)) for shape in _GRIDS]
            near = [b for b in range(blocks - 1, blocks + 2) if b > 0]
            # The rows in flight go round: they divide the sweeps.
            ahead = [rows for rows in range(1, 5) if int(depth) % rows == 0]
            for place, values in enumerate((near, ahead)):
                yield Search("jacobi.blocked_shapes", values, cases, (dtype, depth, place))
    several = [
        _passes(shape, dtype, limits, 24)
        for shape, dtype in itertools.product(_GRIDS, ELEMENT_BYTES)
    ]
    yield Search("jacobi.start_rows", _START_ROWS, several)
    for dtype in ELEMENT_BYTES:
        cases = [_passes(shape, dtype, limits, 24) for shape in _GRIDS]
        yield Search("jacobi.depth", DEPTHS, cases, (dtype,))


def _passes(
    shape: tuple[int, ...], dtype: str, limits: Limits, whole: int, depth: int | None = None
) -> RefitCase:
    """That many sweeps, in passes of ``depth`` each, or as many as the table says."""
    grid = GridSlab.of(shape, (1.0,) * len(shape), dtype)

    def plan(table: Table) -> LaunchPlan:
        target = limits.target(table)
        each = depth or default_depth(grid, target)
        one = blocked(grid, ((0, grid.held),), each, target)
        launches = itertools.cycle(_there_and_back(one))
        return LaunchPlan(tuple(itertools.islice(launches, whole // each)), 0, "")

    return RefitCase(plan, _buffers(grid), cold=False)


def _there_and_back(launch: Launch) -> tuple[Launch, Launch]:
    """A launch, and the one that follows it, from what the first wrote."""
    names = {"u": "u_new", "u_new": "u"}
    back = launch._replace(arguments=tuple(names.get(a, a) for a in launch.arguments))
    return launch, back


def _buffers(grid: GridSlab) -> dict[str, int]:
    return dict.fromkeys(("u", "f", "u_new"), grid.nbytes)
