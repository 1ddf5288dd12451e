"""Parts of host arrays that each of several devices needs for one call: each goes up once.

Devices that share a call go through ranges of their own (`streaming`). A part of an array that all
of them read whole has a home: the device that uploads it. The others have it from there, by copies
from device to device, while all compute. So every byte goes over the host's bus once, not once for
each device. That takes direct paths between all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from itertools import combinations
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero import locks
from hetero.devices import at_once, peers
from hetero.devices.base import Copy, Device
from hetero.errors import DeviceError
from hetero.moving.pipeline import Slot

if TYPE_CHECKING:
    from hetero.arrays import Operand
    from hetero.profile import Profile

Key = tuple[Any, ...]
_LATE = 0.5  # seconds that a home may take to begin, before the others do without it

relay: ContextVar[Relay | None] = ContextVar("relay", default=None)  # of the call, in its threads


class _Part(NamedTuple):
    copy: Copy  # of the upload
    slot: Slot


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
        self.parts: dict[Key, _Part | None] = {}  # None: the home is about to upload it
        self.begun: set[Device] = set()
        self.ended: set[Device] = set()  # who need no part any longer
        self.late = time.monotonic() + _LATE
        self.readers = dict.fromkeys(self.devices, 0)  # copies from each that are under way

    def home(self, part: int, parts: int) -> Device:
        """The device that uploads a part of an array."""
        return self.devices[part * len(self.devices) // parts]

    @contextmanager
    def joined(self, device: Device, parts: dict[Key, Device]) -> Iterator[Callable[..., Any]]:
        """``begin(key)`` gives what begins a load of a part, where ``parts`` has its home.

        Until the others have what lies on this device, it stays there.
        """
        with self.news:
            self.begun.add(device)
            for key, home in parts.items():
                if home is device:
                    self.parts.setdefault(key, None)
            self.news.notify_all()
        try:
            yield lambda key: _Begin(self, device, parts[key], key) if key in parts else None
            with self.news:
                self._end(device)
                self.news.wait_for(lambda: self.begun <= self.ended)
        finally:
            with self.news:
                self.parts = {k: p for k, p in self.parts.items() if parts.get(k) is not device}
                self._end(device)
                while self.readers[device]:
                    with suppress(KeyboardInterrupt):  # memory is freed behind this
                        self.news.wait_for(lambda: not self.readers[device])

    def _end(self, device: Device) -> None:
        self.ended.add(device)
        self.news.notify_all()


class _Begin:
    """Begins the load of a part on a device: its upload, or its copy from its home."""

    def __init__(self, relay: Relay, device: Device, home: Device, key: Key) -> None:
        self._relay, self._device, self._home, self._key = relay, device, home, key

    def __call__(self, source: np.ndarray, slot: Slot) -> Copy:
        if self._home is not self._device:
            return _Passed(self, source, slot)
        copy = self.upload(source, slot)
        with self._relay.news:
            self._relay.parts[self._key] = _Part(copy, slot)
            self._relay.news.notify_all()
        return copy

    def upload(self, source: np.ndarray, slot: Slot) -> Copy:
        return self._device.begin_upload(source, slot.buffer, 0, slot.free)

    def passed(self, slot: Slot, nbytes: int) -> bool:
        """Whether the part has come from its home; else the host has to send it."""
        relay, home = self._relay, self._home
        with relay.news:
            left = max(relay.late - time.monotonic(), 0.0)
            relay.news.wait_for(lambda: {home} & (relay.begun | relay.ended), left)
            relay.news.wait_for(lambda: relay.parts.get(self._key, False) is not None)
            part = relay.parts.get(self._key)
            if part is None:
                return False
            relay.readers[home] += 1
        try:
            part.copy.wait()
            self._copy(part.slot, slot, nbytes)
        except DeviceError:
            return False
        finally:
            with relay.news:
                relay.readers[home] -= 1
                relay.news.notify_all()
        return True

    def _copy(self, source: Slot, slot: Slot, nbytes: int) -> None:
        device, stream = self._device, self._device.new_stream()
        device.wait(slot.free, stream)
        try:
            device.copy_from_peer(slot.buffer, self._home, source.buffer, nbytes, 0, 0, stream)
        finally:
            device.synchronize(stream)


class _Passed(Copy):
    """A part on its way from its home."""

    def __init__(self, begin: _Begin, source: np.ndarray, slot: Slot) -> None:
        self._begin, self._source, self._slot, self._is_over = begin, source, slot, False

    def wait(self) -> None:
        if not self._is_over and not self._begin.passed(self._slot, self._source.nbytes):
            self._begin.upload(self._source, self._slot).wait()
        self._is_over = True


def shares_of_uploads(
    arrays: Sequence[Operand], numbers: Iterable[int], name: str, devices: int, constants: Profile
) -> dict[int, tuple[int, float]]:
    """For arrays, by number, that several devices read whole: how many devices these are, and what
    one takes for an array of which it uploads a part and has the rest from the others, as a share
    of the time of the whole upload. An array is left out where that is not known to be less."""
    found: dict[int, tuple[int, float]] = {}
    with suppress(KeyError):
        peer = constants.link(name, "peer", "device")
        for i in numbers:
            nbytes = arrays[i].nbytes
            alone = constants.link(name, "upload", arrays[i].memory)(nbytes)
            share = (1.0 + (devices - 1) * peer(nbytes) / alone) / devices
            if share < 1.0:
                found[i] = devices, share
    return found


def between(devices: Sequence[Device], arrays: Sequence[int]) -> Relay:
    """A relay; without arrays where not all of the devices copy directly from each other."""
    direct = bool(arrays) and at_once.independent(devices)
    if direct and all(peers.trusted(*pair) for pair in combinations(devices, 2)):
        return Relay(devices, arrays)
    return Relay(devices, ())
