"""Fourier tiles: which lengths, how many, and what they cost, on the CPU and on a GPU.

`on_cpu` and `on_device` take the image as one tile, or cut it into overlapping ones, whatever
costs less by the points that transforms pass over.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from math import inf, log2
from typing import NamedTuple

from hetero.host import cpu
from hetero.imports import load
from hetero.ops.convolve2d.window import Window


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


def _one(
    size: int, filter_size: int, out: int, lead: int, extended: bool, good: Callable[[int], int]
) -> Axis:
    """One tile along an axis, as short as it can be.

    Beyond the image are zeros, or with ``extended`` other values, which then belong to the tile.
    Circular convolution of length L adds full[r + L] to full[r]: the wanted results r = first ...
    first + out - 1 must not meet any r + L.
    """
    first = filter_size - 1 - lead
    if extended:
        return Axis(good(out + filter_size - 1), out, 1, -lead, filter_size - 1)
    return Axis(good(max(size + lead, first + out, filter_size)), out, 1, 0, first)


def _several(length: int, filter_size: int, out: int, lead: int) -> Axis:
    """Overlapping tiles of a length along an axis."""
    step = length - filter_size + 1
    return Axis(length, step, -(-out // step), -lead, filter_size - 1)


def _whole(window: Window, good: Callable[[int], int]) -> Axes:
    """The whole image as one tile; ``good`` gives the next length that transforms well."""
    w = window
    return (
        _one(w.height, w.filter_height, w.out_height, w.top, w.extended, good),
        _one(w.width, w.filter_width, w.out_width, w.left, w.extended, good),
    )


# -- The CPU, by SciPy -----------------------------------------------------------------------------

_MOST = 1024  # length of a tile beside which the filter is small
_LEAST = 16  # beyond twice the overlap; with less, most of a tile is thrown away
_BEST = 6  # ways to cut an axis that are looked at together with those of the other
_EACH = 150.0  # what a transform costs beside its points, in passes over one point
_ONE = 1.15  # times as long per point as in several tiles: it leaves the caches
_SHARE = 1 << 17  # points of a transform for each thread; with fewer, waking it costs more


def threads_for(points: int, cores: int | None = None) -> int:
    """How many threads transforms of that many points are worth, on that many cores or on these."""
    return max(min(cores or cpu.describe()["cores"], points // _SHARE), 1)


@functools.lru_cache(maxsize=1024)
def good_length_on_cpu(n: int) -> int:
    """The next length that SciPy's real transform likes."""
    next_fast_len = load("scipy.fft").next_fast_len
    return next_fast_len(n, real=True)


def whole_on_cpu(window: Window) -> Axes:
    """The image as one tile."""
    return _whole(window, good_length_on_cpu)


@functools.lru_cache(maxsize=1024)
def on_cpu(window: Window, cores: int | None = None) -> Axes:
    """The lightest tiles: one, or several that overlap.

    Threads share them: one tile more than they have in turn costs as much as one for each. There
    are as many as this machine has cores, or another one of which this is asked.
    """
    several, whole = _several_on_cpu(window, cores), whole_on_cpu(window)
    if several is None:
        return whole
    weights = [weight_on_cpu(window, axes, 1, cores) for axes in (several, whole)]
    return several if weights[0] < _ONE * weights[1] else whole


def _several_on_cpu(window: Window, cores: int | None) -> Axes | None:
    """The cheapest cut into several overlapping tiles; None where one tile is all there is."""
    w = window
    along_x = _cuts(w.out_width, w.filter_width, w.left)
    best: tuple[float, Axes | None] = (inf, None)
    for cost_y, y in _cuts(w.out_height, w.filter_height, w.top):
        for cost_x, x in along_x:
            if cost_y * cost_x > best[0]:
                break  # those that follow cost more, even if threads share them well
            if y.count * x.count > 1:
                best = min(best, (cost_y * cost_x * _unbalanced((y, x), 1, cores), (y, x)))
    return best[1]


def _unbalanced(axes: Axes, batch: int, cores: int | None) -> float:
    """How much longer than the mean thread the one with most tiles works."""
    y, x = axes
    number = batch * y.count * x.count
    threads = threads_for(number * y.length * x.length, cores)
    return -(-number // threads) * threads / number


@functools.lru_cache(maxsize=1024)
def _cuts(out: int, filter_size: int, lead: int) -> list[tuple[float, Axis]]:
    """The best ways to cut one axis into tiles, each with what its points and transforms cost, the
    cheapest first."""
    overlap = filter_size - 1
    found: list[tuple[float, Axis]] = []
    least = -(-out // max(_MOST - overlap, 3 * overlap))
    while True:
        needed = -(-out // least) + overlap
        length = good_length_on_cpu(needed)
        axis = _several(length, filter_size, out, lead)
        found.append((axis.count * (length * _passes(length) + _EACH), axis))
        if length < 2 * overlap + _LEAST:
            break
        least = max(least + 1, -(-out // (needed - overlap - 1)))  # for which a shorter one will do
    return sorted(found)[:_BEST]


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
    filter = w.filter_height * along_rows + x.length * along_columns
    if tiled:
        tile *= _unbalanced(axes, batch, cores)
    return round(batch * y.count * x.count * tile + filter)


# -- A GPU, by cuFFT -------------------------------------------------------------------------------

_POWERS = (256, 512, 1024, 2048, 4096)
_NO_POWER = 1.58  # times as long per point for each axis whose length is no power of two
_WORTH_A_POWER = 1.5
_SPECTRUM = 0.4  # of a tile: the filter is brought there and transformed, but not back


@functools.lru_cache(maxsize=1024)
def good_length_on_device(n: int) -> int:
    """The next length that cuFFT likes: a power of two, or even with no prime factor above 7."""
    power = 1 << (n - 1).bit_length()
    n += n % 2
    while n < power / _WORTH_A_POWER:
        rest = n
        for prime in (2, 3, 5, 7):
            while rest % prime == 0:
                rest //= prime
        if rest == 1:
            return n
        n += 2
    return power


def whole_on_device(window: Window) -> Axes:
    """The image as one tile."""
    return _whole(window, good_length_on_device)


@functools.lru_cache(maxsize=1024)
def on_device(window: Window) -> Axes:
    """The lightest tiles: one, or square ones that overlap."""
    w, whole = window, whole_on_device(window)
    best = weight_on_device(whole, 1, False), whole
    for length in _POWERS:
        if length < 2 * max(w.filter_height, w.filter_width) - 1:
            continue
        axes = (
            _several(length, w.filter_height, w.out_height, w.top),
            _several(length, w.filter_width, w.out_width, w.left),
        )
        if axes[0].count * axes[1].count < 2:
            break
        cost = weight_on_device(axes, 1, False)
        if cost < best[0]:
            best = cost, axes
    return best[1]


def weight_on_device(axes: Axes, batch: int, new_filter: bool) -> int:
    """A convolution's cost in proportion: the tiles' points, since the memory decides.

    Lengths that are no powers of two take cuFFT's slower way (H200: 52 against 21 ps a point).
    A new filter's spectrum is to be made.
    """
    repeats = batch + _SPECTRUM * new_filter / (axes[0].count * axes[1].count)
    points = 1.0
    for axis in axes:
        points *= axis.count * axis.length
        points *= 1.0 if axis.length & (axis.length - 1) == 0 else _NO_POWER
    return round(repeats * points)
