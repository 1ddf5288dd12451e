"""Launch plans of two-dimensional correlation with few taps, which lie in registers."""

from __future__ import annotations

from ..common.launch import REAL, VECTOR_BYTES, Launch, LaunchPlan, ceil_div, check_dtype
from .correlation import WARP, Correlation, count_blocks

__all__ = ["small"]

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


def small(
    problem: Correlation,
    multiprocessors: int,
    alignment: int,
    block_limit: int,
) -> LaunchPlan | None:
    """The plan with convolve_small.cu, or None where another kernel is for it."""
    p = problem
    side = max(p.filter_height, p.filter_width)
    shapes = _SHAPES[p.dtype]
    if (
        block_limit < _SMALL_THREADS
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
        blocks * multiprocessors
    ):
        rows //= 2
    down = ceil_div(p.out_height, groups * rows)
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
            "image",
            "taps",
            "out",
            p.height,
            p.width,
            p.out_height,
            p.out_width,
            p.top,
            p.left,
            *p.tap_strides,
            down,
            across,
            *p.image[:2],
            *p.out[:2],
            p.boundary,
            "fillvalue",
            "only_if",
        ),
    )
    return LaunchPlan((launch,), 0, f"small{p.filter_height}x{p.filter_width}v{width}")
