"""Logarithmic axes: where a value lies, which ticks there are, and how they are written."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

from hetero.pricing.plan import readable

_ROOM = 0.03  # of the length, beyond all values


class Scale(NamedTuple):
    """From values to units of a picture, logarithmically.

    Attributes
    ----------
    least, most : float
        Values at the two ends.
    begin, end : float
        Their places.
    """

    least: float
    most: float
    begin: float
    end: float

    def at(self, value: float) -> float:
        part = math.log(value / self.least) / math.log(self.most / self.least)
        return self.begin + part * (self.end - self.begin)


def with_room(limits: tuple[float, float]) -> tuple[float, float]:
    """Some room beyond the least and the most value; and a tick at least, at a power of ten."""
    least, most = limits if limits[0] < limits[1] else (limits[0] / 2, limits[0] * 2)
    room = (most / least) ** _ROOM
    least, most = least / room, most * room
    if not decades(least, most):
        least = 10.0 ** math.floor(math.log10(least))
    return least, most


def decades(least: float, most: float, number: int = 7) -> list[float]:
    """Powers of ten from least to most, every second one and so on where there are too many; where
    there are few their double and fivefold, too."""
    first, last = math.ceil(math.log10(least) - 1e-9), math.floor(math.log10(most) + 1e-9)
    if last - first < 2:
        found = [
            factor * 10.0**power for power in range(first - 1, last + 1) for factor in (1, 2, 5)
        ]
        return [tick for tick in found if least * (1 - 1e-9) <= tick <= most * (1 + 1e-9)]
    step = max(1, math.ceil((last - first + 1) / number))
    return [10.0**power for power in range(first, last + 1, step)]


def doublings(least: float, most: float, number: int = 6) -> list[float]:
    """Powers of two likewise."""
    first, last = math.ceil(math.log2(least) - 1e-9), math.floor(math.log2(most) + 1e-9)
    step = max(1, math.ceil((last - first + 1) / number))
    return [2.0**power for power in range(first, last + 1, step)]


def whole(value: float) -> str:
    """A size as it is written: 4096, 32k, 1M."""
    for unit, scale in (("M", 1 << 20), ("k", 1 << 10)):
        if value >= 16 * scale or (unit == "M" and value >= scale):
            return f"{value / scale:.3g}{unit}"
    return f"{value:.0f}"


def in_bytes(value: float) -> str:
    """Bytes: 64 KiB."""
    for unit, scale in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.0f} B"


def rate(value: float) -> str:
    """Bytes per second: 55 GB/s."""
    return f"{value / 1e12:.3g} TB/s" if value >= 999.5e9 else f"{value / 1e9:.3g} GB/s"


def scaled(value: float) -> str:
    """A number with a prefix: 51 T."""
    for unit, scale in (("T", 1e12), ("G", 1e9), ("M", 1e6)):
        if value >= scale:
            return f"{value / scale:.3g} {unit}"
    return f"{value:.3g} "


def flops(value: float) -> str:
    """Floating-point operations per second: 51 TFLOP/s."""
    return f"{scaled(value)}FLOP/s"


def seconds(value: float) -> str:
    """A time at an axis; from ten thousand seconds on in powers of ten."""
    if value < 9999.5:
        return readable(value) if value < 59.5 else f"{value:.0f} s"
    digits, exponent = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(exponent)} s"


Writer = Callable[[float], str]
