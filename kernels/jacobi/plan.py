"""Launch plans of Jacobi's method for -div grad u = f: several sweeps in a pass over the memory.

All are on the buffers "u", "f" and "u_new", or those that they name, of a `GridSlab`; ``rows`` is a
range of its rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from ..common.launch import (
    ELEMENT_BYTES,
    VECTOR_BYTES,
    Launch,
    Target,
    ceil_div,
    check_dtype,
    launch,
)

__all__ = [
    "DEPTHS",
    "GridSlab",
    "blocked",
    "change_pitch",
    "default_depth",
    "passes",
    "residual",
    "residual_sums",
]

# The residual's sums are over pieces of 32 elements for each of this number of threads: their bits
# are the same on every card.
_RESIDUAL_THREADS = 128
_PITCH_THREADS = 256
# Sweeps of a pass; a block has four warps.
DEPTHS = (1, 2, 4, 6)
_WARP_LANES = 32
_WARP_GROUPS = 4
_PORTABLE_LANES = 64
_DEPTH = {"float32": 6, "float64": 4}  # sweeps of a pass in 2-D
_START_ROWS = 8  # that the start of a walk of several sweeps takes as long as
# By sweeps of a pass: blocks that a multiprocessor is to hold, rows in flight of a warp.
_BLOCKED_SHAPES = {
    "float32": {1: (6, 1), 2: (6, 2), 4: (4, 2), 6: (3, 2)},
    "float64": {1: (6, 1), 2: (6, 2), 4: (3, 4), 6: (2, 3)},
}
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
    spacing: tuple[float, float]

    @classmethod
    def of(cls, shape: tuple[int, int], spacing: tuple[float, float], dtype: str) -> GridSlab:
        """A whole grid of ``shape`` points, alone on a device."""
        width = VECTOR_BYTES // check_dtype(dtype)
        pitch = ceil_div(shape[1], width) * width
        return cls(shape[0], 0, shape[0], shape[1], pitch, dtype, tuple(spacing))

    def slab(self, begin: int, held: int) -> GridSlab:
        """``held`` rows of this grid, from row ``begin`` on."""
        return self._replace(held=held, first=self.first - begin, last=self.last - begin)

    @property
    def packed(self) -> bool:
        """Whether one row begins where the one before ends, as in the caller's arrays."""
        return self.pitch == self.columns

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.pitch * ELEMENT_BYTES[self.dtype]

    @property
    def nbytes(self) -> int:
        """Bytes of the buffer."""
        return self.held * self.row_bytes

    def weights(self) -> tuple[float, float]:
        """1 / spacing^2 along rows and columns."""
        along_rows, along_columns = self.spacing
        return 1.0 / along_rows**2, 1.0 / along_columns**2


def passes(sweeps: int, depth: int) -> Iterator[int]:
    """The depths of the passes that make ``sweeps`` sweeps: ``depth``, and what the rest takes."""
    full, rest = divmod(sweeps, depth)
    yield from repeat(depth, full)
    for less in reversed(DEPTHS):
        if less < depth:
            yield from repeat(less, rest // less)
            rest %= less


def default_depth(grid: GridSlab) -> int:
    """How many sweeps a pass should make.

    Several pay on large grids, where memory is the limit, and on small ones, where it is the
    launches; but no more than the rows are enough for.
    """
    most = min(_DEPTH[grid.dtype], grid.held // 2)
    return max(depth for depth in DEPTHS if depth <= max(most, 1))


def blocked(grid: GridSlab, rows: Rows, depth: int, target: Target) -> Launch:
    """Plan a pass of ``depth`` sweeps, one of `DEPTHS`.

    As many rows beyond the range must be held where the grid has them.
    """
    if depth not in DEPTHS:
        raise ValueError(f"depth must be one of {', '.join(map(str, DEPTHS))}, got {depth}")
    warps = target.warps
    width = VECTOR_BYTES // check_dtype(grid.dtype)
    lanes = _WARP_LANES if warps else min(_PORTABLE_LANES, target.block_limit)
    groups = _WARP_GROUPS if warps else 1
    blocks, ahead = _BLOCKED_SHAPES[grid.dtype][depth] if warps else (1, 2)
    skirt = ceil_div(depth, width) * width
    tiles = ceil_div(grid.columns, groups * (lanes * width - 2 * skirt))
    begin, end = rows
    strip = _blocked_strip(end - begin, depth, tiles, target.multiprocessors * blocks)
    along_rows, along_columns = grid.weights()
    diagonal = 2.0 * (along_rows + along_columns)
    where = "jacobi.cu", "jacobi_blocked", grid.dtype, tiles * ceil_div(end - begin, strip)
    numbers = grid.held, grid.first, grid.last, grid.columns, grid.pitch, begin, end, strip, tiles
    factors = along_rows / diagonal, along_columns / diagonal, 1.0 / diagonal
    macros = {"WIDTH": width, "DEPTH": depth, "LANES": lanes, "GROUPS": groups}
    macros |= {"BLOCKS": blocks, "AHEAD": ahead, "WARPS": int(warps)}
    return launch(*where, lanes * groups, ("u", "f", "u_new", *numbers, *factors), **macros)


def residual(grid: GridSlab, rows: Rows, target: Target) -> Launch:
    """Plan the sums of (f - A u)^2 over pieces of each row, in double.

    The pieces, and so the bits of the sums, depend on the grid alone, not on how it is cut into
    slabs. Their total, in any fixed order, is the square of the residual's 2-norm. The buffer
    "partial" has `residual_sums` doubles for each row.
    """
    threads = min(_RESIDUAL_THREADS, target.block_limit)
    chunks = residual_sums(grid, target)
    begin, end = rows
    numbers = grid.held, grid.columns, grid.pitch, begin, chunks, *grid.weights()
    where = "jacobi.cu", "jacobi_residual", grid.dtype, chunks * (end - begin), threads
    macros = {"WIDTH": VECTOR_BYTES // check_dtype(grid.dtype), "LANES": threads, "GROUPS": 1}
    return launch(*where, ("u", "f", "partial", *numbers), **macros)


def residual_sums(grid: GridSlab, target: Target) -> int:
    """How many sums `residual` makes of a row."""
    return ceil_div(grid.pitch, 32 * min(_RESIDUAL_THREADS, target.block_limit))


def change_pitch(grid: GridSlab, source_pitch: int, target_pitch: int, target: Target) -> Launch:
    """Plan copying a grid's rows from one distance to another: buffers "source", "target"."""
    threads = min(_PITCH_THREADS, target.block_limit)
    blocks = min(grid.held * ceil_div(grid.columns, threads), 1 << 16)
    numbers = grid.held, grid.columns, source_pitch, target_pitch, blocks
    where = "pitch.cu", "change_pitch", grid.dtype, blocks, threads
    return launch(*where, ("source", "target", *numbers), THREADS=threads)


def _blocked_strip(rows: int, depth: int, tiles: int, resident: int) -> int:
    """The strip that ends soonest: waves of blocks times the rows that each walks down.

    ``resident`` blocks run at once.
    """
    best, best_time = rows, None
    for strips in range(1, ceil_div(rows, depth) + 1):
        strip = ceil_div(rows, strips)
        waves = ceil_div(tiles * ceil_div(rows, strip), resident)
        time = waves * (strip + 2 * depth + _START_ROWS)
        if best_time is None or time < best_time:
            best, best_time = strip, time
        if waves > _MOST_WAVES:
            break
    return best
