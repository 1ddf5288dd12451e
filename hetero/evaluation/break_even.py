"""From which size on, and from how many calls on, moving operands to a device pays.

Pure arithmetic on seconds. The size of a call is one extent, its leading one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import dropwhile, takewhile
from typing import NamedTuple

Seconds = Callable[[int], float | None]  # of a leading extent; None: not known, or no room

_STEPS = 2  # sizes from one to twice as much


class BreakEven(NamedTuple):
    """From which leading extent on a device with its copies is faster than the CPU."""

    extent: int | None  # None where it is not within the sizes that were looked at
    smallest: int  # the first and the last of these
    largest: int


def extents(smallest: int, largest: int) -> list[int]:
    """Leading extents to look at, evenly on a logarithmic scale, both ends included.

    Examples
    --------
    >>> extents(8, 32)
    [8, 11, 16, 23, 32]
    """
    number = max(math.ceil(_STEPS * math.log2(largest / smallest)), 1)
    step = (largest / smallest) ** (1.0 / number)
    found = [round(smallest * step**index) for index in range(number)]
    return [*dict.fromkeys(found), largest] if largest > smallest else [smallest]


def break_even(cpu: Seconds, device: Seconds, sizes: Sequence[int]) -> BreakEven:
    """The smallest extent from which on the device is faster than the CPU.

    It is faster at every one of ``sizes`` above it. Between two of these it is looked for by
    halving. Sizes that one of the two cannot do end the search.

    Examples
    --------
    >>> break_even(lambda n: n**3 * 1e-9, lambda n: 1e-3 + n**2 * 1e-9, [8, 64, 512])
    BreakEven(extent=101, smallest=8, largest=512)
    """

    def faster(extent: int) -> bool | None:
        there, here = device(extent), cpu(extent)
        return None if there is None or here is None else there < here

    compared = ((size, faster(size)) for size in sizes)
    known = dropwhile(lambda one: one[1] is None, compared)  # the smallest ones may be what a
    seen = [*takewhile(lambda one: one[1] is not None, known)]  # device does not do
    if not seen:
        return BreakEven(None, sizes[0], sizes[-1])
    smallest, largest = seen[0][0], seen[-1][0]
    won = [size for size, _ in takewhile(lambda one: one[1], reversed(seen))]
    if not won or len(won) == len(seen):
        return BreakEven(won[-1] if won else None, smallest, largest)
    low, high = seen[-len(won) - 1][0], won[-1]
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if faster(middle) else (middle, high)
    return BreakEven(high, smallest, largest)


def calls_from(once: float, each: float, cpu: float) -> int | None:
    """The number of calls from which on ``once + calls x each`` is less than ``calls x cpu``; None
    where no number is enough. All are seconds.

    Examples
    --------
    >>> calls_from(10.0, 1.0, 4.0), calls_from(9.0, 1.0, 4.0), calls_from(1.0, 4.0, 4.0)
    (4, 4, None)
    """
    gained = cpu - each
    if gained <= 0.0:
        return None
    return math.floor(once / gained) + 1
