"""A card's figures for conjugate gradients: those by which the plans chosen are the fastest.

Those of cooperative launches stay: their blocks wait for each other, which a plain launch must not.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np

from ..common import refit as common
from ..common.launch import ELEMENT_BYTES, Launch, LaunchPlan
from ..common.refit import Clock, Limits, RefitCase, Search, Timer
from ..common.tuning import Table
from .plan import Rows, csr, dots, vectors
from .plan_stencil import GridShare, stencil, sweeps

__all__ = ["candidates", "refit"]

_FLAT = ((600, 600), (1024, 1024), (3072, 3072))
_SMALL = ((100, 100), (250, 250), (600, 600))
_SOLID = ((100, 100, 100), (220, 220, 220))
_LENGTHS = (1 << 17, 1 << 20, 1 << 24)  # of vectors
_ENTRIES = 1 << 22  # of a sparse matrix
_SPREAD = 61  # columns between a row's entries
_RECORD = np.array([0.0, -1.0, *(0.0,) * 6])  # of an iteration that begins; cg_scalars.cu
_SUMS = 512  # of blocks, for each multiprocessor


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's."""
    return common.refit_by_search(table, _searches(table, limits), Timer(clock), "cg")


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """What may be timed."""
    return common.candidates(table, _searches(table, limits))


def _searches(table: Table, limits: Limits) -> Iterator[Search]:
    """All figures, in the order in which they are found."""
    for diagonal, name in enumerate(("cg.row_blocks", "cg.diagonal_row_blocks")):
        cases = [_sweeps(shape, d, limits, bool(diagonal)) for shape, d in _both(_FLAT)]
        for threads, blocks in table[name].items():
            yield Search(name, _near(blocks), cases, (threads,))
    for width, planes in table["cg.plane_blocks"].items():
        cases = [
            _sweeps((*shape[:2], shape[2] - (width == "1")), dtype, limits, False)
            for shape, dtype in _both(_SOLID)
            if width == "1" or int(width) * ELEMENT_BYTES[dtype] == 16
        ]
        for size, blocks in planes.items():
            yield Search("cg.plane_blocks", _near(blocks), cases, (width, size))
    small = [_sweeps(shape, dtype, limits, False) for shape, dtype in _both(_SMALL)]
    yield Search("cg.least_rows", (2, 4, 8, 16), small)
    plain = [_stencil(shape, dtype, limits) for shape, dtype in _both((*_FLAT, *_SOLID))]
    yield Search("cg.stencil_threads", (64, 128, 256), plain)
    yield Search("cg.stencil_blocks", (4, 8, 16), plain)
    steps = [_iteration(length, dtype, limits) for length, dtype in _both((5, 27))]
    steps += [_vectors(n, dtype, limits) for n, dtype in _both(_LENGTHS)]
    yield Search("cg.threads", (128, 256, 512), steps)
    yield Search("cg.blocks", (2, 4, 8, 16), steps)
    short = [_iteration(length, dtype, limits) for length, dtype in _both((7, 10, 14, 18, 22))]
    yield Search("cg.short_row", (6, 8, 12, 16, 20, 24), short)
    long = [_iteration(length, dtype, limits) for length, dtype in _both((20, 27, 40, 80))]
    yield Search("cg.row_depth", (2, 4, 8), long)


def _both(shapes: Any) -> Iterator[tuple[Any, str]]:
    return itertools.product(shapes, ELEMENT_BYTES)


def _near(blocks: int) -> list[int]:
    return [near for near in range(blocks - 1, blocks + 2) if near > 0]


def _grid(shape: tuple[int, ...]) -> GridShare:
    return GridShare.of(shape, (1.0,) * len(shape))


