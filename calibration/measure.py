"""Timing of calls, by the host's clock and by a device's; and how busy other work kept the machine.

Other load only adds to the time of a call, and comes in bursts. So each sample is the median of the
undisturbed half of its repeats: the faster one.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import time
from collections.abc import Callable, Collection, Sequence
from statistics import median
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.errors import DeviceError

# -- By the host's clock --
_VERY_LONG = 10.0  # budgets, of a call of which two samples are enough
_SHORTEST = 2e-5  # seconds; a shorter sample repeats the call, against the clock's resolution
_ENOUGH, _ALIKE = 6, 1.02  # samples, of which the faster half differ by this ratio at most
_UNTIL_IDLE = 0.3  # seconds: idle threads of OpenBLAS look for work for 0.1 s
# Seconds in which a thread that computes is noticed: the system counts its time at ticks, of which
# there are 100 to 1000 in a second.
_REST = 0.012
_IDLE = 0.25  # fraction of a processor below which no thread computes
# Times as long as more work takes, and as much less work allows: caches, threads and lengths that
# suit an algorithm bend true curves by less.
_MORE, _LESS = 1.5, 3.0
# -- By the device's clock --
_HOST_SECONDS = 15e-6  # to launch one call
# Bytes of the copy that measures the speed of copies; of one that keeps a device busy, at most.
_COPIED, _BUSY = 1 << 28, 1 << 30
_LEAST_HIDDEN = 2e-4  # seconds: some launches take far longer than others
_LONGEST_COPY = 0.01  # seconds
_REPEATS = 3  # of calls that are timed quickly
_ALONE = 1e-3  # seconds of a call, above which calls are timed one at a time
_ONCE = 5e-3  # seconds of a call, above which one is timed
_STAT = "/proc/stat"
log = logging.getLogger("hetero")


def undisturbed(samples: Sequence[float]) -> float:
    """Median of the faster half of the samples."""
    return median(sorted(samples)[: (len(samples) + 1) // 2])


def monotone(
    axes: Sequence[Sequence[float]],
    seconds: Sequence[float],
    more: float = _MORE,
    less: float = _LESS,
) -> list[float]:
    """Seconds of all knots of a grid, those shortened that the other knots rule out.

    More work takes no less time, and n times the work at most n times as long: within the factors
    ``more`` and ``less``. A knot beyond them was measured while other load took the processors.
    ``axes`` have the knots of each dimension, increasing; the work is in proportion to each.
    ``seconds`` are of each knot, the last dimension fastest; infinite where they are not known.
    """
    table = np.reshape(np.asarray(seconds), [len(axis) for axis in axes])
    if min(table.min(), *map(min, axes)) <= 0.0:
        raise ValueError("a grid's knots and seconds must be positive")
    by_less = by_more = table
    for number, axis in enumerate(axes):
        along = [-1 if n == number else 1 for n in range(len(axes))]
        work = np.reshape(np.asarray(axis, float), along)
        by_less = np.minimum.accumulate(by_less / work, number) * work
        by_more = np.flip(np.minimum.accumulate(np.flip(by_more, number), number), number)
    bound = np.minimum(less * by_less, more * by_more)
    return np.minimum(table, bound).ravel().tolist()


def once(call: Callable[[], object], number: int = 1) -> float:
    """Seconds of a number of calls."""
    begin = time.perf_counter()
    for _ in range(number):
        call()
    return time.perf_counter() - begin


def measure(
    call: Callable[[], object],
    *,
    budget: float,
    least: int = 3,
    most: int = 200,
    rest: Callable[[], object] = lambda: None,
) -> float:
    """Seconds of a call, which returns when its work is done: taken until the faster half of six
    samples or more are alike, or the time is up.

    After ``budget`` seconds no further sample is taken. The first call counts where it alone takes
    longer; else it loads caches, makes pages and compiles. There are ``least`` samples at least,
    but of calls that take ten times the budget two are enough, and ``most`` at most. ``rest`` is
    called before each sample, and not timed.
    """
    end = time.perf_counter() + budget
    first, number = once(call), 1
    samples = [first] if first > budget else []
    if first > _VERY_LONG * budget:
        least = min(least, 2)

    def is_enough() -> bool:
        half = sorted(samples)[: (len(samples) + 1) // 2]
        sure = len(samples) >= _ENOUGH and half[-1] <= _ALIKE * half[0]
        return len(samples) >= most or time.perf_counter() > end or sure

    while len(samples) < least or not is_enough():
        rest()
        took = once(call, number)
        if not samples and took < _SHORTEST and number == 1:
            number = max(2, min(100, int(_SHORTEST / max(took, 2e-7))))
            continue
        samples.append(took / number)
    return undisturbed(samples)


def awaited(call: Callable[[], object], devices: Collection[Device]) -> Callable[[], object]:
    """A call that returns when these devices have done what it asked of them."""

    def run() -> None:
        call()
        for device in devices:
            with device.active():
                device.synchronize()

    return run if devices else call


def in_turn(calls: Sequence[Callable[[], object]], *, budget: float) -> list[float]:
    """Seconds of several calls, made in turn until ``budget`` is up for all, at least twice each.

    Differences between them count, and a slow spell that met only one would spoil these.
    """
    rounds: list[list[float]] = []
    end = time.perf_counter() + budget
    while len(rounds) < 2 or time.perf_counter() <= end:
        rounds.append([once(call) for call in calls])
    return [undisturbed(samples) for samples in zip(*rounds, strict=True)]


def wait_until_idle() -> None:
    """Wait until no thread of this process computes: those of BLAS spin for 0.1 s after a product.

    Not for long: other threads of the program may compute for ever.
    """
    end = time.perf_counter() + _UNTIL_IDLE
    while time.perf_counter() < end:
        before = time.process_time()
        time.sleep(_REST)
        if time.process_time() - before < _IDLE * _REST:
            return


class Queue:
    """Times calls on one device by its own clock, also those that are shorter than their launch;
    the device is active as long as this is used.

    Calls are queued behind a long copy, so that the device runs them back to back, and the time
    between two events is the device's alone. If the copy ended before all calls were queued, the
    device may have waited for the host: then the time is taken again, behind a longer copy.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self._source, self._source_owner = device.allocate(_BUSY)
        self._target, self._target_owner = device.allocate(_BUSY)
        self._rate = 0.0  # bytes per second of a copy, the fastest seen

    def copy_bandwidth(self) -> float:
        """Bytes per second of a device-to-device copy, read plus written."""
        self._copy(_BUSY)
        self.device.synchronize()
        return 2 * _BUSY / self._seconds(lambda _: self._copy(_BUSY), 4, 5)

    def _seconds(self, call: Callable[[int], None], count: int, repeats: int) -> float:
        """Median seconds of device time of ``call(i)``, over ``count`` calls back to back."""
        device, hidden = self.device, max(count * _HOST_SECONDS, _LEAST_HIDDEN)
        samples: list[float] = []
        late: list[float] = []  # other load on the host only adds to these
        while len(samples) < repeats and len(samples) + len(late) < 2 * repeats:
            self._copy_for(hidden)
            begin = device.record(timed=True)
            for i in range(count):
                call(i)
            waited = device.passed(begin)
            (late if waited else samples).append(
                device.elapsed(begin, device.record(timed=True)) / count
            )
            if waited:
                hidden = min(2 * hidden, max(_LONGEST_COPY, hidden))
        return median(samples) if samples else min(late)

    def _copy_for(self, seconds: float) -> None:
        """Keep the device busy for at least this time."""
        if not self._rate:
            taken = [self._alone(lambda _: self._copy(_COPIED)) for _ in range(3)]
            self._rate = _COPIED / min(taken)
        needed = int(seconds * self._rate)
        for start in range(0, needed, _BUSY):
            self._copy(min(_BUSY, needed - start))

    def _copy(self, nbytes: int) -> None:
        self.device.copy(self._target, self._source, nbytes)

    def quickly(self, call: Callable[[int], None]) -> float:
        """Seconds of device time, with as few calls as its length allows."""
        alone = self._alone(call)  # for which code may be loaded
        if alone > _ONCE and (taken := self._seconds(call, 1, 1)) > _ONCE:
            return taken
        alone = min(alone, self._alone(call))
        return self._seconds(call, 1 if alone > _ALONE else 2 if alone > 1e-4 else 8, _REPEATS)

    def _alone(self, call: Callable[[int], None]) -> float:
        """Seconds of one call on an idle device, the host's share included."""
        begin = self.device.record(timed=True)
        call(0)
        return self.device.elapsed(begin, self.device.record(timed=True))


