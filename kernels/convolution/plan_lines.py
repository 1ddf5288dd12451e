"""Launch plans of two-dimensional correlation with filters of low rank."""

from __future__ import annotations

from functools import cache
from typing import Unpack

from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, ceil_div, check_dtype
from .correlation import (
    RESIDENT_THREADS,
    SHARED_BYTES,
    WARP,
    Sizes,
    correlation,
    count_blocks,
    fetch_rows,
)

__all__ = ["separable", "separable_limit"]

# convolve_lines.cu: threads side by side, groups of them, rows of a thread, taps of a chunk, and
# most taps a side.
_LINES_LANES = 16
_LINES_GROUPS = (8, 4, 2)
_LINES_ROWS = 8
_LINES_SLAB = 2
_LINES_CHUNK = 8
_LINES_TAPS = 64


@cache
def separable_limit(*, dtype: str, shared_limit: int = 32768) -> int:
    """Return the most taps that `separable` takes of a row or a column."""
    limit = 0
    for taps in range(_LINES_CHUNK, _LINES_TAPS + 1, _LINES_CHUNK):
        if _lines_bytes(taps, taps, dtype, _LINES_GROUPS[-1]) > min(shared_limit, SHARED_BYTES):
            break
        limit = taps
    return limit


def _lines_bytes(filter_height: int, filter_width: int, dtype: str, groups: int) -> int:
    """Shared memory of a block of convolve_lines.cu."""
    element = check_dtype(dtype)
    lines = _LINES_LANES * VECTOR_BYTES // element
    taps_down = ceil_div(filter_height, _LINES_CHUNK) * _LINES_CHUNK
    taps_across = ceil_div(filter_width, _LINES_CHUNK) * _LINES_CHUNK
    slab = groups * _LINES_SLAB * (lines + taps_across)
    made = (groups * _LINES_ROWS + taps_down - 1) * lines
    return (slab + made + taps_down + taps_across) * element


def separable(
    *,
    rank: int,
    multiprocessors: int,
    alignment: int,
    cuda: bool,
    block_limit: int = 1024,
    shared_limit: int = 32768,
    **sizes: Unpack[Sizes],
) -> LaunchPlan:
    """Plan what `direct` does for the taps sum over r of outer(columns[r], rows[r]).

    Parameters
    ----------
    rank : int
        Terms of the sum.
    multiprocessors, alignment, cuda, block_limit, shared_limit
        As for `hetero.kernels.convolution.plan.direct`.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`; the filter's sides are at most
        `separable_limit`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"columns"`` of (rank, filter_height) taps, ``"rows"`` of
        (rank, filter_width), and ``"out"``, and the float ``"fillvalue"``.
    """
    p = correlation(**sizes)
    if block_limit < WARP:
        raise ValueError(f"block_limit must be at least {WARP}, got {block_limit}")
    limit = separable_limit(dtype=p.dtype, shared_limit=shared_limit)
    if max(p.filter_height, p.filter_width) > limit:
        raise ValueError(
            f"a separable filter must have at most {limit} taps a side, "
            f"got {sizes['filter_height']} x {sizes['filter_width']}"
        )
    width = VECTOR_BYTES // check_dtype(p.dtype)
    columns = _LINES_LANES * width
    across = ceil_div(p.out_width, columns)
    for groups in _LINES_GROUPS:
        down = ceil_div(p.out_height, groups * _LINES_ROWS)
        if (
            groups * _LINES_LANES <= block_limit
            and _lines_bytes(p.filter_height, p.filter_width, p.dtype, groups)
            <= min(shared_limit, SHARED_BYTES)
            and down * across * p.batch >= multiprocessors
        ):
            break
    stage_columns = ceil_div(p.filter_width, _LINES_CHUNK) * _LINES_CHUNK
    down = ceil_div(p.out_height, groups * _LINES_ROWS)
    taps = ("rows", "columns") if p.transposed else ("columns", "rows")
    launch = Launch(
        source="convolve_lines.cu",
        kernel="convolve_lines",
        defines=(
            ("REAL", REAL[p.dtype]),
            ("WIDTH", width),
            ("LANES", _LINES_LANES),
            ("GROUPS", groups),
            ("ROWS", _LINES_ROWS),
            ("SLAB", _LINES_SLAB),
            ("TAIL_ROWS", (p.filter_height - 1) % _LINES_CHUNK + 1),
            ("TAIL_COLUMNS", (p.filter_width - 1) % _LINES_CHUNK + 1),
            ("STAGE_ROWS", ceil_div(p.filter_height, _LINES_CHUNK) * _LINES_CHUNK),
            ("STAGE_COLUMNS", stage_columns),
            ("FETCH_ROWS", fetch_rows(columns + stage_columns)),
            ("ALIGNED", int(p.vectors(p.out, p.out_height, alignment, width))),
            ("BLOCKS", RESIDENT_THREADS // (_LINES_LANES * groups)),
        ),
        grid=count_blocks(across, down, p.batch),
        block=_LINES_LANES * groups,
        arguments=(
            "image",
            *taps,
            "out",
            p.height,
            p.width,
            rank,
            p.filter_height,
            p.filter_width,
            p.out_height,
            p.out_width,
            p.top,
            p.left,
            down,
            across,
            *p.image,
            *p.out,
            p.boundary,
            "fillvalue",
        ),
    )
    return LaunchPlan((launch,), 0, f"lines{groups * _LINES_ROWS}x{columns}")
