"""Whether values range so widely that a transform would lose the small ones.

A transform's error is about the same everywhere: eps times the norm of the filter times the root
mean square of the image, over the tile that is transformed. The direct sum's is eps times the sum
of the products' absolute values there. Where most values are of one size the two agree. One value
of 1e20 among others of 1 leaves nothing of them in a transform's result.
"""

from __future__ import annotations

from dataclasses import replace
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from hetero.host import loops
from hetero.imports import load
from hetero.ops.convolve2d.filters import LARGEST_REMEMBERED, Filter
from hetero.ops.convolve2d.window import FFT, Window
from hetero.ops.linear_systems.systems import on_vectors
from hetero.pricing.plan import CPU, Plan
from hetero.registry.problem import Problem

_FAMILY = loops.register(loops.Family("ranges", f"{__name__}:examples"))
# ``_serving(dtype)`` for float32 or float64: by NumPy on one thread where they are not compiled.
_serving = loops.Serving(_FAMILY, "hetero.kernels.cpu.ranges", "hetero.kernels.cpu.ranges_numpy")

# By how many eps of the sum of the products' absolute values a transform may be off.
_LOST = 1e3
_SMALL = 1 << 14  # values that NumPy looks at sooner than a compiled loop is called
_LARGEST = 32  # one in this many of a filter's values may be as large as it likes


class Size(NamedTuple):
    """How large a filter's values are: 2-norm, mean, mean in its smallest quarter, small values.

    Means are those without the largest values: where these meet zeros, the others count. A third of
    the values that are not zero are at most ``small``.
    """

    norm: float
    mean: float
    quarter: float
    small: float


