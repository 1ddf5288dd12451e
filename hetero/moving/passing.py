"""Parts of host arrays that each of several devices needs for one call: each goes up once.

Devices that share a call go through ranges of their own (`streaming`). A part of an array that all
of them read whole has a home: the device that uploads it. Once it is up, the home's thread begins
to copy it to the other devices, while all compute. So every byte goes over the host's bus once, not
once for each device. That takes direct paths between all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from itertools import combinations
from typing import Any

import numpy as np

from hetero import locks
from hetero.devices import at_once, peers
from hetero.devices.base import Copy, Device
from hetero.errors import DeviceError
from hetero.host.copying.copy_jobs import Flight
from hetero.moving.pipeline import Slot

Key = tuple[Any, ...]
_LATE = 0.5  # seconds that a home may take to begin, before the others do without it

relay: ContextVar[Relay | None] = ContextVar("relay", default=None)  # of the call, in its threads


class Relay:
    """Which parts lie on which device.

    Parameters
    ----------
    devices : sequence of Device
        Those that share the call, all of which go through ranges at the same time.
    arrays : sequence of int
        Numbers of the arrays that all of them read whole.
    """

    def __init__(self, devices: Sequence[Device], arrays: Sequence[int]) -> None:
        self.devices, self.arrays = tuple(devices), frozenset(arrays)
        self.news = locks.condition()
        self.parts: dict[Key, _Part] = {}
        self.begun: set[Device] = set()
        self.ended: set[Device] = set()  # who need no part any longer
        self.late = time.monotonic() + _LATE

    def home(self, part: int, parts: int) -> Device:
        """The device that uploads a part of an array."""
        return self.devices[part * len(self.devices) // parts]

    @contextmanager
    def joined(self, device: Device, homes: dict[Key, Device]) -> Iterator[Callable[..., Any]]:
        """``begin(key)`` gives what begins a load of a part, where ``homes`` has its home.

        Until the others have what lies on this device, it stays there.
        """
        own = [self._part(key, home) for key, home in homes.items() if home is device]
        for part in own:
            part.is_promised = True
        self._tell(self.begun, device)

        def begin(key: Key) -> Callable[[np.ndarray, Slot], Copy] | None:
            if key not in homes:
                return None
            part = self._part(key, homes[key])
            return part.upload if part.home is device else partial(_Passed, self, part, device)

        try:
            yield begin
            self._tell(self.ended, device)
            with self.news:
                self.news.wait_for(lambda: self.begun <= self.ended)
        finally:
            self._tell(self.ended, device)
            for part in own:
                part.close()

    def _part(self, key: Key, home: Device) -> _Part:
        with self.news:
            return self.parts.setdefault(key, _Part(home, self.news))

    def _tell(self, those: set[Device], device: Device) -> None:
        with self.news:
            those.add(device)
            self.news.notify_all()


class _Part:
    """A part of an array: where it lies once it is up, and who waits for it."""

    def __init__(self, home: Device, lock: Any) -> None:
        self.home, self.lock = home, lock
        self.is_promised = self.is_settled = False  # by its home; whether it comes or never will
        self.slot: Slot | None = None  # where it lies, from the events on that come when it is up
        self.marks: Sequence[Any] | None = None
        self.wanted: list[_Passed] = []
        self.sent: list[_Passed] = []

    def upload(self, source: np.ndarray, slot: Slot) -> Copy:
        """Begin the home's upload; then the part is sent to the others."""
        self.slot = slot
        copy = self.home.begin_upload(source, slot.buffer, 0, slot.free)
        copy.then(self.settle)
        return copy

    def settle(self, marks: Sequence[Any] | None) -> None:
        """Note when the part is up, or None that it never will be, and answer all who want it."""
        with self.lock:
            if not self.is_settled:
                self.is_settled, self.marks = True, marks
        self.answer()

    def answer(self) -> None:
        """Send the part to those who want it, or tell them that it does not come."""
        while True:
            with self.lock:
                if not (self.is_settled and self.wanted):
                    return
                passed = self.wanted.pop()
                self.sent.append(passed)
            passed.begin()

    def close(self) -> None:
        """Return when nobody reads the home's memory, which is freed then."""
        with self.lock:
            self.is_settled, self.marks = True, None
        self.answer()
        for passed in self.sent:
            while True:
                with suppress(KeyboardInterrupt):
                    passed.has_come()
                    break


class _Passed(Copy):
    """A part on its way from its home to another device; from the host where it does not come."""

    def __init__(
        self, relay: Relay, part: _Part, device: Device, source: np.ndarray, slot: Slot
    ) -> None:
        super().__init__(device, Flight())
        self._relay, self._part, self._source, self._slot = relay, part, source, slot
        part.wanted.append(self)
        part.answer()

    def begin(self) -> None:
        """Begin the copy, by the thread that has the part: behind its upload, on the device."""
        device, part, marks = self._device, self._part, []
        error: Exception | None = DeviceError("the part does not come")
        try:
            if (up := part.marks) is not None and part.slot is not None:
                with device.active():
                    stream = device.new_stream()
                    for mark in (self._slot.free, *up):
                        device.wait(mark, stream)
                    given = self._slot.buffer, part.home, part.slot.buffer, self._source.nbytes
                    device.copy_from_peer(*given, 0, 0, stream)
                    marks, error = [device.record(stream)], None
        except Exception as failed:
            error = failed
        finally:
            self._flight.end(marks, error)

    def wait(self) -> None:
        if self._flight is None or (self._is_coming() and self.has_come()):
            return
        self._flight = None
        self._device.begin_upload(self._source, self._slot.buffer, 0, self._slot.free).wait()

    def _is_coming(self) -> bool:
        """Whether its home is to send it, or has; else nobody will."""
        relay, part = self._relay, self._part
        with relay.news:
            left = max(relay.late - time.monotonic(), 0.0)
            relay.news.wait_for(lambda: part.home in relay.begun, left)
            if part.is_promised or self not in part.wanted:
                return True
            part.wanted.remove(self)
            return False

    def has_come(self) -> bool:
        """Wait for it; False if the copy failed."""
        try:
            super().wait()
        except DeviceError:
            return False
        return True


def between(devices: Sequence[Device], arrays: Sequence[int]) -> Relay:
    """A relay; without arrays where not all of the devices copy directly from each other."""
    direct = bool(arrays) and at_once.independent(devices)
    if direct and all(peers.trusted(*pair) for pair in combinations(devices, 2)):
        return Relay(devices, arrays)
    return Relay(devices, ())
