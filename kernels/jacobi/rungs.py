"""Launch plans of the steps of the way to this family's best kernels: sequential to shared."""

from __future__ import annotations

from functools import lru_cache

from ..common.launch import REAL, Launch, ceil_div, check_dtype
from ..common.rungs import Rung
from ..procedure.card import Card
from ..procedure.derive import Shape
from .grid_slab import GridSlab

__all__ = ["CPU_RUNGS", "RUNGS", "Shape", "chosen", "shapes", "sweep_rung"]

RUNGS = {
    "sequential": Rung(1, "one thread for all points", "the method is right"),
    "naive": Rung(2, "a thread for each point", "all multiprocessors work"),
    "shared": Rung(
        3,
        "a tile and the points around it go to shared memory",
        "a point is asked for once for a tile, not once for each neighbour; caches did that",
    ),
}
CPU_RUNGS = {
    "sequential": Rung(1, "one point after another", "the method is right"),
    "parallel": Rung(2, "a range of rows for each thread", "up to the memory's bandwidth", True),
}
_SHAPE = Shape(32, 8)
_STATIC_BYTES = 48 << 10  # of an array in shared memory whose size is in the source


@lru_cache(maxsize=256)
def shapes(rung: str, dtype: str, card: Card) -> tuple[Shape, ...]:
    """Every shape of a block that a rung can be launched with; powers of two."""
    if rung == "sequential":
        return (Shape(1, 1),)
    item, most = check_dtype(dtype), min(card.block_shared, _STATIC_BYTES)
    powers = [1 << i for i in range(card.block_threads.bit_length())]
    return tuple(
        Shape(x, y)
        for x in powers
        for y in powers
        if card.warp <= x * y <= card.block_threads
        and (rung == "naive" or (x + 2) * (y + 2) * item <= most)
    )


def chosen(rung: str, dtype: str, card: Card) -> Shape:
    """The shape of a rung unless one is given: its own, or the next smaller."""
    there = shapes(rung, dtype, card)
    return max((s for s in there if s <= _SHAPE), default=there[0])


def sweep_rung(
    rung: str,
    grid: GridSlab,
    *,
    card: Card,
    shape: Shape | None = None,
) -> Launch:
    """Plan one sweep over a whole grid by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    grid : GridSlab
        Alone on its device.
    card : Card
        The device.
    shape : Shape, optional
        Threads of a block, along a line and across; one of `shapes`. Default: the rung's own.

    Returns
    -------
    Launch
        On the buffers ``"u"``, ``"f"`` and ``"u_new"``.
    """
    if shape is None:
        shape = chosen(rung, grid.dtype, card)
    elif shape not in (there := shapes(rung, grid.dtype, card)):
        valid = ", ".join(f"{one.x}x{one.y}" for one in there)
        raise ValueError(f"shape must be one of {valid}, got {shape[0]}x{shape[1]}")
    x, y, _ = shape
    across = ceil_div(grid.columns, x)
    down = ceil_div(grid.held if grid.dims == 2 else grid.lines, y)
    blocks = across * down * (1 if grid.dims == 2 else grid.held)
    defines: tuple[tuple[str, int | str], ...] = (("REAL", REAL[grid.dtype]), ("DIMS", grid.dims))
    if shape not in ((1, 1, 1), _SHAPE):
        defines = (*defines, ("BX", x), ("BY", y))
    return Launch(
        source="jacobi_rungs.cu",
        kernel=f"jacobi_{rung}",
        defines=defines,
        grid=1 if rung == "sequential" else blocks,
        block=x * y,
        arguments=(
            *("u", "f", "u_new", grid.held, grid.lines, grid.columns, grid.pitch),
            *(across, down, *grid.factors()),
        ),
    )
