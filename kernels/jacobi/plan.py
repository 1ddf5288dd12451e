"""Launch plans of Jacobi sweeps for -div grad u = f."""

from __future__ import annotations

from ..common import tuning as tables
from ..common.launch import ELEMENT_BYTES, REAL, VECTOR_BYTES, Launch, ceil_div, check_dtype
from .grid_slab import GridSlab, Ranges, two
from .plan_blocked import DEPTHS, blocked, default_depth, passes

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
            *two(rows),
            strip,
            tiles,
            *grid.factors(),
        ),
    )


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
