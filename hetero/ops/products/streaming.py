"""method="streamed": a product of host arrays in tiles that move while others are computed.

What computes a tile is what the plan of that product, with operands on the device, chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from functools import partial
from operator import mul
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hetero.arrays import HOST, Operand
from hetero.errors import DeviceMemoryError, NotPriced
from hetero.ops.products import operands
from hetero.ops.products.operands import build
from hetero.ops.products.tiling import Grid, Index, Rates, Tiling, Times, Visit, fitted, predicted
from hetero.runtime import (
    call_cache,
    failures,
    inventory,
    memory_limit,
    pipeline,
    planner,
    pricing,
    profile,
    registry,
)
from hetero.runtime.pipeline import Load, Slot, Step, Store
from hetero.runtime.plan import Plan
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Implementation, Price

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.runtime.profile import Profile

_ROOM = 0.8  # of a device's memory: its pool rounds sizes up, and others use it too
_LIMIT = 0.95  # of a limit: what computes a tile may take some, too
# Seconds of the host for the whole where threads copy, beside what any call takes; H100, 16 cores.
_CALL = 4e-4
_STEP = 2e-5  # for each copy or product that is begun
_LEAST_MOVED = 16 << 20  # bytes below which a call is over before a pipeline is full
_MOST_TILES = 4096  # more take longer to plan and to begin than the CPU takes for the product


class Lengths(NamedTuple):
    """What tiles are tried.

    Attributes
    ----------
    least, most : int
        Rows, or columns, of a panel; the least where the device has room for it.
    least_bytes : int
        Of a panel.
    batch_bytes : tuple of int
        Of the items of a batch that make one tile.
    most_tiles : int
        Above which none are compared.
    """

    least: int = 256
    most: int = 1 << 20
    least_bytes: int = 4 << 20
    batch_bytes: tuple[int, ...] = (64 << 20, 16 << 20, 4 << 20)
    most_tiles: int = 1024


LENGTHS = Lengths()
_ALIGNED = 16  # bytes that divide the addresses of slots
_MULTIPLE = 128  # rows and columns of the largest tile of a kernel's block


# -- The matrices ----------------------------------------------------------------------------------


class Matrices(NamedTuple):
    """A product as one of stacks of matrices.

    Attributes
    ----------
    batch : tuple of int
    shape : (m, n, k)
    a_batch, b_batch : tuple of bool
        Which batch axes A and B have.
    by_columns : tuple of bool
        Of A, B and C: whether columns are contiguous, and not rows.
    """

    batch: Index
    shape: tuple[int, int, int]
    a_batch: tuple[bool, ...]
    b_batch: tuple[bool, ...]
    by_columns: tuple[bool, ...]


def _missing(problem: Problem) -> tuple[Index, Index, Index]:
    """The axes of a matrix, from the end, that A, B and the result lack."""
    if problem.function == "matvec":
        return (), (-1,), (-1,)
    a, b = (len(o.shape) for o in problem.inputs)
    rows, columns = (-2,) * (a == 1), (-1,) * (b == 1)
    return rows, columns, (*rows, *columns)


def _stacked(array: np.ndarray, missing: Index, ndim: int = 0) -> np.ndarray:
    """A view with the missing axes, and in front with as many more as ``ndim`` asks for."""
    index: list[Any] = [slice(None)] * array.ndim
    for axis in missing:
        index.insert(len(index) + 1 + axis, None)
    return array[(None,) * (ndim - len(index)) + tuple(index)]


def _matrices(problem: Problem) -> Matrices:
    nothing = np.empty(1, problem.dtype)
    laid = [
        _stacked(as_strided(nothing, o.shape, o.strides), missing)
        for o, missing in zip((*problem.inputs, problem.output), _missing(problem), strict=True)
    ]
    a, b, c = laid
    batch = c.shape[:-2]
    has = [tuple(n > 1 for n in ((1,) * (c.ndim - x.ndim) + x.shape)[: len(batch)]) for x in (a, b)]
    by_columns = tuple(
        min(x.shape[-2:]) > 1 and abs(x.strides[-1]) > abs(x.strides[-2]) for x in laid
    )
    return Matrices(batch, (a.shape[-2], b.shape[-1], a.shape[-1]), *has, by_columns)


# -- The tiles -------------------------------------------------------------------------------------


def _grids(found: Matrices, itemsize: int, lengths: Lengths) -> Iterator[Grid]:
    """Ways to cut a product into tiles, few first."""
    batch, (m, n, k), a_batch, b_batch, _ = found

    def grid(items: int, rows: int, columns: int) -> Grid:
        return Grid(batch, (m, n, k), (items, rows, columns), a_batch, b_batch, itemsize)

    a, b, c = grid(1, m, n).panel_bytes
    if batch and batch[-1] > 1 and max(m, n) <= lengths.most:
        each = c + a * a_batch[-1] + b * b_batch[-1]
        wanted = [min(max(size // each, 1), batch[-1]) for size in lengths.batch_bytes]
        yield from (grid(items, m, n) for items in (batch[-1], *wanted) if items > 1)
    rows, columns = _halved(m, k * itemsize, lengths), _halved(n, k * itemsize, lengths)
    for number in range(max(len(rows), len(columns))):
        # Parts of both, or of the rows alone, whose panels and tiles have no gaps.
        for i, j in ((number, number), (number + 1, number), (number, number + 1), (number + 1, 0)):
            yield grid(1, rows[min(i, len(rows) - 1)], columns[min(j, len(columns) - 1)])


def _halved(extent: int, nbytes: int, lengths: Lengths) -> list[int]:
    """Lengths of panels with so many bytes a row or column, the longest first."""
    found = [extent]
    while extent > 1:
        extent = -(-extent // 2)
        length = extent + -extent % _MULTIPLE if extent > _MULTIPLE else extent
        if length < lengths.least or length * nbytes < lengths.least_bytes:
            break
        found.append(length)
    return [length for length in found if length <= lengths.most] or found[-1:]


def _product(grid: Grid, by_columns: tuple[bool, ...], device: str, part: Index) -> Problem:
    """The product of one tile of so many items, rows and columns, on a device."""
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
        By which tilings are compared: copies go on beside the computation.
    times : Times or None
        What a profile promises; None where it does not tell.
    tile : Plan
        Of the product of a whole tile.
    """

    tiling: Tiling
    seconds: float
    times: Times | None
    tile: Plan

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
    beside: str = "",
) -> Choice | None:
    """The fastest way to stream a product that fits so many bytes; None where only more than
    `_MOST_TILES` tiles would.

    Parameters
    ----------
    problem : Problem
    name, info
        The device.
    constants : Profile
    room : float
        Bytes.
    beside : str, optional
        As for `Profile.link`.
    """
    found, itemsize = _matrices(problem), np.dtype(problem.dtype).itemsize
    best: Choice | None = None
    for lengths in (LENGTHS, LENGTHS._replace(least=1, least_bytes=1)):
        since = 0
        for grid in dict.fromkeys(_grids(found, itemsize, lengths)):
            most = _MOST_TILES if best is None else lengths.most_tiles
            if since == 4 or grid.tiles > most:
                break
            ways = fitted(grid, room)
            since += bool(ways)
            for made in ways:
                choice = _timed(problem, made, found, name, info, constants, beside)
                if best is None or choice.seconds < best.seconds:
                    best, since = choice, 0
        if best is not None:
            return best
    return None


