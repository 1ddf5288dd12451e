"""Fourier tiles on the CPU: which lengths, how many, and what they cost."""

from __future__ import annotations

import functools
from math import log2

from hetero.filtering.window import Axis, Window, one_tile

_MOST = 1024  # length of a tile beside which the filter is small
_EACH = 150.0  # what a transform costs beside its points, in passes over one point


@functools.lru_cache(maxsize=1024)
def good_length(n: int) -> int:
    """The next length that SciPy's real transform likes."""
    from scipy.fft import next_fast_len

    return next_fast_len(n, real=True)


def whole(window: Window) -> tuple[Axis, Axis]:
    """The image as one tile."""
    return one_tile(window, good_length)


def tiles(window: Window) -> tuple[Axis, Axis] | None:
    """The overlapping tiles that cost least; None where one tile does."""
    w = window
    y = _axis(w.out_height, w.filter_height, w.top)
    x = _axis(w.out_width, w.filter_width, w.left)
    return (y, x) if y.count * x.count > 1 else None


@functools.lru_cache(maxsize=1024)
def _axis(out: int, filter_size: int, lead: int) -> Axis:
    """The tiles along one axis: as few points as they can have, but not many small transforms."""
    overlap = filter_size - 1
    best: tuple[float, Axis] | None = None
    count = -(-out // max(_MOST - overlap, 3 * overlap))
    while True:
        length = good_length(-(-out // count) + overlap)
        cost = count * (length * _passes(length) + _EACH)
        if best is None or cost < best[0]:
            best = cost, Axis(length, length - overlap, count, -lead, overlap)
        if length < 2 * overlap + 32:
            return best[1]
        count += 1


def _passes(length: int) -> float:
    """How often a transform goes over its points: log2 of their number, and twice to move them."""
    return log2(length) + 2.0


def weight(window: Window, axes: tuple[Axis, Axis], batch: int) -> int:
    """A convolution's cost in proportion: points, each as often as it is passed over.

    Rows are transformed where they are not zero, and back where a result lies.
    """
    w, (y, x) = window, axes
    tiled = y.count * x.count > 1
    rows = y.length if tiled else w.out_height + w.filter_height - 1 if w.extended else w.height
    along_rows, along_columns = x.length * _passes(x.length), y.length * _passes(y.length)
    tile = (rows + y.step) * along_rows + 2 * x.length * along_columns
    filter = w.filter_height * along_rows + x.length * along_columns
    return round(batch * y.count * x.count * tile + filter)
