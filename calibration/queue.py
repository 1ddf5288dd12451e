"""Device time of calls that are shorter than what it takes to launch them.

Calls are queued behind a long copy, so that the device runs them back to back, and the time
between two events is the device's alone.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

from hetero.devices.base import Device

_HOST_SECONDS = 15e-6  # to launch one call, at most
_FASTEST_COPY = 2.5e12  # bytes per second and direction, of any device known


class Queue:
    """Times calls on one device by its own clock.

    Parameters
    ----------
    device : Device
        Active in this thread as long as this is used.
    nbytes : int
        Size of the copy that keeps the device busy while calls are queued.
    """

    def __init__(self, device: Device, nbytes: int = 1 << 30) -> None:
        self.device = device
        self._nbytes = nbytes
        self._source, self._source_owner = device.allocate(nbytes)
        self._target, self._target_owner = device.allocate(nbytes)

    def copy_bandwidth(self) -> float:
        """Bytes per second of a device-to-device copy, read plus written."""

        def copy(_: int) -> None:
            self.device.copy_from_peer(self._target, self.device, self._source, self._nbytes)

        return 2 * self._nbytes / self.seconds(copy, 4)

    def seconds(
        self,
        call: Callable[[int], None],
        count: int,
        repeats: int = 5,
        host_seconds: float = _HOST_SECONDS,
    ) -> float:
        """Median seconds of device time of ``call(i)``, over ``count`` calls back to back.

        ``host_seconds`` is what launching one of them takes, at most.
        """
        device = self.device
        call(0)
        device.synchronize()
        needed = int(count * host_seconds * _FASTEST_COPY)
        found = []
        for _ in range(repeats):
            for start in range(0, needed, self._nbytes):
                size = min(self._nbytes, needed - start)
                device.copy_from_peer(self._target, device, self._source, size)
            begin = device.event()
            for i in range(count):
                call(i)
            found.append(device.elapsed(begin, device.event()) / count)
        return median(found)

    def quickly(self, call: Callable[[int], None], repeats: int = 3) -> float:
        """Seconds of device time, with as few calls as its length allows."""
        device = self.device
        call(0)
        device.synchronize()
        begin = device.event()
        call(1)
        alone = device.elapsed(begin, device.event())
        if alone > 1e-3:
            return self.seconds(call, 1, repeats if alone < 0.02 else 1)
        return self.seconds(call, 4 if alone > 1e-4 else 16, repeats)
