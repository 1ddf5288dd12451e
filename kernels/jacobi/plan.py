"""Launch plans of Jacobi's method for -div grad u = f: several sweeps in a pass over the memory.

All are on the buffers "u", "f" and "u_new", or those that they name, of a `GridSlab`; ``rows`` is a
range of its rows.
"""

from __future__ import annotations

from typing import NamedTuple

from ..common.launch import ELEMENT_BYTES, VECTOR_BYTES, Launch, Target, ceil_div, launch

_PITCH_THREADS = 256
# Sweeps of a pass, where it is not a single one; a block has four warps.
DEPTH = {"float32": 6, "float64": 4}
_WARP_LANES = 32
_WARP_GROUPS = 4
_PORTABLE_LANES = 64
_START_ROWS = 8  # that the start of a walk of several sweeps takes as long as
# Blocks that a multiprocessor is to hold, rows in flight of a warp: for one sweep and for `DEPTH`.
_BLOCKED_SHAPES = {"float32": ((6, 1), (3, 2)), "float64": ((6, 1), (3, 4))}
# Waves of blocks after which more and shorter strips cannot gain.
_MOST_WAVES = 8

Rows = tuple[int, int]  # the first, and the one after the last


class GridSlab(NamedTuple):
    """Rows of a 2-D grid as they lie in a buffer of a device."""

    held: int  # rows in the buffer
    first: int  # where the grid begins and ends, in rows of the buffer: 0 and `held`,
    last: int  # or beyond them where the slab has neighbours
    columns: int  # points of a row
    pitch: int  # elements from one row to the next, a multiple of those in 16 bytes
    dtype: str
    weights: tuple[float, float]  # 1 / spacing^2 along rows and columns

    @classmethod
    def of(cls, shape: tuple[int, int], spacing: tuple[float, float], dtype: str) -> GridSlab:
        """A whole grid of ``shape`` points, alone on a device."""
        width = VECTOR_BYTES // ELEMENT_BYTES[dtype]
        pitch, (along_rows, along_columns) = ceil_div(shape[1], width) * width, spacing
        weights = 1.0 / along_rows**2, 1.0 / along_columns**2
        return cls(shape[0], 0, shape[0], shape[1], pitch, dtype, weights)

    def slab(self, begin: int, held: int) -> GridSlab:
        """``held`` rows of this grid, from row ``begin`` on."""
        return self._replace(held=held, first=self.first - begin, last=self.last - begin)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.pitch * ELEMENT_BYTES[self.dtype]


def default_depth(grid: GridSlab) -> int:
    """How many sweeps a pass should make: several pay on large grids, where memory is the limit,
    and on small ones, where it is the launches, if the rows are enough."""
    depth = DEPTH[grid.dtype]
    return depth if grid.held >= 2 * depth else 1


def blocked(grid: GridSlab, rows: Rows, depth: int, target: Target) -> Launch:
    """Plan a pass of ``depth`` sweeps, 1 or `DEPTH`.

    As many rows beyond the range must be held where the grid has them.
    """
    warps = target.warps
    width = VECTOR_BYTES // ELEMENT_BYTES[grid.dtype]
    lanes = _WARP_LANES if warps else min(_PORTABLE_LANES, target.block_limit)
    groups = _WARP_GROUPS if warps else 1
    blocks, ahead = _BLOCKED_SHAPES[grid.dtype][depth > 1] if warps else (1, 2)
    skirt = ceil_div(depth, width) * width
    tiles = ceil_div(grid.columns, groups * (lanes * width - 2 * skirt))
    begin, end = rows
    number, resident = end - begin, target.multiprocessors * blocks

    def time(strip: int) -> int:
        """Waves of blocks times the rows that each walks down."""
        waves = ceil_div(tiles * ceil_div(number, strip), resident)
        return waves * (strip + 2 * depth + _START_ROWS)

    most = min(ceil_div(number, depth), _MOST_WAVES * resident // tiles)
    strip = min((ceil_div(number, strips) for strips in range(1, max(most, 1) + 1)), key=time)
    diagonal = 2.0 * sum(grid.weights)
    where = "jacobi.cu", "jacobi_blocked", grid.dtype, tiles * ceil_div(number, strip)
    numbers = grid.held, grid.first, grid.last, grid.columns, grid.pitch, begin, end, strip, tiles
    factors = *(weight / diagonal for weight in grid.weights), 1.0 / diagonal
    macros = {"WIDTH": width, "DEPTH": depth, "LANES": lanes, "GROUPS": groups}
    macros |= {"BLOCKS": blocks, "AHEAD": ahead, "WARPS": int(warps)}
    return launch(*where, lanes * groups, ("u", "f", "u_new", *numbers, *factors), **macros)


def change_pitch(grid: GridSlab, source_pitch: int, target_pitch: int, target: Target) -> Launch:
    """Plan copying a grid's rows from one distance to another: buffers "source", "target"."""
    threads = min(_PITCH_THREADS, target.block_limit)
    blocks = min(grid.held * ceil_div(grid.columns, threads), 1 << 16)
    numbers = grid.held, grid.columns, source_pitch, target_pitch, blocks
    where = "pitch.cu", "change_pitch", grid.dtype, blocks, threads
    return launch(*where, ("source", "target", *numbers), THREADS=threads)
