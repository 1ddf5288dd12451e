"""A card's figures for convolution: those by which the plans chosen are the fastest."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..common import refit as common
from ..common.launch import ELEMENT_BYTES, LaunchPlan
from ..common.refit import Clock, Limits, RefitCase, Search, Timer
from ..common.tuning import Table
from .plan import direct, separable

__all__ = ["candidates", "refit"]

_FACTORS = (0.5, 0.7, 1.4)  # times the table's value
# Sides of images, and of filters that are too large for registers.
_TILED = ((300, 11), (300, 31), (700, 15), (700, 63), (2048, 11))
_LINES = ((700, 15), (2048, 15), (2048, 63))
_MEDIUM, _LARGE = 1024, 3072
_SMALL = tuple(itertools.product((100, 200, 400, 800), (3, 5)))
_THREADS = (64, 128, 256)
_RESIDENT = (256, 512, 1024)
_STAGE_BYTES = (16384, 32768, 49152)
_STAGE_COLUMNS = (16, 32, 64)
_SMALL_ROWS = (2, 4, 8)
_SMALL_AHEAD = (2, 4, 6)
_SMALL_TAPS = {"float32": (9, 25, 49, 81), "float64": (9, 15, 25)}
_SMALL_OUTPUTS = (64, 128, 256, 512, 1024)


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's."""
    return common.refit_by_search(table, _searches(table, limits), Timer(clock), "convolution")


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """All launches that may be timed."""
    return common.candidates(table, _searches(table, limits))


def _searches(table: Table, limits: Limits) -> Iterator[Search]:
    """All figures, in the order in which they are determined."""
    for dtype, shapes in table["convolution.small_shapes"].items():
        for side, (_, _, blocks) in shapes.items():
            case = [_direct(_LARGE, int(side), dtype, limits)]
            near = [b for b in range(blocks - 1, blocks + 2) if b > 0]
            for place, values in enumerate((_SMALL_ROWS, _SMALL_AHEAD, near)):
                yield Search("convolution.small_shapes", values, case, (dtype, side, place))
    tiled = [_direct(n, side, d, limits) for (n, side), d in _both(_TILED)]
    lines = [_separable(n, side, d, limits) for (n, side), d in _both(_LINES)]
    yield Search("convolution.tile_threads", _THREADS, tiled)
    yield Search("convolution.resident_threads", _RESIDENT, tiled + lines)
    yield Search("convolution.stage_bytes", _STAGE_BYTES, tiled)
    yield Search("convolution.stage_columns", _STAGE_COLUMNS, tiled)
    for name in ("load_cost", "read_cost", "hiding_blocks"):
        figure = f"convolution.{name}"
        yield Search(figure, [factor * table[figure] for factor in _FACTORS], tiled)
    for dtype, values in _SMALL_TAPS.items():
        sides = table["convolution.small_shapes"][dtype]
        cases = [_direct(_MEDIUM, int(side), dtype, limits) for side in sides]
        yield Search("convolution.small_taps", values, cases, (dtype,))
    small = [_direct(n, side, d, limits) for (n, side), d in _both(_SMALL)]
    yield Search("convolution.small_outputs", _SMALL_OUTPUTS, small)


def _both(shapes: Any) -> Iterator[tuple[tuple[int, int], str]]:
    return itertools.product(shapes, ELEMENT_BYTES)


def _shape(n: int, side: int, dtype: str, limits: Limits) -> dict[str, Any]:
    """An n x n image and a filter; the output is as large as the image."""
    return {
        "batch": 1, "height": n, "width": n, "filter_height": side, "filter_width": side,
        "out_height": n, "out_width": n, "top": side // 2, "left": side // 2, "boundary": "fill",
        "dtype": dtype, "image_strides": (n * n, n, 1), "out_strides": (n * n, n, 1),
        "multiprocessors": limits.multiprocessors, "alignment": 16,
        "cuda": limits.capability is not None, "block_limit": limits.block_limit,
        "shared_limit": limits.shared_limit,
    }  # fmt: skip


def _direct(n: int, side: int, dtype: str, limits: Limits) -> RefitCase:
    """The sum over all taps."""
    shape, element = _shape(n, side, dtype, limits), ELEMENT_BYTES[dtype]

    def plan(table: Table) -> LaunchPlan:
        return common.with_numbers(
            *direct(**shape, tuning=table).launches, fillvalue=0.0, only_if=0
        )

    sizes = {"image": n * n, "taps": side * side, "out": n * n}
    return RefitCase(plan, {name: size * element for name, size in sizes.items()})


def _separable(n: int, side: int, dtype: str, limits: Limits) -> RefitCase:
    """A filter of rank 1."""
    shape, element = _shape(n, side, dtype, limits), ELEMENT_BYTES[dtype]

    def plan(table: Table) -> LaunchPlan:
        made = separable(**shape, rank=1, tuning=table)
        return common.with_numbers(*made.launches, fillvalue=0.0)

    sizes = {"image": n * n, "columns": side, "rows": side, "out": n * n}
    return RefitCase(plan, {name: size * element for name, size in sizes.items()})
