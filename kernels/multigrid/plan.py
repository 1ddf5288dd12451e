"""Launch parameters of the multigrid kernels."""

from __future__ import annotations

import math
from typing import NamedTuple

from ..common.launch import REAL, Launch, Target, ceil_div, check_dtype, launch

__all__ = [
    "DOWN",
    "DOWN_FROM_ZERO",
    "HALO",
    "TABLES",
    "UP",
    "UP_WITH_SQUARES",
    "Sweep",
    "coarse_points",
    "plan_sweep",
]

DOWN, DOWN_FROM_ZERO, UP, UP_WITH_SQUARES = range(4)  # modes of a pass, as in multigrid.cu
# Buffers of a pass with what it must know of each axis: fields of `transfers.Transfer`.
TABLES = (
    *(f"{axis} {field}" for axis in "zyx" for field in ("left", "weight")),
    *(f"{axis} {field}" for axis in "yx" for field in ("first", "taps")),
)

_COARSE_BYTES = 44 << 10  # of 48 KB of shared memory, for the grids of multigrid_coarse.cu
HALO = 3  # points around a tile that its own depend on
# A window in 2-D: pairs of points, blocks that a multiprocessor is to hold, rows to prefetch.
_FLAT_PAIRS = 128
_FLAT_RESIDENT = {"float32": 8, "float64": 5}
_FLAT_AHEAD = 4
# In 3-D: pairs of points and rows; coarse planes of a tile, fewer where a multiprocessor would have
# less than `_BLOCKS`.
_PAIRS = 32
_WINDOW_ROWS = {"float32": 28, "float64": 20}
_MOST_PLANES, _LEAST_PLANES = 32, 4
_BLOCKS = 4


class Sweep(NamedTuple):
    """How multigrid.cu's pass over a grid is launched.

    A block's window is 2 * pairs points wide and ``rows`` high; its threads are pairs * rows. A
    multiprocessor is to hold ``resident`` blocks: as many as registers allow without spills, where
    points are read in pairs; one less where they are not.
    """

    shape: tuple[int, int, int]  # points of each axis, (nz, ny, nx)
    coarse: tuple[int, int, int]  # those of the next coarser grid
    dtype: str
    pairs: int
    rows: int
    resident: int
    ahead: int  # planes that are prefetched
    tile: tuple[int, int, int]  # most coarse points of a tile along each axis

    def launch(
        self,
        weights: tuple[float, float, float],
        tiles: tuple[int, int, int],
        omega: float,
        aligned: bool,
        first: int,
        mode: int,
    ) -> Launch:
        """A pass with 1 / spacing^2 along each axis, and that many tiles along each.

        ``aligned``: rows begin at addresses that two elements divide.

        Buffers: "u", "f", "out", "coarse", "sums" (8 bytes a tile), the axes' tiles "z", "y", "x",
        and `TABLES`.
        """
        diagonal = 2.0 * sum(weights)
        box = (*self.shape, *weights, diagonal, 1.0 / diagonal, omega)
        macros = {"REAL2": f"{REAL[self.dtype]}2", "PAIRS": self.pairs, "ROWS": self.rows}
        macros |= {"AHEAD": self.ahead, "ALIGNED": int(aligned), "MODE": mode, "FIRST": first}
        macros["RESIDENT"] = self.resident if aligned else max(self.resident - 1, 1)
        where = "multigrid.cu", "sweep", self.dtype, math.prod(tiles), self.pairs * self.rows
        grids = *self.coarse, "z", "y", "x", *tiles[1:], *TABLES
        return launch(*where, ("u", "f", "out", "coarse", "sums", *box, *grids), **macros)


def coarse_points(dtype: str, shared_limit: int) -> int:
    """Points that the grids of multigrid_coarse.cu may have together."""
    return min(_COARSE_BYTES, shared_limit) // check_dtype(dtype)


def plan_sweep(
    shape: tuple[int, int, int], coarse: tuple[int, int, int], dtype: str, target: Target
) -> Sweep:
    """Choose a window and tiles for passes between a grid and the next coarser one.

    Both have (nz, ny, nx) points, with ny = 1 in 2-D.
    """
    check_dtype(dtype)
    flat = shape[1] == 1
    if flat:
        pairs, rows, resident = _FLAT_PAIRS, 1, _FLAT_RESIDENT[dtype]
    else:
        pairs, rows, resident = _PAIRS, _WINDOW_ROWS[dtype], 1
    if pairs * rows > target.block_limit:
        pairs, rows = (target.block_limit, 1) if flat else (16, 16)
    # A window holds a tile with its halo and, along x, what it takes to begin at an even point. A
    # coarsened axis has up to two fine points between coarse ones, and as many before the first.
    x = pairs - HALO - 2 if coarse[2] < shape[2] else pairs
    y = 1
    if not flat:
        y = rows // 2 - HALO - 1 if coarse[1] < shape[1] else rows - 2 * HALO - 1
    across = ceil_div(coarse[1], y) * ceil_div(coarse[2], x)
    z = _MOST_PLANES
    enough = _BLOCKS * target.multiprocessors
    while z > _LEAST_PLANES and across * ceil_div(coarse[0], z) < enough:
        z //= 2
    ahead = _FLAT_AHEAD if flat else 0
    return Sweep(shape, coarse, dtype, pairs, rows, resident, ahead, (z, y, x))
