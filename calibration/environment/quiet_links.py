"""Links of one device on an idle machine: seconds of copies, and models of them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median_low
from typing import Any

from hetero.calibration.environment.copies import Copies, Way, is_asked
from hetero.calibration.fit import fit_link
from hetero.calibration.measure.timing import measure, once
from hetero.devices.base import Device
from hetero.ops.cases import Budget, axis
from hetero.profile import PAGEABLE, PINNED, STAGED

_MOST_PLAIN = 1 << 26  # bytes of a measured copy by the driver alone, where it may be staged
_PASSES = 3
_LONG = 1 << 26  # bytes; a transfer of more is timed once in each pass
_SAME_RATE = 1.1


def transfers(device: Device, sizes: list[int], budget: float) -> dict[Way, dict[int, float]]:
    """Seconds to move each size: (direction, kind of host memory) -> size -> seconds.

    In several passes, each with other pageable memory: its place decides the speed. The median
    counts. A long transfer counts by its fastest pass, and has one unless its rate is clearly below
    that of the next smaller one.
    """
    copies = Copies(device, sizes[-1])
    asked = [(way, n) for way in copies.ways for n in sizes if _is_timed(way, n, copies.ways)]
    times: dict[Way, dict[int, float]] = {way: {} for way in copies.ways}
    passes: dict[tuple[Way, int], list[float]] = {key: [] for key in asked}
    left, anew = asked, 0
    for number in range(_PASSES):
        if number:
            copies.renew(anew)
        for way, n in left:
            passes[way, n].append(_timed(copies, way, n, budget))
        for way, n in asked:
            taken = passes[way, n]
            times[way][n] = min(taken) if n > _LONG else median_low(taken)
        slow = [(way, n) for way, n in asked if n > _LONG and _is_slow(times[way], n)]
        left = [(way, n) for way, n in asked if n <= _LONG or (way, n) in slow]
        anew = max([n for _, n in slow], default=_LONG)
    return times


def _is_slow(times: dict[int, float], nbytes: int) -> bool:
    """Whether a copy went clearly slower than the next smaller one."""
    smaller = max(n for n in times if n < nbytes)
    return times[nbytes] / nbytes > _SAME_RATE * times[smaller] / smaller


def _is_timed(way: Way, nbytes: int, ways: Sequence[Way]) -> bool:
    """Whether copies of this size are measured, where these are the ways to copy."""
    is_plain = way[1] == PAGEABLE and (way[0], STAGED) in ways
    return is_asked(way, nbytes) and not (is_plain and nbytes > _MOST_PLAIN)


def _timed(copies: Copies, way: Way, nbytes: int, budget: float) -> float:
    """Seconds of a copy, in one pass."""
    call, rest = partial(copies, *way, nbytes), partial(copies.rest, way)
    if nbytes >= _LONG:
        if way[0] == "download" and way[1] != PINNED and ("download", STAGED) in copies.ways:
            call()  # takes the page faults of the result
        rest()
        return once(call)  # where the first one was slow, another pass tells
    return measure(call, budget=budget / _PASSES, rest=rest).seconds


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_transfer, int(device.describe()["memory_bytes"]) // 4)
    short = axis(1024, min(largest, _LONG), budget.link_step)
    sizes = [*short, *axis(short[-1], largest, budget.link_step**2)[1:]]
    sizes = [size // 8 * 8 for size in sizes]  # whole float64s
    models: dict[str, Any] = {"upload": {}, "download": {}}
    for (direction, memory), seconds in transfers(device, sizes, 3 * budget.point).items():
        models[direction][memory] = fit_link.segments([*seconds], [*seconds.values()])
    return models