def _timed(
    problem: Problem,
    made: Tiling,
    found: Matrices,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    beside: str,
) -> Choice:
    grid = made.grid
    m, n, _ = grid.shape
    part = (
        min(grid.lengths[0], grid.batch[-1] if grid.batch else 1),
        *(min(pair) for pair in zip(grid.lengths[1:], (m, n), strict=True)),
    )
    tile = pricing.price(
        _product(grid, found.by_columns, name, part), constants, {name: info}, name
    )
    seconds = tile.chosen.seconds
    rates = _rates(problem, name, constants, seconds, beside)
    # Tilings are compared as if no copy gained by another one, which many small ones do least.
    whole = predicted(made, (rates or _UNKNOWN)._replace(at_once=True, together=False)).whole
    return Choice(made, whole, rates and predicted(made, rates), tile)


def _rates(
    problem: Problem, name: str, constants: Profile, product: float | None, beside: str
) -> Rates | None:
    """What a profile knows; None where it does not know all."""
    if product is None:
        return None
    moved = [(o, "upload") for o in problem.inputs] + [(problem.output, "download")]
    call = constants.dispatch(name, "host")
    try:
        links = [
            constants.link(name, way, "pinned" if o.pinned else "staged", beside)
            for o, way in moved
        ]
        shared = not problem.output.pinned and not all(o.pinned for o in problem.inputs)
        together = not any(o.pinned for o in problem.inputs)
        return Rates(*links, product, call + _CALL, _STEP, True, shared, together)
    except KeyError:
        pass
    try:  # a byte costs what it costs the plain way, not to gain by mere parts
        seconds = [
            constants.link(name, way, o.memory, beside)(o.nbytes) / o.nbytes for o, way in moved
        ]
    except KeyError:
        return None
    parts = (partial(mul, each) for each in seconds)
    return Rates(*parts, product, call, _STEP, at_once=False)


# -- One call --------------------------------------------------------------------------------------

_choices = call_cache.new_table()


def room(info: dict[str, Any]) -> float:
    """Bytes of a device that panels and tiles may take."""
    most = _ROOM * info["memory_bytes"]
    limit = info.get("memory_limit")
    return most if limit is None else min(most, _LIMIT * limit)


def obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why a product cannot be streamed to a device, None where it can."""
    if any(o.location != HOST for o in (*problem.inputs, problem.output)):
        return "not all operands are on the host"
    return None


def price(
    problem: Problem, name: str, info: dict[str, Any], constants: Profile, beside: str
) -> Price:
    """``price`` of the method's rows."""
    try:
        choice = choose(problem, name, info, constants, room(info), beside)
    except NotPriced:  # a tile
        return Price(None, reason=pricing.UNKNOWN_THERE)
    if choice is None:
        return Price(None, reason="there is no room for tiles of its panels")
    return Price(choice.times and choice.times._asdict(), str(choice))


