"""Launch plans of Jacobi sweeps for -div grad u = f."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import repeat
from typing import NamedTuple

from ..common import tuning as tables
from ..common.launch import ELEMENT_BYTES, REAL, VECTOR_BYTES, Launch, ceil_div, check_dtype

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
]

# A strip of one sweep reads two rows beside its own, which the L2 cache has, and many short strips
# share out evenly. Strips are shorter where there are fewer threads on a multiprocessor than keep
# it busy. The residual's sums are over pieces of 8 vectors for each of so many threads: their bits
# are the same on every card.
_RESIDUAL_THREADS = 128
_PITCH_THREADS = 256

# Several sweeps: their numbers; a block has four warps.
DEPTHS = (2, 4, 6, 8)
_WARP_LANES = 32
_WARP_GROUPS = 4
_PORTABLE_LANES = 64
# Waves of blocks after which more and shorter strips cannot gain.
_MOST_WAVES = 8


class GridSlab(NamedTuple):
    """A slab of a grid as it lies in a buffer of a device.

    Attributes
    ----------
    dims : int
        2 or 3.
    held : int
        Rows (2-D) or planes (3-D) in the buffer.
    first, last : int
        Where the grid begins and ends, counted in rows of the buffer: 0 and ``held``, or beyond
        them where the slab has neighbours.
    lines, columns : int
        Lines of a plane, 1 in 2-D; points of a line.
    pitch : int
        Elements from one line to the next, a multiple of those in 16 bytes.
    dtype : str
    spacing : tuple of float
        Per axis.
    """

    dims: int
    held: int
    first: int
    last: int
    lines: int
    columns: int
    pitch: int
    dtype: str
    spacing: tuple[float, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], spacing: tuple[float, ...], dtype: str) -> GridSlab:
        """A whole grid of ``shape`` points, alone on a device."""
        width = VECTOR_BYTES // check_dtype(dtype)
        lines = shape[1] if len(shape) == 3 else 1
        pitch = ceil_div(shape[-1], width) * width
        return cls(
            len(shape), shape[0], 0, shape[0], lines, shape[-1], pitch, dtype, tuple(spacing)
        )

    def slab(self, begin: int, held: int) -> GridSlab:
        """``held`` rows of this grid, from row ``begin`` on."""
        return self._replace(held=held, first=self.first - begin, last=self.last - begin)

    @property
    def plane_bytes(self) -> int:
        """Bytes of a row (a plane in 3-D)."""
        return self.lines * self.pitch * ELEMENT_BYTES[self.dtype]

    def weights(self) -> tuple[float, float, float]:
        """1 / spacing^2 along rows, lines (0 in 2-D) and columns."""
        weights = [1.0 / step**2 for step in self.spacing]
        return (weights[0], 0.0, weights[1]) if self.dims == 2 else (*weights,)

    def factors(self) -> tuple[float, float, float, float]:
        """The weights over the matrix's diagonal, and one over the diagonal."""
        weights = self.weights()
        diagonal = 2.0 * sum(weights)
        return (*(weight / diagonal for weight in weights), 1.0 / diagonal)


Ranges = tuple[tuple[int, int], ...]


