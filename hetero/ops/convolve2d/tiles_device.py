"""Fourier tiles on a GPU: which lengths, how many, and what they cost."""

from __future__ import annotations

import functools

from hetero.arrays import HOST, Operand
from hetero.ops.convolve2d.filters import LARGEST_REMEMBERED
from hetero.ops.convolve2d.window import Axis, Window, one_tile

_POWERS = (256, 512, 1024, 2048, 4096)
_NO_POWER = 1.58  # times as long per point for each axis whose length is no power of two
_WORTH_A_POWER = 1.5
_SPECTRUM = 0.4  # of a tile: the filter is brought there and transformed, but not back


@functools.lru_cache(maxsize=1024)
def good_length(n: int) -> int:
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


def whole(window: Window) -> tuple[Axis, Axis]:
    """The image as one tile."""
    return one_tile(window, good_length)


@functools.lru_cache(maxsize=1024)
def tiles(window: Window) -> tuple[Axis, Axis] | None:
    """The overlapping square tiles of least `weight`; None if one tile is all there is."""
    w = window
    best: tuple[float, tuple[Axis, Axis]] | None = None
    for length in _POWERS:
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
        cost = weight(window, axes, 1, False)
        if best is None or cost < best[0]:
            best = cost, axes
    return best and best[1]


def is_new(filter: Operand) -> bool:
    """Whether a filter's spectrum is made at each call: others are remembered by their values."""
    return filter.location != HOST or filter.size > LARGEST_REMEMBERED


def weight(window: Window, axes: tuple[Axis, Axis], batch: int, new_filter: bool) -> int:
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