@np.errstate(all="ignore")
def size_of(filter: np.ndarray) -> Size:
    """The `Size` of a filter, in terms of its largest value; zeros for a filter of zeros.

    Of the quarters the smallest that holds anything counts. The middle row and column are in both
    halves: an image's points see at least one such quarter of the filter with mode "same".
    """
    values = np.abs(filter, dtype=np.float64)
    largest = float(values.max())
    if not 0.0 < largest < np.inf:
        return Size(0.0, 0.0, 0.0, 0.0)
    values /= largest
    h, w = (n // 2 for n in values.shape)
    height, width = values.shape
    halves = (slice(0, height - h), slice(h, None)), (slice(0, width - w), slice(w, None))
    parts = [values[rows, columns] for rows in halves[0] for columns in halves[1]]

    def mean(part: np.ndarray) -> float:
        some = part[part > 0.0]
        few = some.size - max(some.size // _LARGEST, 1)
        return float(np.partition(some, few)[:few].sum()) / part.size

    # Not by BLAS, whose threads would spin while the loops of the check run.
    norm = float(np.sqrt(np.square(values).sum()))
    some = values[values > 0.0]
    small = float(np.partition(some, some.size // 3)[some.size // 3])
    return Size(norm, mean(values), min(mean(p) for p in parts if p.any()), small)


def is_finite(x: np.ndarray | None) -> bool:
    """Whether an array, if its values are known, holds neither NaN nor infinity; many values by
    threads, where they can."""
    if x is None:
        return True
    if x.size < _SMALL or not x.flags.c_contiguous or x.dtype.char not in "fd":
        return bool(np.isfinite(x).all())
    return isfinite(on_vectors(x.dtype).times_zero(x.reshape(-1)))


@np.errstate(all="ignore")
def is_wide(
    image: np.ndarray | None, filter: Filter, window: Window, fillvalue: float
) -> bool | None:
    """Whether a transform may be off by more than 1e3 eps of the sum of absolute products.

    None where sums are not finite, so that a transform would spread NaN or infinity; False for a
    filter whose values are not known.

    Parameters
    ----------
    image : (..., h, w) ndarray of float32 or float64, or None
        None where its values are not known: then it counts as even.
    filter : Filter

    Notes
    -----
    Looked at are blocks of at most half the filter's extents, rounded up: every window of the image
    that the filter covers holds one. The error is estimated from above: the mean square over a tile
    is at most the largest value times the largest mean of a block. What the sum of products is at
    least is estimated from the least block and the mean of the filter without its largest values.

    Results at the image's edge see a part of the filter: its smallest quarter counts. Beside a
    block that is all zero, results see as little as a line of the image and of the filter: the
    least line of the blocks there counts, and a small value of the filter; of lines with few values
    that are not zero, the least of these. What sees still less does not count: results at the
    corner of what is not zero, and what "full" gives near its edges.
    """
    array = filter.array
    if array is None:
        return False
    size = filter.found(size_of)
    if size.norm == 0.0 and not np.isfinite(array).all():
        return None
    inside = window.boundary != "fill" or not (window.top or window.left)
    taps = size.mean if inside else size.quarter
    if image is None:
        return size.norm > _LOST * taps * array.size
    rows, columns = (window.filter_height + 1) // 2, (window.filter_width + 1) // 2
    planes = loops.as_loops_take(image).reshape(-1, *image.shape[-2:])
    sums, areas, peaks = _serving(image.dtype).block_sums(planes, rows, columns)
    means = (sums / areas).max(axis=(1, 2))
    if not np.isfinite(means).all():
        return None
    least = sums.min(axis=(1, 2))
    has_zeros = least == 0.0
    if has_zeros.any():
        least = np.where(sums > 0.0, sums, np.inf).min(axis=(1, 2))
    fill = abs(fillvalue) if window.filled else 0.0
    means = np.maximum(means, fill)
    errors = size.norm * np.sqrt(np.maximum(peaks, fill)) * np.sqrt(means)
    if (errors > _LOST * taps * least).any():
        return True
    if not (has_zeros & (means > 0.0)).any():
        return False
    down, across = areas.shape
    zero = np.pad(sums == 0.0, ((0, 0), (1, 1), (1, 1)))
    zero &= (means > 0.0)[:, None, None]
    beside = zero[:, :-2] | zero[:, 1:-1] | zero[:, 2:]
    beside = beside[:, :, :-2] | beside[:, :, 1:-1] | beside[:, :, 2:]
    blocks = np.argwhere(beside & (sums > 0.0))
    cpu_ranges = load("hetero.kernels.cpu.ranges")  # worth waiting for
    lines = cpu_ranges.least_lines(planes, blocks, down, across)
    largest = np.maximum(planes.max(axis=(1, 2)), -planes.min(axis=(1, 2))).astype(np.float64)
    errors = size.norm * np.sqrt(np.maximum(largest, fill)) * np.sqrt(means)  # less than before
    return bool((errors[blocks[:, 0]] > _LOST * size.small * lines).any())


def seen(image: np.ndarray | None, filter: Filter, window: Window, fillvalue: float) -> Window:
    """The window with what a look at the values finds."""
    wide = is_wide(image, filter, window, fillvalue)
    return window._replace(finite=wide is not None, wide_range=bool(wide))


# -- What it costs, as part of a price -------------------------------------------------------------

TERM = "look"
# Seconds: fixed; for a byte of the image on one core; for a block on one thread. 16 cores of an
# H100's host go over 8192 x 8192 numbers of float32 in 5 ms, and over a million blocks in 5.5 ms.
_CALL, _BYTE, _BLOCK = 7e-5, 2.8e-10, 5.5e-9
_TAP = 3e-8  # of an element of a filter that is not remembered
_MOST_CORES = 16  # more are not faster than the memory


def seconds(problem: Problem, machine: dict[str, dict[str, Any]]) -> float:
    """What `is_wide` takes for the image of a problem, on a machine with these descriptions of
    devices."""
    w = problem.options
    dtype, cpu = np.dtype(problem.dtype), machine.get(CPU, {})
    cores = min(cpu.get("cores") or 1, _MOST_CORES)
    if not (cpu.get("elsewhere") or loops.is_ready(_FAMILY.of(dtype))):
        cores = 1
    look = problem.batch * w.height * w.width * dtype.itemsize * _BYTE / cores
    rows, columns = (w.filter_height + 1) // 2, (w.filter_width + 1) // 2
    blocks = problem.batch * -(-w.height // rows) * -(-w.width // columns)
    taps = w.filter_height * w.filter_width
    return _CALL + look + blocks * _BLOCK + (taps > LARGEST_REMEMBERED) * taps * _TAP


def priced(plan: Plan, look: float) -> Plan:
    """A plan whose candidates that transform take that many seconds more; the cheapest is first."""
    known = [c for c in plan.candidates if c.reason is None and c.seconds is not None]
    dearer = []
    for c in known:
        if c.method == FFT:
            c = c._replace(seconds=c.seconds + look, terms={TERM: look, **c.terms})
        dearer.append(c)
    dearer.sort(key=lambda c: c.seconds)
    others = [c for c in plan.candidates if c not in known]
    return replace(plan, candidates=(*dearer, *others))


def examples(dtype: np.dtype) -> None:
    """Call every loop."""
    ranges = load("hetero.kernels.cpu.ranges")
    planes = np.ones((1, 40, 40), dtype)
    found, _, _ = ranges.block_sums(planes, 3, 3)
    ranges.least_lines(planes, np.argwhere(found > 0.0), *found.shape[1:])