def sweep(
    grid: GridSlab,
    rows: Ranges,
    *,
    multiprocessors: int,
    block_limit: int = 1024,
    strip: int | None = None,
    tuning: tables.Table | None = None,
) -> Launch:
    """Plan one sweep over one or two ranges of rows.

    Parameters
    ----------
    grid : GridSlab
    rows : tuple of (int, int)
        One or two ranges of rows (planes) of the buffer, none empty.
    multiprocessors, block_limit : int
        Of the device.
    strip : int, optional
        Rows that a thread walks down.
    tuning : Table, optional
        The figures that strips are chosen by. Default: `hetero.kernels.common.tuning.default`.

    Returns
    -------
    Launch
        On the buffers ``"u"``, ``"f"`` and ``"u_new"``.
    """
    tuning = tuning or tables.default()
    width = VECTOR_BYTES // check_dtype(grid.dtype)
    threads = min(tuning["jacobi.threads"], block_limit)
    tiles = ceil_div(grid.lines * (grid.pitch // width), threads)
    total = sum(end - begin for begin, end in rows)
    if strip is None:
        wanted = ceil_div(multiprocessors * tuning["jacobi.busy_threads"], tiles * threads)
        strip = max(1, min(tuning["jacobi.strip"], total // wanted))
    return Launch(
        source="jacobi.cu",
        kernel="jacobi_sweep",
        defines=_defines(grid, threads, tuning),
        grid=tiles * sum(ceil_div(end - begin, strip) for begin, end in rows),
        block=threads,
        arguments=(
            "u",
            "f",
            "u_new",
            grid.held,
            grid.lines,
            grid.columns,
            grid.pitch,
            *_two(rows),
            strip,
            tiles,
            *grid.factors(),
        ),
    )


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
        As for `sweep`; ``depth`` rows beyond the ranges must be held where the grid has them.
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
            *_two(rows),
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


def residual(
    grid: GridSlab,
    rows: tuple[int, int],
    *,
    block_limit: int = 1024,
    tuning: tables.Table | None = None,
) -> Launch:
    """Plan the sums of (f - A u)^2 over pieces of each row, in double.

    The pieces, and so the bits of the sums, depend on the grid alone, not on how it is cut into
    slabs. Their total, in any fixed order, is the square of the residual's 2-norm.

    Returns
    -------
    Launch
        On the buffers ``"u"``, ``"f"`` and ``"partial"``; the latter has `residual_sums` doubles
        for each row.
    """
    threads = min(_RESIDUAL_THREADS, block_limit)
    chunks = residual_sums(grid, block_limit=block_limit)
    begin, end = rows
    return Launch(
        source="jacobi.cu",
        kernel="jacobi_residual",
        defines=_defines(grid, threads, tuning or tables.default()),
        grid=chunks * (end - begin),
        block=threads,
        arguments=(
            "u",
            "f",
            "partial",
            grid.held,
            grid.lines,
            grid.columns,
            grid.pitch,
            begin,
            chunks,
            *grid.weights(),
        ),
    )


def residual_sums(grid: GridSlab, *, block_limit: int = 1024) -> int:
    """How many sums `residual` makes of a row (a plane in 3-D)."""
    vectors = grid.lines * (grid.pitch * ELEMENT_BYTES[grid.dtype] // VECTOR_BYTES)
    return ceil_div(vectors, 8 * min(_RESIDUAL_THREADS, block_limit))


def change_pitch(
    grid: GridSlab, source_pitch: int, target_pitch: int, *, block_limit: int = 1024
) -> Launch:
    """Plan copying a grid's lines from one distance to another.

    Returns
    -------
    Launch
        From the buffer ``"source"`` to ``"target"``.
    """
    threads = min(_PITCH_THREADS, block_limit)
    lines = grid.held * grid.lines
    blocks = min(lines * ceil_div(grid.columns, threads), 1 << 16)
    return Launch(
        source="pitch.cu",
        kernel="change_pitch",
        defines=(("REAL", REAL[grid.dtype]), ("THREADS", threads)),
        grid=blocks,
        block=threads,
        arguments=(
            "source",
            "target",
            lines,
            grid.columns,
            source_pitch,
            target_pitch,
            blocks,
        ),
    )


def _defines(
    grid: GridSlab, threads: int, tuning: tables.Table
) -> tuple[tuple[str, int | str], ...]:
    return (
        ("REAL", REAL[grid.dtype]),
        ("VECTOR", VECTOR_BYTES // ELEMENT_BYTES[grid.dtype]),
        ("DIMS", grid.dims),
        ("THREADS", threads),
        ("AHEAD", tuning["jacobi.ahead"][str(grid.dims)]),
    )


def _two(rows: Ranges) -> tuple[int, int, int, int]:
    """Begin and end of two ranges; a second one that is not there is empty."""
    if not 1 <= len(rows) <= 2 or any(begin >= end for begin, end in rows):
        raise ValueError(f"rows must be one or two ranges that are not empty, got {rows}")
    second = rows[1] if len(rows) == 2 else (rows[0][1], rows[0][1])
    return (*rows[0], *second)