def stands_in(problem: Problem) -> str | None:
    """Why a product is not considered for tiles, None where it is."""
    moved = sum(o.nbytes for o in (*problem.inputs, problem.output))
    if moved < _LEAST_MOVED:
        return f"moves less than {_LEAST_MOVED >> 20} MiB"
    return None


def _choice(problem: Problem, device: Device, most: float) -> Choice | None:
    """`choose` with this machine's constants, remembered."""
    beside = planner.beside()
    key = problem, device.name, most, beside
    found = _choices.get(key)
    if found is None:
        now = call_cache.generation()
        info = inventory.devices()[device.name]
        found = choose(problem, device.name, info, profile.current(), most, beside)
        call_cache.remember(_choices, key, found, now)
    return found


def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    """``run`` of the method's rows.

    Where the device has less room than it should, half of that is tried, and so on.

    Raises
    ------
    DeviceMemoryError
        Where there is room for not even one tile.
    """
    (device,) = devices
    choice = _choice(problem, device, room(memory_limit.of(device)))
    while choice is not None:
        try:
            with device.active():
                _stream(device, problem, arguments, choice.tiling)
            return
        except DeviceMemoryError as error:
            failures.release(error)
        device.trim()
        choice = _choice(problem, device, choice.tiling.nbytes / 2)
    raise DeviceMemoryError(f"{device.name} has no room for a tile of the product")


def _stream(device: Device, problem: Problem, arguments: Arguments, made: Tiling) -> None:
    """Compute a product with a tiling."""
    slots = [
        pipeline.slots(device, nbytes, number)
        for nbytes, number in zip(made.grid.panel_bytes, made.slots, strict=True)
    ]
    ndim = len(made.grid.batch) + 2
    arrays = [
        _stacked(array, missing, ndim)
        for array, missing in zip(
            (*arguments.inputs, arguments.output), _missing(problem), strict=True
        )
    ]
    by_columns = _matrices(problem).by_columns

    @functools.cache
    def product(*part: int) -> Callable[[Any, Any, Any], object]:
        """``product(items, rows, columns)(a, b, c)`` computes a tile."""
        tile = planner.plan(_product(made.grid, by_columns, device.name, part), device.name)
        row, found = tile.chosen.implementation, tile.problem
        if row.prepare is not None:  # which the host begins sooner
            return row.prepare(device, found, _ALIGNED, None)
        return lambda a, b, c: row.run((device,), found, Arguments((a, b), c))

    visits = made.visits()
    for part in sorted({made.grid.part(visit) for visit in visits}):
        product(*part)  # before anything moves
    step = partial(_step, device, made.grid, by_columns, arrays, slots, product)
    pipeline.run(device, map(step, visits))


def _step(
    device: Device,
    grid: Grid,
    by_columns: tuple[bool, ...],
    arrays: list[np.ndarray],
    slots: list[list[Slot]],
    product: Callable[..., Callable[[Any, Any, Any], object]],
    visit: Visit,
) -> Step:
    """What the pipeline does for a tile."""
    items, rows, columns = grid.lengths
    group, i, j = visit.group, visit.row * rows, visit.column * columns
    batch = [slice(at, at + 1) for at in group]
    if group:
        batch[-1] = slice(group[-1], group[-1] + items)

    def block(array: np.ndarray, has: tuple[bool, ...], *core: slice) -> np.ndarray:
        index = [at if there else slice(0, 1) for at, there in zip(batch, has, strict=True)]
        return array[(*index, *core)]

    a = block(arrays[0], grid.a_batch, slice(i, i + rows), slice(None))
    b = block(arrays[1], grid.b_batch, slice(None), slice(j, j + columns))
    c = block(arrays[2], (True,) * len(group), slice(i, i + rows), slice(j, j + columns))
    a_slot, b_slot, c_slot = slots[0][visit.a], slots[1][visit.b], slots[2][visit.c]
    compute = product(*grid.part(visit))
    a, b, c = (
        np.swapaxes(x, -1, -2) if transposed else x
        for x, transposed in zip((a, b, c), by_columns, strict=True)
    )
    loads = [Load(a, a_slot)] * visit.load_a + [Load(b, b_slot)] * visit.load_b
    return Step(
        partial(compute, a_slot.buffer, b_slot.buffer, c_slot.buffer),
        tuple(loads),
        (Store(c_slot, c),),
        (a_slot, b_slot),
    )


def rows(operation: str) -> list[Implementation]:
    """The method's rows for an operation."""
    return [
        Implementation(
            operation,
            "streamed",
            kind,
            obstacle,
            operands.gpu_work,
            run,
            stands_in=stands_in,
            blocks=registry.ALWAYS,
            price=price,
        )
        for kind in ("cuda", "opencl")
    ]
