"""Launch plans of the steps of the way to this family's best kernels: sequential to shared."""

from __future__ import annotations

from functools import partial

from ..common.launch import Launch, ceil_div
from ..common.rungs import Ladder, Rung
from ..procedure.card import Card
from ..procedure.derive import Shape
from .grid_slab import GridSlab

__all__ = ["CPU_RUNGS", "RUNGS", "Shape", "sweep_rung"]

_tile = partial(Rung, shape=Shape(32, 8), tile=lambda x, y, elements: (x, y))
RUNGS = Ladder(
    "jacobi",
    {
        "sequential": Rung("one thread for all points", "the method is right", "Jensen 2017, 2.2"),
        "naive": _tile("a thread for each point", "all multiprocessors work", "Jensen 2017, 2.2"),
        "shared": _tile(
            "a tile and the points around it go to shared memory",
            "a point is asked for once for a tile, not once for each neighbour; caches did that",
            "Jensen 2017, 2.2, improvements",
            shared=lambda shape, item: (shape.x + 2) * (shape.y + 2) * item,
        ),
    },
)
CPU_RUNGS = Ladder(
    "jacobi",
    {
        "sequential": Rung("one point after another", "the method is right"),
        "parallel": Rung(
            "a range of rows for each thread", "up to the memory's bandwidth", threads=True
        ),
    },
)


def sweep_rung(rung: str, grid: GridSlab, *, card: Card, shape: Shape | None = None) -> Launch:
    """Plan one sweep over a whole grid by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    grid : GridSlab
        Alone on its device.
    card : Card
        The device.
    shape : Shape, optional
        Threads of a block, along a line and across; one of `Ladder.shapes`. Default: the rung's
        own.

    Returns
    -------
    Launch
        On the buffers ``"u"``, ``"f"`` and ``"u_new"``.
    """
    shape = RUNGS.chosen(rung, grid.dtype, (), card, shape)
    dims = "DIMS", grid.dims
    extents = grid.held, grid.lines, grid.columns, grid.pitch
    planes, lines = (1, grid.held) if grid.dims == 2 else (grid.held, grid.lines)
    tiles = ceil_div(grid.columns, shape.x), ceil_div(lines, shape.y)
    arguments = ("u", "f", "u_new", *extents, *tiles, *grid.factors())
    results = planes, lines, grid.columns
    return RUNGS.launch(rung, shape, grid.dtype, results, arguments, dims)
