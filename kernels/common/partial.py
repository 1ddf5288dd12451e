"""Launch plan of the second step of a product split over k: adding up the partial results."""

from __future__ import annotations

from math import prod

from .launch import Launch, LaunchPlan, Target, ceil_div

# Threads along the parts of k, for each output: few outputs with many parts need more.
_GROUPS = (1, 8)
_THREADS = 256
_SMALL_THREADS = 64


def with_sums(
    first: Launch,
    variant: str,
    split_k: int,
    extents: tuple[int, int, int],
    out: str,
    strides: tuple[int, int, int],
    target: Target,
    seconds: float = 0.0,
) -> LaunchPlan:
    """The plan of a launch that computes parts of sums, and of one that adds these up.

    The first one writes the scratch buffer ``"partial"``, (split_k, batch, rows, columns); the
    extents, and the strides in elements of the buffer ``out``, are of (batch, row, column).
    """
    outputs = prod(extents)
    threads = _THREADS if target.block_limit >= _THREADS else _SMALL_THREADS
    groups = _GROUPS[split_k > 8 and outputs < 2 * threads * target.multiprocessors]
    lanes = threads // groups
    defines = ("REAL", dict(first.defines)["REAL"]), ("LANES", lanes), ("GROUPS", groups)
    arguments = "partial", out, split_k, *extents, *strides
    grid = ceil_div(outputs, lanes)
    second = Launch("partial.cu", "sum_partials", defines, grid, threads, arguments)
    return LaunchPlan((first, second), split_k * outputs, f"{variant}p{split_k}", seconds)
