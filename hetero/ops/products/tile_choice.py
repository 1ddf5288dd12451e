"""Which tiles a product is streamed in: the ways to cut it, each timed by a profile."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from operator import mul
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import Operand
from hetero.ops.products.matrices import Matrices, matrices_of
from hetero.ops.products.operands import build
from hetero.ops.products.tile_times import Rates, Times, predicted
from hetero.ops.products.tiling import Grid, Index, Tiling, fitted
from hetero.pricing import pricing
from hetero.pricing.plan import Plan
from hetero.profile import Profile
from hetero.registry.problem import Problem

# Seconds that a call staged by threads takes the host in addition to any call's; H100, 16 cores.
_CALL = 4e-4
_STEP = 2e-5  # for each copy or product that is begun
_MOST_TILES = 4096  # more take longer to plan and to begin than the CPU takes for the product
_MULTIPLE = 128  # rows and columns of the largest tile of a kernel's block


class Lengths(NamedTuple):
    """Limits of the tiles that are tried.

    Attributes
    ----------
    least, most : int
        Rows, or columns, of a panel; the least where the device has room for it.
    least_bytes : int
        Of a panel.
    batch_bytes : tuple of int
        Of the items of a batch that make one tile.
    most_tiles : int
        Number above which a way to cut is not compared.
    """

    least: int = 256
    most: int = 1 << 20
    least_bytes: int = 4 << 20
    batch_bytes: tuple[int, ...] = (64 << 20, 16 << 20, 4 << 20)
    most_tiles: int = 1024


LENGTHS = Lengths()


def _grids(matrices: Matrices, itemsize: int, lengths: Lengths) -> Iterator[Grid]:
    """Ways to cut a product into tiles, few first."""
    batch, (m, n, k), a_batch, b_batch, _ = matrices

    def grid(items: int, rows: int, columns: int) -> Grid:
        return Grid(batch, (m, n, k), (items, rows, columns), a_batch, b_batch, itemsize)

    a, b, c = grid(1, m, n).panel_bytes
    if batch and batch[-1] > 1 and max(m, n) <= lengths.most:
        each = c + a * a_batch[-1] + b * b_batch[-1]
        wanted = [min(max(size // each, 1), batch[-1]) for size in lengths.batch_bytes]
        yield from (grid(items, m, n) for items in (batch[-1], *wanted) if items > 1)
    rows, columns = _halved(m, k * itemsize, lengths), _halved(n, k * itemsize, lengths)
    for number in range(max(len(rows), len(columns))):
        # Parts of both, or of the rows alone: then panels and tiles have no gaps.
        for i, j in ((number, number), (number + 1, number), (number, number + 1), (number + 1, 0)):
            yield grid(1, rows[min(i, len(rows) - 1)], columns[min(j, len(columns) - 1)])


def _halved(extent: int, nbytes: int, lengths: Lengths) -> list[int]:
    """Lengths of panels with ``nbytes`` a row or column, the longest first."""
    panels = [extent]
    while extent > 1:
        extent = -(-extent // 2)
        length = extent + -extent % _MULTIPLE if extent > _MULTIPLE else extent
        if length < lengths.least or length * nbytes < lengths.least_bytes:
            break
        panels.append(length)
    return [length for length in panels if length <= lengths.most] or panels[-1:]


def tile_problem(grid: Grid, by_columns: tuple[bool, ...], device: str, part: Index) -> Problem:
    """The product of one tile, ``part`` its items, rows and columns, on a device."""
    (items, rows, columns), k, dtype = part, grid.shape[2], np.dtype(f"f{grid.itemsize}")

    def operand(there: bool, row: int, column: int, transposed: bool) -> Operand:
        shape = ((items,) if there else ()) + (row, column)
        strides = (1, row) if transposed else (column, 1)
        strides = ((row * column,) if there else ()) + strides
        return Operand(shape, tuple(dtype.itemsize * s for s in strides), dtype, device)

    a, b, c = by_columns
    several = bool(grid.batch) and grid.batch[-1] > 1
    made = build(
        "matmul",
        operand(several and grid.a_batch[-1], rows, k, a),
        operand(several and grid.b_batch[-1], k, columns, b),
        operand(several, rows, columns, c),
    )
    assert made is not None
    return made


_UNKNOWN = Rates(*[partial(mul, 1e-10)] * 3, 1e-3, 0.0, _STEP, at_once=True)


class Choice(NamedTuple):
    """How a product is streamed.

    Attributes
    ----------
    tiling : Tiling
    seconds : float
        Estimate by which tilings are compared: copies overlap with the computation.
    times : Times or None
        Prediction of the profile; None where it lacks the constants.
    tile : Plan
        Of the product of a whole tile.
    """

    tiling: Tiling
    seconds: float
    times: Times | None
    tile: Plan

    @property
    def nbytes(self) -> int:
        """Of the device's memory."""
        return self.tiling.nbytes

    @property
    def terms(self) -> dict[str, float] | None:
        """``times`` by name."""
        return self.times and self.times._asdict()

    def __str__(self) -> str:
        items, rows, columns = self.tiling.grid.lengths
        size = f"{rows}x{columns}" if items == 1 else f"{items}x{rows}x{columns}"
        number = self.tiling.grid.tiles
        return f"{number} tile{'s' * (number > 1)} of {size} by {self.tile.chosen.method}"


