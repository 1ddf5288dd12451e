"""Which part of a convolution is wanted, what lies beyond the image, and its Fourier tiles."""

from __future__ import annotations

import functools
from typing import NamedTuple

from hetero.problem import Window

__all__ = ["Axis", "Window", "good_length_cpu", "good_length_device", "one_tile", "tiles", "weight"]

_LENGTHS = tuple(sorted({a << k for k in range(4, 13) for a in (1, 3, 5)}))
_CACHED_POINTS = 1 << 16  # of a tile on the CPU; a larger one leaves a core's own cache
_UNCACHED = 1.3  # times as long per point
_POWERS = (256, 512, 1024, 2048, 4096)  # tiles on a GPU
_NO_POWER = 1.58  # times as long per point for each axis whose length is no power of two
_WORTH_A_POWER = 1.5


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


@functools.lru_cache(maxsize=1024)
def good_length_cpu(n: int) -> int:
    """The next length that SciPy's real transform likes."""
    from scipy.fft import next_fast_len

    return next_fast_len(n, real=True)


@functools.lru_cache(maxsize=1024)
def good_length_device(n: int) -> int:
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


def weight(axes: tuple[Axis, Axis], kind: str) -> int:
    """A transform's cost in proportion: its points, each as often as it is passed over.

    On a CPU log2 of a tile's points, and more outside the cache. On a GPU the memory decides, and
    lengths that are no powers of two take cuFFT's slower way (H200: 52 against 21 ps a point).
    """
    y, x = axes
    each = y.length * x.length
    number = y.count * x.count
    if kind != "cpu":
        slow = [1.0 if n & (n - 1) == 0 else _NO_POWER for n in (y.length, x.length)]
        return round(number * each * slow[0] * slow[1])
    passes = 2 + each.bit_length()
    return round(number * each * passes * (_UNCACHED if each > _CACHED_POINTS else 1.0))


def _one(size: int, filter_size: int, out: int, lead: int, extended: bool, good: object) -> Axis:
    """One tile along an axis, as short as it can be.

    Beyond the image are zeros, or with ``extended`` other values, which then belong to the tile.
    Circular convolution of length L adds full[r + L] to full[r]: the wanted results r = first ...
    first + out - 1 must not meet any r + L.
    """
    first = filter_size - 1 - lead
    if extended:
        return Axis(good(out + filter_size - 1), out, 1, -lead, filter_size - 1)
    return Axis(good(max(size + lead, first + out, filter_size)), out, 1, 0, first)


def one_tile(window: Window, good: object) -> tuple[Axis, Axis]:
    """The whole image as one tile; ``good`` gives the next length that transforms well."""
    w = window
    return (
        _one(w.height, w.filter_height, w.out_height, w.top, w.extended, good),
        _one(w.width, w.filter_width, w.out_width, w.left, w.extended, good),
    )


@functools.lru_cache(maxsize=1024)
def tiles(window: Window, kind: str = "cpu") -> tuple[Axis, Axis] | None:
    """The overlapping square tiles of least `weight`; None if one tile is all there is."""
    w = window
    best: tuple[float, tuple[Axis, Axis]] | None = None
    for length in _LENGTHS if kind == "cpu" else _POWERS:
        if length < 2 * max(w.filter_height, w.filter_width) - 1:
            continue
        axes = tuple(
            Axis(length, length - f + 1, -(-out // (length - f + 1)), -lead, f - 1)
            for f, out, lead in (
                (w.filter_height, w.out_height, w.top),
                (w.filter_width, w.out_width, w.left),
            )
        )
        if axes[0].count * axes[1].count < 2:
            break
        cost = weight(axes, kind)
        if best is None or cost < best[0]:
            best = cost, axes
    return best and best[1]
