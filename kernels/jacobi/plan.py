"""Launch plans of Jacobi sweeps for -div grad u = f: one in a pass over memory, or several.

All are on the buffers "u", "f" and "u_new", or those that they name. ``rows`` are one or two ranges
of rows (planes) of the buffer, none empty.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from ..common.launch import (
    ELEMENT_BYTES,
    REAL,
    VECTOR_BYTES,
    Launch,
    Target,
    ceil_div,
    check_dtype,
)
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
    "sweep",
    "sweeps",
]

# A strip of one sweep reads two rows beside its own, which the L2 cache has, and many short strips
# share out evenly. Strips are shorter where there are fewer threads on a multiprocessor than keep
# it busy. The residual's sums are over pieces of 8 vectors for each of this number of
# threads: their bits are the same on every card.
_THREADS = 128
_STRIP = 8  # most rows
_BUSY_THREADS = 1024  # of a multiprocessor, below which strips are shorter
_AHEAD = {2: 4, 3: 2}  # by dimensions: rows in flight of a thread
_RESIDUAL_THREADS = 128
_PITCH_THREADS = 256
# Several sweeps: their numbers; a block has four warps.
DEPTHS = (2, 4, 6, 8)
_WARP_LANES = 32
_WARP_GROUPS = 4
_PORTABLE_LANES = 64
_DEPTH = {"float32": 6, "float64": 4}  # sweeps of a pass in 2-D
_START_ROWS = 8  # that the start of a walk of several sweeps takes as long as
# By sweeps of a pass: blocks that a multiprocessor is to hold, rows in flight of a warp.
_BLOCKED_SHAPES = {
    "float32": {2: (6, 2), 4: (4, 2), 6: (3, 2), 8: (2, 4)},
    "float64": {2: (6, 2), 4: (3, 4), 6: (2, 3), 8: (2, 4)},
}
# Waves of blocks after which more and shorter strips cannot gain.
_MOST_WAVES = 8


def passes(sweeps: int, depth: int, any_depth: bool = False) -> Iterator[int]:
    """The depths of the passes that make ``sweeps`` sweeps: ``depth``, and what the rest takes.

    ``any_depth``: the rest can be one pass, whatever it is.
    """
    full, rest = divmod(sweeps, depth)
    yield from repeat(depth, full)
    for less in (rest,) * (rest > 0) if any_depth else (*reversed(DEPTHS), 1):
        if less < depth:
            yield from repeat(less, rest // less)
            rest %= less


def default_depth(grid: GridSlab) -> int:
    """How many sweeps a pass should make.

    In 3-D one. In 2-D several pay on large grids, where memory is the limit, and on small ones,
    where it is the launches; but no more than the rows are enough for.
    """
    if grid.dims == 3:
        return 1
    most = min(_DEPTH[grid.dtype], grid.held // 2)
    return max((depth for depth in DEPTHS if depth <= most), default=1)


def sweeps(grid: GridSlab, rows: Ranges, depth: int, target: Target) -> Launch:
    """Plan a pass of ``depth`` sweeps, one or some."""
    if depth == 1:
        return sweep(grid, rows, target)
    return blocked(grid, rows, depth, target)


def sweep(grid: GridSlab, rows: Ranges, target: Target) -> Launch:
    """Plan one sweep over one or two ranges of rows."""
    width = VECTOR_BYTES // check_dtype(grid.dtype)
    threads = min(_THREADS, target.block_limit)
    tiles = ceil_div(grid.lines * (grid.pitch // width), threads)
    total = sum(end - begin for begin, end in rows)
    wanted = ceil_div(target.multiprocessors * _BUSY_THREADS, tiles * threads)
    strip = max(1, min(_STRIP, total // wanted))
    return Launch(
        source="jacobi.cu",
        kernel="jacobi_sweep",
        defines=_defines(grid, threads, target),
        grid=tiles * _strips(rows, strip),
        block=threads,
        arguments=(
            *("u", "f", "u_new", grid.held, grid.lines, grid.columns, grid.pitch),
            *(*two(rows), strip, tiles, *grid.factors()),
        ),
    )


def blocked(grid: GridSlab, rows: Ranges, depth: int, target: Target) -> Launch:
    """Plan several sweeps of a 2-D grid in one pass.

    ``depth`` sweeps, one of `DEPTHS`; as many rows beyond the ranges must be held where the grid
    has them.
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
        source="jacobi_warp.cu" if warps else "jacobi_blocked.cu",
        kernel="jacobi_blocked",
        defines=(
            ("REAL", REAL[grid.dtype]),
            ("VECTOR", width),
            ("DEPTH", depth),
            ("GROUPS", groups),
            ("BLOCKS", blocks),
            ("AHEAD", ahead),
            *(() if warps else (("LANES", lanes),)),
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
        defines=_defines(grid, threads, target),
        grid=chunks * (end - begin),
        block=threads,
        arguments=(
            *("u", "f", "partial", grid.held, grid.lines, grid.columns, grid.pitch),
            *(begin, chunks, *grid.weights()),
        ),
    )


def residual_sums(grid: GridSlab, target: Target) -> int:
    """How many sums `residual` makes of a row (a plane in 3-D)."""
    vectors = grid.lines * (grid.pitch * ELEMENT_BYTES[grid.dtype] // VECTOR_BYTES)
    return ceil_div(vectors, 8 * min(_RESIDUAL_THREADS, target.block_limit))


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


def _defines(grid: GridSlab, threads: int, target: Target) -> tuple[tuple[str, int | str], ...]:
    return (
        ("REAL", REAL[grid.dtype]),
        ("VECTOR", VECTOR_BYTES // ELEMENT_BYTES[grid.dtype]),
        ("DIMS", grid.dims),
        ("THREADS", threads),
        ("AHEAD", _AHEAD[grid.dims]),
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
