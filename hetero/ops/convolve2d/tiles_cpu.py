"""Fourier tiles on the CPU: which lengths, how many, and what they cost."""

from __future__ import annotations

import functools
from math import inf, log2

from hetero.imports import load
from hetero.ops.convolve2d import workers
from hetero.ops.convolve2d.window import Axis, Window, one_tile

_MOST = 1024  # length of a tile beside which the filter is small
_LEAST = 16  # beyond twice the overlap; with less, most of a tile is thrown away
_BEST = 6  # ways to cut an axis that are looked at together with those of the other
_EACH = 150.0  # what a transform costs beside its points, in passes over one point


@functools.lru_cache(maxsize=1024)
def good_length(n: int) -> int:
    """The next length that SciPy's real transform likes."""
    next_fast_len = load("scipy.fft").next_fast_len
    return next_fast_len(n, real=True)


def whole(window: Window) -> tuple[Axis, Axis]:
    """The image as one tile."""
    return one_tile(window, good_length)


@functools.lru_cache(maxsize=1024)
def tiles(window: Window, cores: int | None = None) -> tuple[Axis, Axis] | None:
    """The cheapest cut into several overlapping tiles; None where one tile is all there is.

    Threads share them: one tile more than they have in turn costs as much as one for each. There
    are as many as this machine has cores, or another one of which this is asked.
    """
    w = window
    along_x = _cuts(w.out_width, w.filter_width, w.left)
    best: tuple[float, tuple[Axis, Axis] | None] = (inf, None)
    for cost_y, y in _cuts(w.out_height, w.filter_height, w.top):
        for cost_x, x in along_x:
            if cost_y * cost_x > best[0]:
                break  # those that follow cost more, even if threads share them well
            if y.count * x.count > 1:
                best = min(best, (cost_y * cost_x * _unbalanced((y, x), 1, cores), (y, x)))
    return best[1]


def _unbalanced(axes: tuple[Axis, Axis], batch: int, cores: int | None) -> float:
    """How much longer than the mean thread the one with most tiles works."""
    y, x = axes
    number = batch * y.count * x.count
    threads = workers.threads_for(number * y.length * x.length, cores)
    return -(-number // threads) * threads / number


@functools.lru_cache(maxsize=1024)
def _cuts(out: int, filter_size: int, lead: int) -> list[tuple[float, Axis]]:
    """The best ways to cut one axis into tiles, each with what its points and transforms cost, the
    cheapest first."""
    overlap = filter_size - 1
    found: list[tuple[float, int, int]] = []
    least = -(-out // max(_MOST - overlap, 3 * overlap))
    while True:
        needed = -(-out // least) + overlap
        length = good_length(needed)
        count = -(-out // (length - overlap))
        cost = count * (length * _passes(length) + _EACH)
        found.append((cost, length, count))
        if length < 2 * overlap + _LEAST:
            break
        least = max(least + 1, -(-out // (needed - overlap - 1)))  # for which a shorter one will do
    return [
        (cost, Axis(length, length - overlap, count, -lead, overlap))
        for cost, length, count in sorted(found)[:_BEST]
    ]


def _passes(length: int) -> float:
    """How often a transform goes over its points: log2 of their number, and twice to move them."""
    return log2(length) + 2.0


def weight(window: Window, axes: tuple[Axis, Axis], batch: int, cores: int | None = None) -> int:
    """A convolution's cost in proportion: points, each as often as it is passed over.

    Rows are transformed where they are not zero, and back where a result lies.
    """
    w, (y, x) = window, axes
    tiled = y.count * x.count > 1
    rows = y.length if tiled else w.out_height + w.filter_height - 1 if w.extended else w.height
    along_rows, along_columns = x.length * _passes(x.length), y.length * _passes(y.length)
    tile = (rows + y.step) * along_rows + 2 * x.length * along_columns
    filter = w.filter_height * along_rows + x.length * along_columns
    if tiled:
        tile *= _unbalanced(axes, batch, cores)
    return round(batch * y.count * x.count * tile + filter)
