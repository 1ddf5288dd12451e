"""Launch plans of Jacobi's method for -div grad u = f: several sweeps in a pass over the memory.

All are on the buffers "u", "f" and "u_new", or those that they name. ``rows`` are one or two ranges
of rows of the buffer, none empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from ..common.launch import REAL, VECTOR_BYTES, Launch, Target, ceil_div, check_dtype
from .grid_slab import GridSlab, Ranges, two

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
DEPTHS = (1, 2, 4, 6, 8)
_WARP_LANES = 32
_WARP_GROUPS = 4
_PORTABLE_LANES = 64
_DEPTH = {"float32": 6, "float64": 4}  # sweeps of a pass in 2-D
_START_ROWS = 8  # that the start of a walk of several sweeps takes as long as
# By sweeps of a pass: blocks that a multiprocessor is to hold, rows in flight of a warp.
_BLOCKED_SHAPES = {
    "float32": {1: (6, 1), 2: (6, 2), 4: (4, 2), 6: (3, 2), 8: (2, 4)},
    "float64": {1: (6, 1), 2: (6, 2), 4: (3, 4), 6: (2, 3), 8: (2, 4)},
}
# Waves of blocks after which more and shorter strips cannot gain.
_MOST_WAVES = 8


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


def blocked(grid: GridSlab, rows: Ranges, depth: int, target: Target) -> Launch:
    """Plan a pass of ``depth`` sweeps over a 2-D grid, one of `DEPTHS`.

    As many rows beyond the ranges must be held where the grid has them.
    """
    if grid.dims != 2 or depth not in DEPTHS:
        valid = ", ".join(map(str, DEPTHS))
        raise ValueError(f"depth must be one of {valid} in 2-D, got {depth} in {grid.dims}-D")
    warps = target.warps
    width = VECTOR_BYTES // check_dtype(grid.dtype)
    lanes = _WARP_LANES if warps else min(_PORTABLE_LANES, target.block_limit)
    groups = _WARP_GROUPS if warps else 1
    blocks, ahead = _BLOCKED_SHAPES[grid.dtype][depth] if warps else (1, 2)
    skirt = ceil_div(depth, width) * width
    tiles = ceil_div(grid.columns, groups * (lanes * width - 2 * skirt))
    strip = _blocked_strip(rows, depth, tiles, target.multiprocessors * blocks)
    return Launch(
        source="jacobi.cu",
        kernel="jacobi_blocked",
        defines=(
            ("REAL", REAL[grid.dtype]),
            ("WIDTH", width),
            ("DEPTH", depth),
            ("LANES", lanes),
            ("GROUPS", groups),
            ("BLOCKS", blocks),
            ("AHEAD", ahead),
            *((("WARPS", 1),) if warps else ()),
        ),
        grid=tiles * _strips(rows, strip),
        block=lanes * groups,
        arguments=(
            *("u", "f", "u_new", grid.held, grid.first, grid.last, grid.columns, grid.pitch),
            *(*two(rows), strip, tiles),
            *(factor for at, factor in enumerate(grid.factors()) if at != 1),
        ),
    )


def residual(grid: GridSlab, rows: tuple[int, int], target: Target) -> Launch:
    """Plan the sums of (f - A u)^2 over pieces of each row, in double.

    The pieces, and so the bits of the sums, depend on the grid alone, not on how it is cut into
    slabs. Their total, in any fixed order, is the square of the residual's 2-norm. The buffer
    "partial" has `residual_sums` doubles for each row.
    """
    threads = min(_RESIDUAL_THREADS, target.block_limit)
    chunks = residual_sums(grid, target)
    begin, end = rows
    return Launch(
        source="jacobi.cu",
        kernel="jacobi_residual",
        defines=(
            ("REAL", REAL[grid.dtype]),
            ("WIDTH", VECTOR_BYTES // check_dtype(grid.dtype)),
            ("LANES", threads),
        ),
        grid=chunks * (end - begin),
        block=threads,
        arguments=(
            *("u", "f", "partial", grid.held, grid.lines, grid.columns, grid.pitch),
            *(begin, chunks, *grid.weights()),
        ),
    )


def residual_sums(grid: GridSlab, target: Target) -> int:
    """How many sums `residual` makes of a row (a plane in 3-D)."""
    return ceil_div(grid.lines * grid.pitch, 32 * min(_RESIDUAL_THREADS, target.block_limit))


def change_pitch(grid: GridSlab, source_pitch: int, target_pitch: int, target: Target) -> Launch:
    """Plan copying a grid's lines from one distance to another: buffers "source", "target"."""
    threads = min(_PITCH_THREADS, target.block_limit)
    lines = grid.held * grid.lines
    blocks = min(lines * ceil_div(grid.columns, threads), 1 << 16)
    return Launch(
        source="pitch.cu",
        kernel="change_pitch",
        defines=(("REAL", REAL[grid.dtype]), ("THREADS", threads)),
        grid=blocks,
        block=threads,
        arguments=("source", "target", lines, grid.columns, source_pitch, target_pitch, blocks),
    )


def _strips(rows: Ranges, strip: int) -> int:
    """Strips of that many rows that ranges are cut into."""
    return sum(ceil_div(end - begin, strip) for begin, end in rows)


def _blocked_strip(rows: Ranges, depth: int, tiles: int, resident: int) -> int:
    """The strip that ends soonest: waves of blocks times the rows that each walks down.

    ``resident`` blocks run at once. A launch that is a small share of a sweep (the rows beside a
    neighbour) has short strips for short latency.
    """
    longest = max(end - begin for begin, end in rows)
    best, best_time = longest, None
    for strips in range(1, ceil_div(longest, depth) + 1):
        strip = ceil_div(longest, strips)
        waves = ceil_div(tiles * _strips(rows, strip), resident)
        time = waves * (strip + 2 * depth + _START_ROWS)
        if best_time is None or time < best_time:
            best, best_time = strip, time
        if waves > _MOST_WAVES:
            break
    return best