def _sizes(n: int, dtype: str, limits: Limits, *names: str) -> dict[str, Any]:
    """Vectors of n elements, and what every launch may need beside."""
    sums = _sums(limits.multiprocessors * _SUMS)
    others = {"partial": sums.nbytes, "partial_before": sums, "before": _RECORD, "after": 64}
    return {**others, **dict.fromkeys(names, n * ELEMENT_BYTES[dtype])}


def _sweeps(shape: tuple[int, ...], dtype: str, limits: Limits, diagonal: bool) -> RefitCase:
    """Two iterations on a stencil: one that leaves x, and one that adds both steps to it."""
    grid = _grid(shape)
    turned = {"now": "next", "next": "now"}

    def plan(table: Table) -> LaunchPlan:
        down, up = sweeps(
            grid, limits.target(table), dtype=dtype, halo=0, x_halo=0, aligned=True,
            diagonal=diagonal,
        )  # fmt: skip
        numbers = {"blocks_before": down.grid, "first_block": 0}
        up = up._replace(arguments=tuple(turned.get(a, a) for a in up.arguments))
        (first,) = common.with_numbers(down, add=0, **numbers).launches
        (second,) = common.with_numbers(up, add=2, **numbers).launches
        return LaunchPlan((first, second), 0, "")

    n = grid.rows * grid.plane
    sizes = _sizes(n, dtype, limits, "x", "inverse") | _sizes(2 * n, dtype, limits, "now", "next")
    return RefitCase(plan, sizes, cold=False)


def _stencil(shape: tuple[int, ...], dtype: str, limits: Limits) -> RefitCase:
    """A residual and a product."""
    grid = _grid(shape)

    def plan(table: Table) -> LaunchPlan:
        return _numbered(*stencil(grid, limits.target(table), dtype=dtype))

    names = ("x", "b", "r", "p", "q", "inverse")
    return RefitCase(plan, _sizes(grid.rows * grid.plane, dtype, limits, *names), cold=False)


def _vectors(n: int, dtype: str, limits: Limits) -> RefitCase:
    """The vectors' part of an iteration, in one launch and in several."""

    def plan(table: Table) -> LaunchPlan:
        target = limits.target(table)
        *_, advance = vectors(n, target, dtype=dtype, aligned=True, diagonal=False)
        return _numbered(advance, *dots(n, target, dtype=dtype, aligned=True))

    names = ("x", "r", "p", "q", "z", "a", "b")
    return RefitCase(plan, _sizes(n, dtype, limits, *names), cold=False)


def _iteration(length: int, dtype: str, limits: Limits) -> RefitCase:
    """An iteration on a sparse matrix with rows of that many entries."""
    n = _ENTRIES // length
    pointers, indices = _matrix(n, length)

    def plan(table: Table) -> LaunchPlan:
        target, kind = limits.target(table), {"dtype": dtype, "diagonal": False}
        _, product, _ = csr(Rows(n, n * length, "int32"), target, **kind)
        *_, advance = vectors(n, target, aligned=True, **kind)
        return _numbered(product, advance)

    sizes = _sizes(n, dtype, limits, "x", "r", "p", "q")
    sizes |= _sizes(n * length, dtype, limits, "values")
    return RefitCase(plan, {**sizes, "pointers": pointers, "indices": indices}, cold=False)


def _numbered(*launches: Launch) -> LaunchPlan:
    places = dict.fromkeys(("first_block", "own", "start", "halo"), 0)
    return common.with_numbers(*launches, blocks_before=launches[0].grid, **places)


@functools.cache
def _sums(count: int) -> np.ndarray:
    """Sums of blocks by which an iteration goes on."""
    return np.ones(count)


@functools.cache
def _matrix(n: int, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Pointers and indices of a band matrix."""
    pointers = np.arange(0, n * length + 1, length, dtype=np.int32)
    columns = (np.arange(length, dtype=np.int32) - length // 2) * np.int32(_SPREAD)
    indices = (np.arange(n, dtype=np.int32)[:, None] + columns) % np.int32(n)
    return pointers, indices.ravel()
