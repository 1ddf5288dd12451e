"""Whether values range so widely that a transform would lose the small ones.

A transform's error is about the same everywhere: eps times the norm of the filter times the root
mean square of the image, over the tile that is transformed. The direct sum's is eps times the sum
of the products' absolute values there. Where most values are of one size the two agree. One value
of 1e20 among others of 1 leaves nothing of them in a transform's result.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import numpy as np

from hetero.filtering.request import Filter
from hetero.kernels import cpu_ranges
from hetero.problem import Window

# By how many eps of the sum of the products' absolute values a transform may be off.
_LOST = 1e3
_LEAST_ROWS, _LEAST_COLUMNS = 4, 16  # of a block


class Size(NamedTuple):
    """How large a filter's values are: 2-norm, mean, and mean in its smallest quarter.

    Means are those of all but the largest value: where that meets a zero, the others count.
    """

    norm: float
    mean: float
    quarter: float


@np.errstate(all="ignore")
def size_of(filter: np.ndarray) -> Size:
    """The `Size` of a filter, in terms of its largest value; zeros for a filter of zeros.

    Of the quarters the smallest that holds anything counts. The middle row and column are in both
    halves: an image's points see at least one such quarter of the filter with mode "same".
    """
    values = np.abs(filter, dtype=np.float64)
    largest = float(values.max())
    if not 0.0 < largest < np.inf:
        return Size(0.0, 0.0, 0.0)
    values /= largest
    h, w = (n // 2 for n in values.shape)
    height, width = values.shape
    halves = (slice(0, height - h), slice(h, None)), (slice(0, width - w), slice(w, None))
    parts = [values[rows, columns] for rows in halves[0] for columns in halves[1]]

    def rest(part: np.ndarray) -> float:
        return float(part.sum() - part.max())

    norm = float(np.sqrt(np.vdot(values, values)))
    quarter = min(rest(p) for p in parts if p.any()) / parts[0].size
    return Size(norm, rest(values) / values.size, quarter)


@functools.lru_cache(maxsize=256)
def _remembered(content: bytes, shape: tuple[int, int], dtype: str) -> Size:
    return size_of(np.frombuffer(content, dtype).reshape(shape))


@np.errstate(all="ignore")
def wide(image: np.ndarray | None, filter: Filter, window: Window, fillvalue: float) -> bool:
    """Whether a transform may be off by more than 1e3 eps of the sum of absolute products.

    Parameters
    ----------
    image : (..., h, w) ndarray of float32 or float64, or None
        None where its values are not known: then it counts as even.
    filter : Filter
        Its values known.

    Notes
    -----
    Looked at are blocks of half the filter's extents: every window of the image that the filter
    covers holds one. A block that is all zero does not count. The error is estimated from above:
    the mean square over a tile is at most the largest value times the largest mean of a block.
    Where outputs at the image's edge see a part of the filter, its smallest quarter counts.
    """
    array = filter.array
    if filter.content is None:
        size = size_of(array)
    else:
        size = _remembered(filter.content, array.shape, array.dtype.char)
    inside = window.extended or not (window.top or window.left)
    taps = size.mean if inside else size.quarter
    if image is None:
        return size.norm > _LOST * taps * array.size
    rows = max(-(-window.filter_height // 2), _LEAST_ROWS)
    columns = max(-(-window.filter_width // 2), _LEAST_COLUMNS)
    planes = image.reshape(-1, *image.shape[-2:])
    sums, peaks = cpu_ranges.block_sums(planes, rows, columns)
    area = min(rows, window.height) * min(columns, window.width)
    fill = abs(fillvalue) if window.filled else 0.0
    means = np.maximum(sums.max(axis=(1, 2)) / area, fill)
    errors = size.norm * np.sqrt(np.maximum(peaks, fill)) * np.sqrt(means)
    least = np.where(sums > 0.0, sums, np.inf).min(axis=(1, 2))
    return bool((errors > _LOST * taps * least).any())
