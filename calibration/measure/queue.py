"""Device time of calls, also of those shorter than their launch.

Calls are queued behind a long copy, so that the device runs them back to back, and the time
between two events is the device's alone. If the copy ended before all calls were queued, the device
may have waited for the host: then the time is taken again, behind a longer copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from hetero.devices.base import Device

_HOST_SECONDS = 15e-6  # to launch one call, unless it was measured to take longer
_MARGIN, _HELD_UP = 1.5, 3e-4  # times the measured launch; seconds, too long for a launch
_COPIED = 1 << 28  # bytes of the copy that measures the speed of copies
_LEAST_HIDDEN = 2e-4  # seconds: some launches take far longer than others
_LONGEST_COPY = 0.01  # seconds
_REPEATS = 3  # of calls that are timed quickly
_LONG = 1e-3  # seconds of a call, above which calls are timed one at a time
_VERY_LONG = 5e-3  # seconds of a call, above which one is timed


class Queue:
    """Times calls on one device by its own clock; the device is active as long as this is used.

    ``nbytes`` is the size of the copy that keeps it busy while calls are queued.
    """

    def __init__(self, device: Device, nbytes: int = 1 << 30) -> None:
        self.device = device
        self._nbytes = nbytes
        self._source, self._source_owner = device.allocate(nbytes)
        self._target, self._target_owner = device.allocate(nbytes)
        self._rate = 0.0  # bytes per second of a copy, the fastest seen

    def copy_bandwidth(self) -> float:
        """Bytes per second of a device-to-device copy, read plus written."""

        def copy(_: int) -> None:
            self.device.copy_from_peer(self._target, self.device, self._source, self._nbytes)

        return 2 * self._nbytes / self.seconds(copy, 4)

    def seconds(self, call: Callable[[int], None], count: int, repeats: int = 5) -> float:
        """Median seconds of device time of ``call(i)``, over ``count`` calls back to back."""
        call(0)
        self.device.synchronize()
        return self._seconds(call, count, repeats)

    def _seconds(
        self,
        call: Callable[[int], None],
        count: int,
        repeats: int,
        host_seconds: float = _HOST_SECONDS,
    ) -> float:
        """As `seconds`, without a warm-up; launching a call takes ``host_seconds`` at most."""
        device, hidden = self.device, max(count * host_seconds, _LEAST_HIDDEN)
        samples: list[float] = []
        late: list[float] = []  # other load on the host only adds to these
        while len(samples) < repeats and len(samples) + len(late) < 2 * repeats:
            self._copy_for(hidden)
            begin = device.event()
            for i in range(count):
                call(i)
            waited = device.passed(begin)
            (late if waited else samples).append(device.elapsed(begin, device.event()) / count)
            if waited:
                hidden = min(2 * hidden, max(_LONGEST_COPY, hidden))
        return median(samples) if samples else min(late)

    def _copy_for(self, seconds: float) -> None:
        """Keep the device busy for at least this time."""
        if not self._rate:
            self._rate = max(self._copied() for _ in range(3))
        needed = int(seconds * self._rate)
        for start in range(0, needed, self._nbytes):
            size = min(self._nbytes, needed - start)
            self.device.copy_from_peer(self._target, self.device, self._source, size)

    def _copied(self) -> float:
        """Bytes per second of a copy."""
        size = min(_COPIED, self._nbytes)
        begin = self.device.event()
        self.device.copy_from_peer(self._target, self.device, self._source, size)
        return size / self.device.elapsed(begin, self.device.event())

    def quickly(self, call: Callable[[int], None]) -> float:
        """Seconds of device time, with as few calls as its length allows."""
        begin = self.device.event()
        call(0)  # warm-up: its code may have to be loaded
        if self.device.elapsed(begin, self.device.event()) > _VERY_LONG:
            seconds = self._seconds(call, 1, 1)
            if seconds > _VERY_LONG:
                return seconds
        alone, launch = self._alone(call)
        if alone > _LONG:  # or the host was delayed
            alone, launch = map(min, (alone, launch), self._alone(call))
        if not _HOST_SECONDS < launch < _HELD_UP:
            launch = _HOST_SECONDS
        if alone > _LONG:
            return self._seconds(call, 1, _REPEATS, launch)
        return self._seconds(call, 2 if alone > 1e-4 else 8, _REPEATS, launch)

    def _alone(self, call: Callable[[int], None]) -> tuple[float, float]:
        """Seconds of one call on an idle device, the host's share included, and that share."""
        begin, start = self.device.event(), time.perf_counter()
        call(1)
        launch = _MARGIN * (time.perf_counter() - start)
        return self.device.elapsed(begin, self.device.event()), launch
