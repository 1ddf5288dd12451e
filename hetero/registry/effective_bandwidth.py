"""Effective bandwidths by size (White 2013, sections 3.5 and 4.6)."""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any


def rate(bandwidth: dict[str, Any]) -> Callable[[tuple[int, ...]], float]:
    """Effective bandwidth in bytes per second as a function of the dimensions."""
    kind = bandwidth["kind"]
    unit = bandwidth["unit"]
    if kind == "constant":
        value = bandwidth["value"] * unit
        return lambda dims: value
    if kind == "clamped":  # min(max(numerator / n, low), high), section 3.5.1, n the mean extent
        numerator, low, high = bandwidth["numerator"], bandwidth["low"], bandwidth["high"]

        def of_square(dims: tuple[int, ...]) -> float:
            return unit * min(max(numerator / prod(dims) ** (1 / len(dims)), low), high)

        return of_square
    if kind == "filter":  # a / sqrt(FS) - n / b + c, section 3.5.1
        a, b, c = bandwidth["a"], bandwidth["b"], bandwidth["c"]

        def of_filter(dims: tuple[int, ...]) -> float:
            n, filter_size = sqrt(dims[0] * dims[1]), sqrt(dims[2] * dims[3])
            # The gain of small filters was fitted where they are much smaller than the image;
            # the crossover stated for FS ~ n (n <= 11) holds only without it.
            gain = a / sqrt(filter_size) if filter_size < n else 0.0
            return unit * max(gain - n / b + c, bandwidth["least"])

        return of_filter
    raise KeyError(f"unknown kind of bandwidth {kind!r}")
