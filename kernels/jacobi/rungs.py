"""Launch plans of the steps of the way to this family's best kernels: sequential to shared."""

from __future__ import annotations

from ..common.launch import REAL, Launch, ceil_div, check_dtype
from ..common.rungs import Rung
from .plan import GridSlab

__all__ = ["RUNGS", "legal", "sweep_rung"]

RUNGS = {
    "sequential": Rung(1, "one thread for all points", "the method is right"),
    "naive": Rung(2, "a thread for each point", "all multiprocessors work"),
    "shared": Rung(
        3,
        "a tile and the points around it go to shared memory",
        "a point is asked for once for a tile, not once for each neighbour; caches did that",
    ),
}
_BLOCKS = ((32, 8), (32, 4), (32, 2), (32, 1))  # the first that a device takes
_SHARED_BYTES = 48 << 10
_WARP = 32


def legal(
    rung: str, dtype: str, *, block_limit: int, shared_limit: int
) -> tuple[tuple[int, int], ...]:
    """Every shape of a block that a rung can be launched with, as (x, y): powers of two."""
    if rung == "sequential":
        return ((1, 1),)
    powers = [1 << i for i in range(block_limit.bit_length())]
    most = min(shared_limit, _SHARED_BYTES) // check_dtype(dtype)
    return tuple(
        (x, y)
        for x in powers[2:]
        for y in powers
        if _WARP <= x * y <= block_limit and (rung == "naive" or (x + 2) * (y + 2) <= most)
    )


def sweep_rung(
    rung: str,
    grid: GridSlab,
    *,
    block_limit: int = 1024,
    shared_limit: int = _SHARED_BYTES,
    block: tuple[int, int] | None = None,
) -> Launch:
    """Plan one sweep over a whole grid by one of `RUNGS`.

    Parameters
    ----------
    rung : str
    grid : GridSlab
        Alone on its device.
    block_limit, shared_limit : int
        Most threads the device takes in a block, and bytes of shared memory that one can have.
    block : (int, int), optional
        Threads of a block, along a line and across. Default: the rung's own.

    Returns
    -------
    Launch
        On the buffers ``"u"``, ``"f"`` and ``"u_new"``.
    """
    shapes = legal(rung, grid.dtype, block_limit=block_limit, shared_limit=shared_limit)
    if block is None:
        block = next(shape for shape in (*_BLOCKS, (1, 1)) if shape in shapes)
    elif block not in shapes:
        raise ValueError(f"block must be one of {shapes}, got {block}")
    x, y = block
    across = ceil_div(grid.columns, x)
    down = ceil_div(grid.held if grid.dims == 2 else grid.lines, y)
    blocks = across * down * (1 if grid.dims == 2 else grid.held)
    defines: tuple[tuple[str, int | str], ...] = (("REAL", REAL[grid.dtype]), ("DIMS", grid.dims))
    if block not in ((1, 1), _BLOCKS[0]):
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
