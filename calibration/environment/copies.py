"""Copies between a device and each kind of the host's memory, made as calls make them."""

from __future__ import annotations

import time

import numpy as np

from hetero.devices.base import Device
from hetero.host import pages
from hetero.profile import PAGEABLE, PINNED, STAGED

Way = tuple[str, str]  # direction and kind of memory

_DIRECTIONS = ("upload", "download")
LEAST_STAGED = 1 << 18  # bytes of a staged copy that is measured
_CACHED = 1 << 20  # bytes of an operand that is still in a cache when a call begins
_PERIOD = 1 << 24  # random bytes, which are repeated
_REST = 3e-4  # seconds after which a thread that helps to copy sleeps


class Copies:
    """Copies of any size between a device, which is active, and each kind of the host's memory.

    As in calls, downloads to pageable memory go to a new result, in reused memory
    (`hetero.host.pages`), and uploads from it come from memory that no cache holds, unless
    they are so small that a program has just made them. Pageable memory is copied by the driver
    alone, or "staged" where the device can, by threads that `rest` lets fall asleep first.

    ``largest`` is in bytes; `ways` are directions and kinds of memory that can be copied.
    """

    WAYS = tuple((way, of) for way in _DIRECTIONS for of in (PAGEABLE, PINNED))

    def __init__(self, device: Device, largest: int) -> None:
        values = np.random.default_rng(0).integers(0, 255, _PERIOD, np.uint8)
        self._device = device
        with device.active():
            is_staged = device.stages and device.ring() is not None
        self.ways = self.WAYS + tuple((way, STAGED) for way in _DIRECTIONS if is_staged)
        self._buffer, self._owner = device.allocate(largest)
        self._pinned = device.pinned(largest)
        for start in range(0, largest, _PERIOD):
            part = self._pinned[start : start + _PERIOD]
            part[:] = values[: len(part)]
        self._pageable, self._next = self._pinned.copy(), 0

    def rest(self, way: Way) -> None:
        """Let threads that help to copy fall asleep, as those of a call do while it computes."""
        if way[1] == STAGED:
            time.sleep(_REST)

    def _source(self, nbytes: int) -> np.ndarray:
        """Pageable memory, a different part each time."""
        if nbytes < _CACHED:
            return self._pageable[:nbytes]
        begin = self._next if self._next + nbytes <= len(self._pageable) else 0
        self._next = begin + nbytes
        return self._pageable[begin : begin + nbytes]

    def __call__(self, direction: str, memory: str, nbytes: int) -> None:
        """Copy ``nbytes``; direction and kind of memory are one of `ways`."""
        device = self._device
        if memory == PINNED:
            array = self._pinned[:nbytes]
        elif direction == "upload":
            array = self._source(nbytes)
        else:
            array = pages.empty((nbytes,), np.uint8)
        if memory == STAGED:
            device.ring().start(direction, array, self._buffer, 0, device.record()).wait()
        elif nbytes >= LEAST_STAGED:
            device.enqueue(direction, array, self._buffer)
        elif direction == "upload":
            device.upload(array, self._buffer)
        else:
            device.download(self._buffer, array)
