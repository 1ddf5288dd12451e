"""Launch plans of several Jacobi sweeps in one pass over memory."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat

from ..common import tuning as tables
from ..common.launch import REAL, VECTOR_BYTES, Launch, ceil_div, check_dtype
from .grid_slab import GridSlab, Ranges, two

__all__ = ["DEPTHS", "blocked", "default_depth", "passes"]

# Several sweeps: their numbers; a block has four warps.
DEPTHS = (2, 4, 6, 8)
_WARP_LANES = 32
_WARP_GROUPS = 4
_PORTABLE_LANES = 64
# Waves of blocks after which more and shorter strips cannot gain.
_MOST_WAVES = 8


def passes(sweeps: int, depth: int) -> Iterator[int]:
    """The depths of the passes that make ``sweeps`` sweeps: ``depth``, and what the rest takes."""
    full, rest = divmod(sweeps, depth)
    yield from repeat(depth, full)
    for less in (*reversed(DEPTHS), 1):
        if less < depth:
            yield from repeat(less, rest // less)
            rest %= less


def default_depth(grid: GridSlab, tuning: tables.Table | None = None) -> int:
    """How many sweeps a pass should make.

    In 3-D one. In 2-D several pay on large grids, where memory is the limit, and on small ones,
    where it is the launches; but no more than the rows are enough for.
    """
    if grid.dims == 3:
        return 1
    most = min((tuning or tables.default())["jacobi.depth"][grid.dtype], grid.held // 2)
    return max((depth for depth in DEPTHS if depth <= most), default=1)


def blocked(
    grid: GridSlab,
    rows: Ranges,
    depth: int,
    *,
    warps: bool,
    multiprocessors: int,
    block_limit: int = 1024,
    strip: int | None = None,
    tuning: tables.Table | None = None,
) -> Launch:
    """Plan several sweeps of a 2-D grid in one pass.

    Parameters
    ----------
    grid, rows, multiprocessors, block_limit, strip
        As for `hetero.kernels.jacobi.plan.sweep`; ``depth`` rows beyond the ranges must be held
        where the grid has them.
    depth : int
        Sweeps, one of `DEPTHS`.
    warps : bool
        Whether the device is NVIDIA's, whose lanes exchange through registers.

    Returns
    -------
    Launch
        On the buffers ``"u"``, ``"f"`` and ``"u_new"``.
    """
    if grid.dims != 2 or depth not in DEPTHS:
        valid = ", ".join(map(str, DEPTHS))
        raise ValueError(f"depth must be one of {valid} in 2-D, got {depth} in {grid.dims}-D")
    width = VECTOR_BYTES // check_dtype(grid.dtype)
    lanes = _WARP_LANES if warps else min(_PORTABLE_LANES, block_limit)
    groups = _WARP_GROUPS if warps else 1
    tuning = tuning or tables.default()
    shape = tuning["jacobi.blocked_shapes"][grid.dtype][str(depth)]
    blocks, ahead = shape if warps else (1, 2)
    skirt = ceil_div(depth, width) * width
    tiles = ceil_div(grid.columns, groups * (lanes * width - 2 * skirt))
    if strip is None:
        strip = _blocked_strip(rows, depth, tiles, multiprocessors * blocks, tuning)
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
        grid=tiles * sum(ceil_div(end - begin, strip) for begin, end in rows),
        block=lanes * groups,
        arguments=(
            "u",
            "f",
            "u_new",
            grid.held,
            grid.first,
            grid.last,
            grid.columns,
            grid.pitch,
            *two(rows),
            strip,
            tiles,
            *(factor for at, factor in enumerate(grid.factors()) if at != 1),
        ),
    )


def _blocked_strip(
    rows: Ranges, depth: int, tiles: int, resident: int, tuning: tables.Table
) -> int:
    """The strip that ends soonest: waves of blocks times the rows that each walks down.

    ``resident`` blocks run at once. A launch that is a small share of a sweep (the rows beside a
    neighbour) has short strips for short latency.
    """
    longest = max(end - begin for begin, end in rows)
    best, best_time = longest, None
    for strips in range(1, ceil_div(longest, depth) + 1):
        strip = ceil_div(longest, strips)
        blocks = tiles * sum(ceil_div(end - begin, strip) for begin, end in rows)
        waves = ceil_div(blocks, resident)
        time = waves * (strip + 2 * depth + tuning["jacobi.start_rows"])
        if best_time is None or time < best_time:
            best, best_time = strip, time
        if waves > _MOST_WAVES:
            break
    return best
