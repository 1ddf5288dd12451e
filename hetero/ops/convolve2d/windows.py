"""Which part of a convolution is wanted, what lies beyond the image, and its Fourier tiles."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from hetero.runtime.problem import Window

__all__ = ["LARGEST_REMEMBERED", "Axis", "Window", "mode_of", "one_tile"]

LARGEST_REMEMBERED = 4096  # elements of a filter whose content is compared from call to call


def mode_of(window: Window) -> str | None:
    """The mode of SciPy that a window is of; None for a part of one, a band of rows."""
    w = window
    size, taps = (w.height, w.width), (w.filter_height, w.filter_width)
    out, lead = (w.out_height, w.out_width), (w.top, w.left)
    for mode, its_out, its_lead in (
        ("full", [n + f - 1 for n, f in zip(size, taps, strict=True)], [f - 1 for f in taps]),
        ("same", [*size], [f // 2 for f in taps]),
        ("valid", [n - f + 1 for n, f in zip(size, taps, strict=True)], [0, 0]),
    ):
        if [*out] == its_out and [*lead] == its_lead:
            return mode
    return None


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


def one_tile(window: Window, good: Callable[[int], int]) -> tuple[Axis, Axis]:
    """The whole image as one tile; ``good`` gives the next length that transforms well."""
    w = window
    return (
        _one(w.height, w.filter_height, w.out_height, w.top, w.extended, good),
        _one(w.width, w.filter_width, w.out_width, w.left, w.extended, good),
    )
