"""Links of one device while nothing else is done: seconds of copies, and models of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from functools import partial
from statistics import median_low
from typing import Any

from hetero.calibration import fit_link, load
from hetero.calibration.copies import Copies, Way, is_asked
from hetero.calibration.measure import measure
from hetero.devices.base import Device
from hetero.runtime.cases import Budget, axis
from hetero.runtime.profile import PAGEABLE, PINNED, STAGED

_MOST_PLAIN = 1 << 26  # bytes of a measured copy by the driver alone, where it may be staged
_PASSES, _MORE_PASSES = 3, 2  # as long as processors are stolen
_STOLEN = 0.05  # of the processors' time that a pass wanted
_LONG = 1 << 26  # bytes, whose transfer is timed once in each pass
_SAME_RATE = 1.1

log = logging.getLogger("hetero")


def transfers(device: Device, sizes: list[int], budget: float) -> dict[Way, dict[int, float]]:
    """Seconds to move each size: (direction, kind of host memory) -> size -> seconds.

    Of several passes, each with other pageable memory, the typical one counts; of long transfers
    the fastest, since what went as fast as the next smaller one is not done again. Passes in which
    other virtual machines stole processors count only where there is no other.
    """
    copies = Copies(device, sizes[-1])
    found: dict[Way, dict[int, float]] = {way: {} for way in copies.ways}
    quiet: dict[tuple[Way, int], list[float]] = {}
    stolen: dict[tuple[Way, int], list[float]] = {}
    asked = {way: [n for n in sizes if _is_timed(way, n, copies.ways)] for way in copies.ways}
    left = asked
    for number in range(_PASSES + _MORE_PASSES):
        if number:
            copies.renew(max(n for wanted in left.values() for n in wanted))
        theft = Theft()
        taken = {(way, n): _timed(copies, way, n, budget) for way in left for n in left[way]}
        is_quiet = not theft.seen()
        for (way, n), seconds in taken.items():
            (quiet if is_quiet else stolen).setdefault((way, n), []).append(seconds)
            passes = quiet.get((way, n))
            if not passes:
                found[way][n] = min(stolen[way, n])
            else:
                found[way][n] = min(passes) if n > _LONG else median_low(passes)
        if number + 1 >= _PASSES and all((way, n) in quiet for way in asked for n in asked[way]):
            break
        left = {
            way: [
                n for n in wanted if n <= _LONG or (way, n) not in quiet or _is_slow(found[way], n)
            ]
            for way, wanted in asked.items()
        }
    if doubtful := sum((way, n) not in quiet for way in asked for n in asked[way]):
        log.warning(
            "%s: %d of %d copies were timed only while other virtual machines took processors",
            *(device.name, doubtful, sum(map(len, asked.values()))),
        )
    return found


def _is_timed(way: Way, nbytes: int, ways: Sequence[Way]) -> bool:
    """Whether copies of so many bytes are measured, where these are the ways to copy."""
    is_plain = way[1] == PAGEABLE and (way[0], STAGED) in ways
    return is_asked(way, nbytes) and not (is_plain and nbytes > _MOST_PLAIN)


def _timed(copies: Copies, way: Way, nbytes: int, budget: float) -> float:
    """Seconds of a copy, in one pass."""
    call, rest = partial(copies, *way, nbytes), partial(copies.rest, way)
    if nbytes >= _LONG:
        if way[0] == "download" and way[1] != PINNED and ("download", STAGED) in copies.ways:
            call()  # brings the result's pages
        rest()
        return _once(call)
    return measure(call, budget=budget / _PASSES, rest=rest).seconds


class Theft:
    """Whether other virtual machines take processors that this process wants, from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = load.times()
        return (times.stolen if times is not None else 0.0), load.own()

    def seen(self) -> bool:
        """Whether they did, by more than what a tick of the system tells."""
        stolen, own = (now - then for now, then in zip(self._now(), self._before, strict=True))
        return stolen > 2 * load.TICK and stolen > _STOLEN * (own + stolen)


def _is_slow(seconds: dict[int, float], nbytes: int) -> bool:
    """Whether a copy went clearly slower than the next smaller one."""
    smaller = max(n for n in seconds if n < nbytes)
    return seconds[nbytes] / nbytes > _SAME_RATE * seconds[smaller] / smaller


def _once(call: Callable[[], object]) -> float:
    """Seconds of one call, the first: where it was slow, another pass tells."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_transfer, int(device.describe()["memory_bytes"]) // 4)
    short = axis(1024, min(largest, _LONG), budget.link_step)
    sizes = [*short, *axis(short[-1], largest, budget.link_step**2)[1:]]
    sizes = [size // 8 * 8 for size in sizes]  # whole float64s
    found: dict[str, Any] = {"upload": {}, "download": {}}
    for (direction, memory), seconds in transfers(device, sizes, 3 * budget.point).items():
        found[direction][memory] = fit_link.segments([*seconds], [*seconds.values()])
    return found
