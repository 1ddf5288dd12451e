"""Convolution by Fourier transforms: the tiles, on the CPU and on a GPU, and the CPU's transforms.

`on_cpu` and `on_device` take the image as one tile, or cut it into overlapping ones, whatever
costs less by the points that transforms pass over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from itertools import product
from math import isfinite, log2, prod
from typing import NamedTuple

import numpy as np

from hetero.devices.peers import side_by_side
from hetero.host import cpu
from hetero.imports import load
from hetero.ops.convolve2d.filters import Filter, exact_zeros, facts_of, is_whole
from hetero.ops.convolve2d.problem import Window
from hetero.ops.solvers.exchange import split


class Axis(NamedTuple):
    """Tiles along one axis for circular convolutions.

    Tile t holds the ``length`` points of the (extended) image from ``start + t step`` on; its
    ``step`` results from ``first`` on are those of the output from ``t step`` on.
    """

    length: int
    step: int
    count: int
    start: int
    first: int


Axes = tuple[Axis, Axis]


def _several(length: int, filter_size: int, out: int, lead: int) -> Axis:
    """Overlapping tiles of a length along an axis."""
    step = length - filter_size + 1
    return Axis(length, step, -(-out // step), -lead, filter_size - 1)


def _whole(window: Window, good: Callable[[int], int]) -> Axes:
    """The whole image as one tile; ``good`` gives the next length that transforms well.

    Circular convolution of length L adds full[r + L] to full[r]: the results that are wanted must
    not meet any r + L. Values beyond the image that are not zero belong to the tile.
    """

    def one(size: int, filter_size: int, out: int, lead: int) -> Axis:
        if window.extended:
            return Axis(good(out + filter_size - 1), out, 1, -lead, filter_size - 1)
        first = filter_size - 1 - lead
        return Axis(good(max(size + lead, first + out, filter_size)), out, 1, 0, first)

    y, x = (one(*side) for side in window.sides)
    return y, x


# -- Tiles on the CPU, by SciPy --------------------------------------------------------------------

_MOST = 1024  # length of a tile, where the filter is small
_LEAST = 16  # beyond twice the overlap; with less, most of a tile is thrown away
_WAYS = 20  # ways to cut an axis that are looked at
_EACH = 150.0  # what a transform costs in addition to its points, in passes over one point
_ONE = 1.15  # times as long per point as in several tiles: it leaves the caches
_SHARE = 1 << 17  # points of a transform for each thread; with fewer, waking it costs more


def threads_for(points: int, cores: int | None = None) -> int:
    """How many threads transforms of that many points are worth, on that many cores or on these."""
    return max(min(cores or cpu.describe()["cores"], points // _SHARE), 1)


def good_length_on_cpu(n: int) -> int:
    """The next length that SciPy's real transform likes."""
    return load("scipy.fft").next_fast_len(n, real=True)


@functools.lru_cache(maxsize=1024)
def on_cpu(window: Window, cores: int | None = None) -> Axes:
    """The lightest tiles, one or several, for threads that share them on that many cores."""

    def cost(axes: Axes) -> float:
        along = [a.count * (a.length * _passes(a.length) + _EACH) for a in axes]
        return prod(along) * _unbalanced(axes, 1, cores)

    whole, ways = _whole(window, good_length_on_cpu), (_cuts(*side[1:]) for side in window.sides)
    several = [(y, x) for y, x in product(*ways) if y.count * x.count > 1]
    best = min(several, key=cost, default=whole)
    weight, one = (weight_on_cpu(window, axes, 1, cores) for axes in (best, whole))
    return best if weight < _ONE * one else whole