# -- Failures and other load -----------------------------------------------------------------------


@contextlib.contextmanager
def leaving_out(what: object) -> Any:
    """Run a block; where it fails, say that what it measures is left out, and why."""
    try:
        yield
    except Exception as error:
        text = str(error).partition("\n")[0]
        if not isinstance(error, DeviceError):
            text = f"{type(error).__name__}: {text}"
        log.warning("calibration leaves out %s: %s", what, text)


def reading() -> tuple[float, float, float]:
    """What the processors did so far, in seconds: passed, those of all processes, and of this one
    with its finished children; all processes' are not a number where the system does not say."""
    own = time.process_time() + sum(os.times()[2:4])
    try:
        with open(_STAT, "rb") as file:
            # user nice system idle iowait irq softirq steal
            ticks = [int(field) for field in file.readline().split()[1:9]]
        busy = (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        busy = math.nan
    return time.perf_counter(), busy, own


def load(before: tuple[float, float, float], after: tuple[float, float, float]) -> dict[str, Any]:
    """The other load between two readings, as a profile keeps it: ``others`` is how many cores
    other processes kept busy, on average; None where it is not known."""
    passed, busy, own = (now - then for then, now in zip(before, after, strict=True))
    others = None if math.isnan(busy) else max((busy - own) / max(passed, 1e-9), 0.0)
    return {
        "seconds": round(passed, 3),
        "cores": os.cpu_count() or 1,
        "others": others if others is None else round(others, 3),
    }


def described(seen: dict[str, Any]) -> str:
    """The other load as text, and how many samples it spoiled."""
    text = "how busy other processes kept the cores is not known"
    if seen.get("others") is not None:
        text = f"other processes kept {seen['others']:.1f} of {seen['cores']} cores busy"
    if "samples" in seen:
        text += f", {seen['left']} of {seen['samples']} samples are doubtful"
    return text
