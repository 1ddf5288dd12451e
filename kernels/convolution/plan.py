"""Launch plans of two-dimensional correlation: with any taps, with few, and with low rank."""

from __future__ import annotations

from typing import Any

from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, Target, ceil_div, check_dtype
from .correlation import (
    RESIDENT_THREADS,
    SHARED_BYTES,
    WARP,
    Correlation,
    correlation,
    count_blocks,
    fetch_rows,
)
from .plan_tiled import tiled

__all__ = ["SEPARABLE_TAPS", "direct", "separable"]

# convolve_small.cu: threads of a block; extents that it counts in 32 bits.
_SMALL_THREADS = 128
_SMALL_MOST = 1 << 29
# Most taps in all that are held in registers, and fewest outputs a side for which they are.
_MOST_TAPS = {"float32": 81, "float64": 25}
_LEAST_OUTPUTS = 256
# By most taps a side: rows of a thread, rows in flight, blocks that a multiprocessor is to hold.
_SHAPES = {
    "float32": {3: (4, 6, 8), 5: (8, 6, 4), 7: (8, 2, 4), 9: (8, 2, 3)},
    "float64": {3: (8, 6, 5), 5: (8, 3, 4)},
}
# Most taps a side of a filter of low rank, for which 32 KiB of shared memory are enough.
SEPARABLE_TAPS = 64
# convolve_lines.cu: threads side by side, groups of them, rows of a thread, taps of a chunk.
_LINES_LANES = 16
_LINES_GROUPS = (8, 4, 2)
_LINES_ROWS = 8
_LINES_SLAB = 2
_LINES_CHUNK = 8


def direct(
    *,
    target: Target,
    alignment: int,
    **sizes: Any,
) -> LaunchPlan:
    """Plan out[b, i, j] = sum over u, v of taps[u, v] ext[b, i + u - top, j + v - left].

    ``ext`` is the image extended beyond its edges.

    Parameters
    ----------
    target : Target
        With at least 16384 bytes of shared memory for a block.
    alignment : int
        Bytes; the largest power of two, up to 16, that divides every operand's address.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"taps"`` and ``"out"``, the float ``"fillvalue"``, and the
        buffer of ints ``"only_if"``: where its first one is 0 nothing is done. It may be null.
    """
    problem = correlation(**sizes)
    _check(target)
    plan = None
    if target.warps:
        plan = _small(problem, target, alignment)
    if plan is None:
        plan = tiled(problem, target, alignment)
    return plan


def _check(target: Target) -> None:
    if target.block_limit < WARP:
        raise ValueError(f"block_limit must be at least {WARP}, got {target.block_limit}")


def _small(p: Correlation, target: Target, alignment: int) -> LaunchPlan | None:
    """The plan with convolve_small.cu, with its taps in registers; None where another kernel is
    for it."""
    side = max(p.filter_height, p.filter_width)
    shapes = _SHAPES[p.dtype]
    if (
        target.block_limit < _SMALL_THREADS
        or side > max(shapes)
        or p.filter_height * p.filter_width > _MOST_TAPS[p.dtype]
        or min(p.out_height, p.out_width) < _LEAST_OUTPUTS
        or max(p.height, p.width, p.out_height, p.out_width, p.top, p.left) >= _SMALL_MOST
        or p.image[2] != 1
        or p.out[2] != 1
    ):
        return None
    width = VECTOR_BYTES // check_dtype(p.dtype)
    while width > 1 and not (
        p.vectors(p.image, p.height, alignment, width)
        and p.vectors(p.out, p.out_height, alignment, width)
    ):
        width //= 2
    rows, ahead, blocks = next(shape for most, shape in shapes.items() if side <= most)
    across = ceil_div(p.out_width, WARP * width)
    groups = _SMALL_THREADS // WARP
    while rows > 2 and across * ceil_div(p.out_height, groups * rows) * p.batch < (
        blocks * target.multiprocessors
    ):
        rows //= 2
    down = ceil_div(p.out_height, groups * rows)
    image, _, out = p.extents
    launch = Launch(
        source="convolve_small.cu",
        kernel="convolve_small",
        defines=(
            ("REAL", REAL[p.dtype]),
            ("WIDTH", width),
            ("FH", p.filter_height),
            ("FW", p.filter_width),
            ("SHIFT", -p.left % width),
            ("ROWS", rows),
            ("AHEAD", ahead),
            ("BLOCKS", blocks),
        ),
        grid=count_blocks(across, down, p.batch),
        block=_SMALL_THREADS,
        arguments=(
            *("image", "taps", "out", *image, *out, *p.tap_strides),
            *(down, across, *p.image[:2], *p.out[:2], p.boundary, "fillvalue", "only_if"),
        ),
    )
    return LaunchPlan((launch,), 0, f"small{p.filter_height}x{p.filter_width}v{width}")


# -- Filters of low rank ---------------------------------------------------------------------------


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
    target: Target,
    alignment: int,
    **sizes: Any,
) -> LaunchPlan:
    """Plan what `direct` does for the taps sum over r of outer(columns[r], rows[r]).

    Parameters
    ----------
    rank : int
        Terms of the sum.
    target, alignment
        As for `hetero.kernels.convolution.plan.direct`.
    **sizes
        See `hetero.kernels.convolution.correlation.correlation`; the filter's sides are at most
        `SEPARABLE_TAPS`.

    Returns
    -------
    LaunchPlan
        On the buffers ``"image"``, ``"columns"`` of (rank, filter_height) taps, ``"rows"`` of
        (rank, filter_width), and ``"out"``, and the float ``"fillvalue"``.
    """
    p = correlation(**sizes)
    _check(target)
    room = min(target.shared_limit, SHARED_BYTES)
    least = _lines_bytes(p.filter_height, p.filter_width, p.dtype, _LINES_GROUPS[-1])
    if max(p.filter_height, p.filter_width) > SEPARABLE_TAPS or least > room:
        raise ValueError(
            f"a separable filter must have at most {SEPARABLE_TAPS} taps a side, and fit in "
            f"{room} bytes of shared memory with what it reads, got "
            f"{sizes['filter_height']} x {sizes['filter_width']}"
        )
    width = VECTOR_BYTES // check_dtype(p.dtype)
    columns = _LINES_LANES * width
    across = ceil_div(p.out_width, columns)
    for groups in _LINES_GROUPS:
        down = ceil_div(p.out_height, groups * _LINES_ROWS)
        if (
            groups * _LINES_LANES <= target.block_limit
            and _lines_bytes(p.filter_height, p.filter_width, p.dtype, groups) <= room
            and down * across * p.batch >= target.multiprocessors
        ):
            break
    stage_columns = ceil_div(p.filter_width, _LINES_CHUNK) * _LINES_CHUNK
    down = ceil_div(p.out_height, groups * _LINES_ROWS)
    taps = ("rows", "columns") if p.transposed else ("columns", "rows")
    image, filter, out = p.extents
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
            *("image", *taps, "out", *image, rank, *filter, *out),
            *(down, across, *p.image, *p.out, p.boundary, "fillvalue"),
        ),
    )
    return LaunchPlan((launch,), 0, f"lines{groups * _LINES_ROWS}x{columns}")