def _unbalanced(axes: Axes, batch: int, cores: int | None) -> float:
    """How much longer than the mean thread the one with most tiles works."""
    y, x = axes
    number = batch * y.count * x.count
    threads = threads_for(number * y.length * x.length, cores)
    return -(-number // threads) * threads / number


def _cuts(filter_size: int, out: int, lead: int) -> list[Axis]:
    """Ways to cut an axis: as many tiles as lengths from short to long give, just long enough."""
    overlap = filter_size - 1
    lengths = np.geomspace(2 * overlap + _LEAST, max(_MOST, 4 * overlap), _WAYS).astype(int)
    numbers = {-(-out // int(length - overlap)) for length in lengths}
    needed = [-(-out // number) + overlap for number in sorted(numbers, reverse=True)]
    return [_several(good_length_on_cpu(n), filter_size, out, lead) for n in needed]


def _passes(length: int) -> float:
    """How often a transform goes over its points: log2 of their number, and twice to move them."""
    return log2(length) + 2.0


def weight_on_cpu(window: Window, axes: Axes, batch: int, cores: int | None = None) -> int:
    """A convolution's cost in proportion: points, each as often as it is passed over.

    Rows are transformed where they are not zero, and back where a result lies.
    """
    w, (y, x) = window, axes
    tiled = y.count * x.count > 1
    rows = y.length if tiled else w.out_height + w.filter_height - 1 if w.extended else w.height
    along_rows, along_columns = x.length * _passes(x.length), y.length * _passes(y.length)
    tile = (rows + y.step) * along_rows + 2 * x.length * along_columns
    if tiled:
        tile *= _unbalanced(axes, batch, cores)
    filter = w.filter_height * along_rows + x.length * along_columns
    return round(batch * y.count * x.count * tile + filter)


# -- Tiles on a GPU, by cuFFT ----------------------------------------------------------------------

_POWERS = (256, 512, 1024, 2048, 4096)
_NO_POWER = 1.58  # times as long per point for each axis with a length that is no power of two
_WORTH_A_POWER = 1.5
_SPECTRUM = 0.4  # of a tile: the filter is brought there and transformed, but not back


def good_length_on_device(n: int) -> int:
    """The next length that cuFFT likes: a power of two, or even with no prime factor above 5."""
    power, length = 1 << (n - 1).bit_length(), 2 * good_length_on_cpu(-(-n // 2))
    return length if _WORTH_A_POWER * length < power else power


@functools.lru_cache(maxsize=1024)
def on_device(window: Window) -> Axes:
    """The lightest tiles: one, or square ones that overlap."""
    ways, least = [_whole(window, good_length_on_device)], 2 * max(window[2:4]) - 1
    for length in (power for power in _POWERS if power >= least):
        y, x = (_several(length, *side[1:]) for side in window.sides)
        if y.count * x.count > 1:
            ways.append((y, x))
    return min(ways, key=lambda axes: weight_on_device(axes, 1, False))


def weight_on_device(axes: Axes, batch: int, new_filter: bool) -> int:
    """A convolution's cost in proportion: the tiles' points, since the memory decides.

    Lengths that are no powers of two take cuFFT's slower way (H200: 52 against 21 ps a point).
    A new filter's spectrum is to be made.
    """
    points = batch + _SPECTRUM * new_filter / (axes[0].count * axes[1].count)
    for axis in axes:
        points *= axis.count * axis.length
        points *= 1.0 if axis.length & (axis.length - 1) == 0 else _NO_POWER
    return round(points)


# -- The CPU's transforms --------------------------------------------------------------------------
# Rows and columns are transformed apart, so that rows of zeros, and rows without a result, need no
# transform.

_POINTS = 1 << 18  # that a thread transforms at a time
_COUNTED = 1 << 16  # taps of which a transform in float32 counts how many meet something
_NOISE = 64.0  # eps of the largest result possible that one which should be 0 may have


def places(first: int, last: int, extent: int, boundary: str) -> np.ndarray:
    """Which of ``extent`` rows or columns stand from ``first`` to ``last``."""
    k = np.arange(first, last)
    if boundary == "wrap":
        return k % extent
    k %= 2 * extent
    return np.minimum(k, 2 * extent - 1 - k)


def extended(
    plane: np.ndarray, window: Window, fillvalue: float, rows: slice, columns: slice
) -> np.ndarray:
    """Part of an image and of what lies beyond it; a view where all of it is the image's."""
    (h, w), boundary = plane.shape, window.boundary
    shape = rows.stop - rows.start, columns.stop - columns.start
    i = slice(max(rows.start, 0), max(min(rows.stop, h), 0))
    j = slice(max(columns.start, 0), max(min(columns.stop, w), 0))
    inner = plane[i, j]
    if inner.shape == shape:
        return inner
    if boundary == "fill":
        part = np.empty(shape, plane.dtype)
        part.fill(fillvalue)  # in half the time of `numpy.full`, of a small one
        if inner.size:
            at = slice(j.start - columns.start, j.stop - columns.start)
            part[i.start - rows.start : i.stop - rows.start, at] = inner
        return part
    down = places(rows.start, rows.stop, h, boundary)
    return np.take(plane[down], places(columns.start, columns.stop, w, boundary), axis=1)


def _may_be_zero(plane: np.ndarray, zeros: bool, window: Window) -> bool:
    """Whether all products of a result may be 0, for a filter with or without ``zeros``.

    A window reads the image's first row, its last row or as many as the filter has in between, and
    columns likewise: one of the values looked at, which no tap that is 0 meets.
    """
    if zeros and not window.extended:  # what lies beyond is 0
        return True
    high, wide = (1, 1) if zeros else (window.filter_height, window.filter_width)
    return not all(part.all() for part in (plane[::high, ::wide], plane[-1], plane[:, -1]))


@np.errstate(all="ignore")  # as SciPy's loops, which look at no flags
def convolve(image: np.ndarray, filter: Filter, window: Window, out: np.ndarray) -> bool:
    """Transforms of overlapping tiles, or of whole images; the arguments are as `methods` says."""
    cpu.kept_by_malloc()
    fft, (y, x) = load("scipy.fft"), on_cpu(window)
    points, number = y.length * x.length, len(image) * y.count * x.count
    most = threads_for(number * points)
    # Threads share tiles or, where there are fewer of them, each transform.
    threads, workers = (most, 1) if number >= most else (1, most)
    facts, taps = filter.found(facts_of), filter.array
    noise = _NOISE * np.finfo(image.dtype).eps * facts.size
    high, wide = y.step + window.filter_height - 1, x.step + window.filter_width - 1
    if y.count == x.count == 1 and not window.extended:
        high, wide = window.height, window.width  # rows and columns of zeros are not transformed
    zeros = [exact_zeros.get() and _may_be_zero(p, facts.zeros, window) for p in image]
    not_finite: list[bool] = []

    def spectrum_of(taps: np.ndarray) -> np.ndarray:
        return fft.fft(fft.rfft(taps, x.length, axis=1), y.length, axis=0, workers=most)

    spectrum = spectrum_of(taps)

    @functools.cache
    def support() -> np.ndarray:
        """Of 1 where a tap is not 0: with those of a tile it gives how many meet."""
        known = taps != 0.0
        return spectrum_of(known.astype("f4" if np.count_nonzero(known) < _COUNTED else "f8"))

    def transformed(cut: np.ndarray, spectrum: np.ndarray) -> np.ndarray:
        """Tiles convolved with the filter of a spectrum, with what lies around their results."""
        product = fft.rfft(cut, x.length, axis=2, workers=workers)
        product = fft.fft(product, y.length, axis=1, overwrite_x=True, workers=workers)
        product *= spectrum
        product = fft.ifft(product, axis=1, overwrite_x=True, workers=workers)
        product = product[:, y.first : y.first + y.step]
        return fft.irfft(product, x.length, axis=2, workers=workers)

    def put(source: np.ndarray, values: np.ndarray, result: np.ndarray, zeros: bool) -> None:
        """Take a tile's results, with what the direct sum has exactly and a transform has not:
        whole numbers of whole numbers, nothing negative of what is not, and where there may be
        some, zeros where all products are zero."""
        low, high = float(values.min()), float(values.max())
        whole = facts.whole and is_whole(source)
        if whole:
            np.rint(values, out=values)
        inner = slice(len(result)), slice(x.first, x.first + result.shape[1])
        result[...] = values[inner]
        if not (isfinite(low) and isfinite(high)):
            not_finite.append(True)
            return
        if facts.positive and low < 0.0 and result.min() < 0.0 and source.min() >= 0.0:
            np.maximum(result, 0.0, out=result)
        if not zeros:
            return
        most = noise * max(float(source.max()), -float(source.min()))  # of one that should be 0
        if most <= (0.5 if whole else 0.0) or low > most or high < -most:
            return  # rounding was enough, or there is none
        if (np.abs(result) <= most).any():
            (count,) = transformed((source != 0.0).astype(support().real.dtype)[None], support())
            result[count[inner] < 0.5] = 0.0

    # Rows of tiles, and what a row holds where there are few.
    parts = -(-x.count // max(min(_POINTS // points, number // threads), 1))
    strips = product(range(len(image)), range(y.count), split(x.count, parts))
    pending = iter([*strips])

    def some() -> None:
        """On each thread; NumPy and SciPy let go of the GIL while they work on parts of arrays."""
        for number, i, (begin, end) in pending:  # advancing a list's iterator is atomic
            top, left = y.start + i * y.step, x.start + begin * x.step
            across = slice(left, left + (end - begin - 1) * x.step + wide)
            down = slice(top, top + high)
            source = extended(image[number], window, filter.fillvalue, down, across)
            tiles, (row, column) = (end - begin, high, wide), source.strides
            cut = np.lib.stride_tricks.as_strided(source, tiles, (x.step * column, row, column))
            made = transformed(cut, spectrum)
            for k, (part, tile) in enumerate(zip(cut, made, strict=True), begin):
                result = out[number, i * y.step : (i + 1) * y.step, k * x.step : (k + 1) * x.step]
                put(part, tile, result, zeros[number])

    side_by_side([some] * min(threads, number))
    return not not_finite