def choose(
    problem: Problem,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    room: float,
) -> Choice | None:
    """The fastest way to stream a product in ``room`` bytes; None if all need over `_MOST_TILES`.

    Parameters
    ----------
    problem : Problem
    name, info
        The device.
    constants : Profile
    room : float
        Bytes.
    """
    matrices, itemsize = matrices_of(problem), np.dtype(problem.dtype).itemsize
    best: Choice | None = None
    for lengths in (LENGTHS, LENGTHS._replace(least=1, least_bytes=1)):
        since = 0
        for grid in dict.fromkeys(_grids(matrices, itemsize, lengths)):
            most = _MOST_TILES if best is None else lengths.most_tiles
            if since == 4 or grid.tiles > most:
                break
            ways = fitted(grid, room)
            since += bool(ways)
            for made in ways:
                choice = _timed(problem, made, matrices, name, info, constants)
                if best is None or choice.seconds < best.seconds:
                    best, since = choice, 0
        if best is not None:
            return best
    return None


def _timed(
    problem: Problem,
    made: Tiling,
    matrices: Matrices,
    name: str,
    info: dict[str, Any],
    constants: Profile,
) -> Choice:
    """A tiling with the estimate that compares it, and with its prediction."""
    grid = made.grid
    m, n, _ = grid.shape
    part = (
        min(grid.lengths[0], grid.batch[-1] if grid.batch else 1),
        *(min(pair) for pair in zip(grid.lengths[1:], (m, n), strict=True)),
    )
    tile = pricing.price(
        tile_problem(grid, matrices.by_columns, name, part), constants, {name: info}, name
    )
    seconds = tile.chosen.seconds
    rates = _rates(problem, name, constants, seconds)
    # Compared without the gain of copies back to back: many small ones gain least.
    whole = predicted(made, (rates or _UNKNOWN)._replace(at_once=True, together=False)).whole
    return Choice(made, whole, rates and predicted(made, rates), tile)


def _rates(problem: Problem, name: str, constants: Profile, product: float | None) -> Rates | None:
    """The rates by a profile; None where it lacks one."""
    if product is None:
        return None
    moved = [(o, "upload") for o in problem.inputs] + [(problem.output, "download")]
    call = constants.dispatch(name, "host")
    try:
        links = [constants.link(name, way, "pinned" if o.pinned else "staged") for o, way in moved]
        shared = not problem.output.pinned and not all(o.pinned for o in problem.inputs)
        together = not any(o.pinned for o in problem.inputs)
        return Rates(*links, product, call + _CALL, _STEP, True, shared, together)
    except KeyError:
        pass
    try:  # the rate of the whole plain copy, so that parts do not look faster
        seconds = [constants.link(name, way, o.memory)(o.nbytes) / o.nbytes for o, way in moved]
    except KeyError:
        return None
    parts = (partial(mul, each) for each in seconds)
    return Rates(*parts, product, call, _STEP, at_once=False)
