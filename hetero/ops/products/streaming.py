"""method="streamed": a product of host arrays in tiles that move while others are computed.

What computes a tile is what the plan of that product, with operands on the device, chooses.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.blocks.streamed import Streamed
from hetero.calling import planner
from hetero.moving import pipeline, results
from hetero.moving.pipeline import Load, Slot, Step, Store
from hetero.ops.products import operands
from hetero.ops.products.matrices import matrices_of
from hetero.ops.products.tile_choice import Choice, choose, tile_problem
from hetero.ops.products.tiling import Grid, Visit
from hetero.registry import Arguments, Implementation
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

_LIMIT = 0.95  # of a limit: a tile's method may allocate memory, too
_ALIGNED = 16  # bytes that divide the addresses of slots


def compute(device: Device, problem: Problem, arguments: Arguments, choice: Choice) -> None:
    """Compute a product with a tiling; the device is active."""
    made = choice.tiling
    slots = [
        pipeline.slots(device, nbytes, number)
        for nbytes, number in zip(made.grid.panel_bytes, made.slots, strict=True)
    ]
    ndim = len(made.grid.batch) + 2
    arrays = [
        array[(None,) * (ndim - array.ndim)] for array in (*arguments.inputs, arguments.output)
    ]
    by_columns = matrices_of(problem).by_columns

    @functools.cache
    def product(*part: int) -> Callable[[Any, Any, Any], object]:
        """``product(items, rows, columns)(a, b, c)`` computes a tile."""
        tile = planner.plan(tile_problem(made.grid, by_columns, device.name, part), device.name)
        row, product_of_tile = tile.chosen.implementation, tile.problem
        if row.prepare is not None:  # launches with less overhead
            multiply = row.prepare(device, product_of_tile, _ALIGNED, None)
        else:
            multiply = _unprepared(row, device, product_of_tile)
        if (look := results.look.get()) is None:
            return multiply
        seen = product_of_tile.dtype, product_of_tile.output.size

        def multiply_and_look(a: Any, b: Any, c: Any) -> None:
            multiply(a, b, c)
            look(device, seen[0], c, seen[1])

        return multiply_and_look

    visits = made.visits()
    for part in sorted({made.grid.part(visit) for visit in visits}):
        product(*part)  # before anything moves
    step = partial(_step, device, made.grid, by_columns, arrays, slots, product)
    pipeline.run(device, map(step, visits))


def _unprepared(row: Implementation, device: Device, problem: Problem) -> Callable[..., Any]:
    return lambda a, b, c: row.run((device,), problem, Arguments((a, b), c))


def _step(
    device: Device,
    grid: Grid,
    by_columns: tuple[bool, ...],
    arrays: list[np.ndarray],
    slots: list[list[Slot]],
    product: Callable[..., Callable[[Any, Any, Any], object]],
    visit: Visit,
) -> Step:
    """The pipeline's step for a tile."""
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


_streamed = Streamed(choose, compute, "tiles of its panels", limited=_LIMIT)


def register(operation: str) -> None:
    """Add the method's rows for an operation."""
    registry.register_method(
        operation=operation,
        method="streamed",
        kinds=registry.PORTABLE,
        excludes=pipeline.obstacle,
        work=operands.gpu_work,
        run=_streamed.run,
        blocks=registry.ALWAYS,
        price=_streamed.price,
    )
