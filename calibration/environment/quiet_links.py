"""Links of one device on an idle machine: seconds of copies, and models of them."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from functools import partial
from statistics import median_low
from typing import Any

from hetero.calibration.environment.copies import Copies, Way, is_asked
from hetero.calibration.fit import fit_link
from hetero.calibration.measure import timing
from hetero.calibration.measure.timing import measure, once
from hetero.devices.base import Device
from hetero.ops.cases import Budget, axis
from hetero.profile import PAGEABLE, PINNED, STAGED
from hetero.profile.constants import LEFT

_MOST_PLAIN = 1 << 26  # bytes of a measured copy by the driver alone, where it may be staged
_PASSES, _MORE_PASSES = 3, 2  # as long as processors are stolen
_MOST_SECONDS = 3.0  # of all passes, where there are more
_STOLEN = 0.05  # of the processors' time in a pass
_ALIKE = 1.15  # times the least: passes that agree
_LONG = 1 << 26  # bytes; a transfer of more is timed once in each pass
_SAME_RATE = 1.1

log = logging.getLogger("hetero")


def transfers(device: Device, sizes: list[int], budget: float) -> dict[Way, dict[int, float]]:
    """Seconds to move each size: (direction, kind of host memory) -> size -> seconds.

    In several passes, each with other pageable memory; `Seen` combines them. A long transfer with
    the rate of the next smaller one is not repeated.
    """
    copies, seen = Copies(device, sizes[-1]), Seen()
    asked = [(way, n) for way in copies.ways for n in sizes if _is_timed(way, n, copies.ways)]
    left, anew, begin = asked, 0, time.perf_counter()
    for number in range(1, _PASSES + _MORE_PASSES + 1):
        if number > 1:
            copies.renew(anew)
        theft = Theft()
        taken = {(way, n): _timed(copies, way, n, budget) for way, n in left}
        seen.add(taken, theft.seen())
        if number < _PASSES:
            slow = [(way, n) for way, n in asked if n > _LONG and seen.is_slow(way, n)]
            again = {key for key in asked if key[1] <= _LONG or key not in seen.quiet}.union(slow)
            anew = max([n for _, n in slow], default=_LONG)
        else:
            again, anew = seen.doubtful(), _LONG
            following = (time.perf_counter() - begin) * (number + 1) / number
            if not again or following > _MOST_SECONDS:
                break
        left = [key for key in asked if key in again]
    doubtful = len(seen.doubtful())
    if doubtful > LEFT * len(asked):
        log.warning(
            "%s: %d of %d copies differ, all timed while other virtual machines took processors",
            *(device.name, doubtful, len(asked)),
        )
    times: dict[Way, dict[int, float]] = {way: {} for way in copies.ways}
    for way, n in asked:
        times[way][n] = seen.seconds(way, n)
    return times


class Seen:
    """Seconds of copies in each pass, separately for passes in which processors were stolen.

    Those count only where there are no others.

    Attributes
    ----------
    quiet, stolen : dict
        Way and bytes -> seconds in each pass.
    """

    def __init__(self) -> None:
        self.quiet: dict[tuple[Way, int], list[float]] = {}
        self.stolen: dict[tuple[Way, int], list[float]] = {}

    def add(self, taken: dict[tuple[Way, int], float], is_stolen: bool) -> None:
        """Add one pass."""
        passes = self.stolen if is_stolen else self.quiet
        for key, seconds in taken.items():
            passes.setdefault(key, []).append(seconds)

    def seconds(self, way: Way, nbytes: int) -> float:
        """The median pass; of long copies the fastest.

        The fastest also where passes differ because of stolen time, which only adds.
        """
        key = way, nbytes
        passes = self.quiet.get(key) or self.stolen[key]
        return min(passes) if nbytes > _LONG or self._differs(key) else median_low(passes)

    def doubtful(self) -> set[tuple[Way, int]]:
        """Copies of which all passes met stolen time, and differ."""
        return {key for key in self.stolen if self._differs(key)}

    def _differs(self, key: tuple[Way, int]) -> bool:
        passes = self.stolen.get(key, (0.0,))
        return key not in self.quiet and max(passes) > _ALIKE * min(passes)

    def is_slow(self, way: Way, nbytes: int) -> bool:
        """Whether a copy went clearly slower than the next smaller one."""
        smaller = max(
            n for which, n in {**self.quiet, **self.stolen} if which == way and n < nbytes
        )
        mine, others = self.seconds(way, nbytes) / nbytes, self.seconds(way, smaller) / smaller
        return mine > _SAME_RATE * others


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


class Theft:
    """Measures how much processor time other virtual machines steal, from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = timing.processor_times()
        return (times.stolen if times is not None else 0.0), timing.own_time()

    def seen(self) -> bool:
        """Whether time was stolen, by more than the resolution of the system's ticks."""
        stolen, own = (now - then for now, then in zip(self._now(), self._before, strict=True))
        return stolen > 2 * timing.TICK and stolen > _STOLEN * (own + stolen)


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
