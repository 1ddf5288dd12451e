"""Launch parameters of the multigrid kernels."""

from __future__ import annotations

from typing import NamedTuple

from ..common import tuning as tables
from ..common.launch import ceil_div, check_dtype

__all__ = ["Sweep", "coarse_points", "plan_sweep"]

_COARSE_BYTES = 44 << 10  # of 48 KB of shared memory, for the grids of multigrid_coarse.cu
_HALO = 3  # points around a tile that its own depend on
_PAIRS = 32  # of a window in 3-D


class Sweep(NamedTuple):
    """How multigrid.cu's pass over a grid is launched.

    Attributes
    ----------
    pairs, rows : int
        A block's window is 2 * pairs points wide and so many rows high; its threads are their
        product.
    resident : int
        Blocks that a multiprocessor is to hold: as many as registers allow without spills, where
        points are read in pairs; one less where they are not.
    ahead : int
        Planes by which the cache is told what will be read.
    tile : (z, y, x)
        Most coarse points of a tile along each axis.
    """

    pairs: int
    rows: int
    resident: int
    ahead: int
    tile: tuple[int, int, int]

    def defines(self, aligned: bool) -> tuple[tuple[str, int], ...]:
        """Macros; ``aligned``: rows begin at addresses that two elements divide."""
        return (
            ("PAIRS", self.pairs),
            ("ROWS", self.rows),
            ("RESIDENT", self.resident if aligned else max(self.resident - 1, 1)),
            ("AHEAD", self.ahead),
            ("ALIGNED", int(aligned)),
        )


def coarse_points(dtype: str, shared_limit: int) -> int:
    """Points that the grids of multigrid_coarse.cu may have together."""
    return min(_COARSE_BYTES, shared_limit) // check_dtype(dtype)


def plan_sweep(
    shape: tuple[int, int, int],
    coarse: tuple[int, int, int],
    dtype: str,
    multiprocessors: int,
    block_limit: int,
    tuning: tables.Table | None = None,
) -> Sweep:
    """Choose a window and tiles for passes between a grid and the next coarser one.

    Parameters
    ----------
    shape, coarse : (nz, ny, nx)
        Points of each axis; ny = 1 in 2-D.
    dtype : str
        "float32" or "float64".
    multiprocessors, block_limit : int
        Of the device.
    tuning : Table, optional
        The figures that windows are chosen by. Default: `hetero.kernels.common.tuning.default`.
    """
    check_dtype(dtype)
    tuning = tuning or tables.default()
    flat = shape[1] == 1
    if flat:
        pairs, rows, resident = tuning["multigrid.pairs"], 1, tuning["multigrid.resident"][dtype]
    else:
        pairs, rows, resident = _PAIRS, tuning["multigrid.window_rows"][dtype], 1
    if pairs * rows > block_limit:
        pairs, rows = (block_limit, 1) if flat else (16, 16)
    # A window holds a tile with its halo and, along x, what it takes to begin at an even point. A
    # coarsened axis has up to two fine points between coarse ones, and as many before the first.
    x = pairs - _HALO - 2 if coarse[2] < shape[2] else pairs
    y = 1
    if not flat:
        y = rows // 2 - _HALO - 1 if coarse[1] < shape[1] else rows - 2 * _HALO - 1
    across = ceil_div(coarse[1], y) * ceil_div(coarse[2], x)
    z = tuning["multigrid.most_planes"]
    enough = tuning["multigrid.blocks"] * multiprocessors
    while z > tuning["multigrid.least_planes"] and across * ceil_div(coarse[0], z) < enough:
        z //= 2
    return Sweep(pairs, rows, resident, tuning["multigrid.ahead"] if flat else 0, (z, y, x))
