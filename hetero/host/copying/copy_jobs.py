"""Copies between host and device: by the driver, directly from pinned memory, or staged.

Callers have `Device.upload`, `download`, `begin_upload` and `begin_download`.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from hetero.errors import DeviceError

UPLOAD, DOWNLOAD = "upload", "download"
THREADS = "hetero-copy"  # the names of threads that copy begin so
_LEAST_ROW = 128  # bytes of a row that is copied by itself, at least

# Device -> direction -> bytes from which on staged copies of pageable memory are faster, as the
# profile says; before calibration, of devices that stage, and of others.
least_staged: Mapping[str, Mapping[str, float]] = {}
_USUAL = {
    stages: dict.fromkeys((UPLOAD, DOWNLOAD), 8 << 20 if stages else math.inf)
    for stages in (True, False)
}
log = logging.getLogger("hetero")


def copy_packed(
    device: Any, direction: str, array: np.ndarray, buffer: Any, offset: int = 0
) -> None:
    """Let the driver copy a host array of any strides, packed in C order, at once."""
    if not array.nbytes:
        return
    packed = array
    if not array.flags.c_contiguous:
        is_upload = direction == UPLOAD
        packed = np.ascontiguousarray(array) if is_upload else np.empty(array.shape, array.dtype)
    device.enqueue(direction, packed, buffer, offset)
    if packed is not array and direction == DOWNLOAD:
        array[...] = packed


class Flight:
    """What of a copy is on its way. An ``array`` that no thread has a part in is kept alive until
    then.

    It has no lock, as a future has: a signal's handler may come in between anywhere, and wait for a
    copy that the same thread makes after this one.
    """

    def __init__(self, array: np.ndarray | None = None) -> None:
        self.array, self.is_over = array, array is not None  # whether a ring's thread did its part
        self.marks: list[Any] = []  # events that come when the rest is done
        self.error: BaseException | None = None
        self.news: queue.SimpleQueue[None] = queue.SimpleQueue()  # has something when it is over
        self.calls: list[Callable[[list[Any] | None], object]] = []  # see `Copy.then`

    def end(self, marks: list[Any], error: BaseException | None = None) -> None:
        self.marks, self.error, self.is_over = marks, error, True
        try:
            self.call()
        finally:
            self.news.put(None)

    def call(self) -> None:
        """Make each of the calls once."""
        while self.calls:
            with contextlib.suppress(IndexError):  # another thread makes them, too
                self.calls.pop()(None if self.error else self.marks)


class Copy:
    """A copy between host and device that was begun. One that is dropped is waited for."""

    _flight: Flight | None = None

    def __init__(self, device: Any = None, flight: Flight | None = None) -> None:
        self._device, self._process, self._flight = device, os.getpid(), flight

    def wait(self) -> None:
        """Return when it is complete; raise what made it fail.

        An interrupt is raised when no thread is at it any longer.
        """
        flight, interrupt = self._flight, None
        if flight is None:
            return
        if os.getpid() != self._process:
            raise DeviceError("a copy cannot be waited for in a forked child")
        while not flight.is_over:
            try:
                flight.news.put(flight.news.get())  # others may wait, too
            except BaseException as error:
                interrupt = interrupt or error
        try:
            if flight.error is not None:
                raise flight.error
            if flight.marks:
                with self._device.active():
                    for mark in flight.marks:
                        self._device.await_event(mark)
            self._flight = None
        finally:
            if interrupt is not None:
                raise interrupt

    def then(self, call: Callable[[list[Any] | None], object]) -> None:
        """``call(marks)`` once the host has done its part, with events that come when all is done,
        or ``call(None)`` if it failed; by the thread that did it, or at once."""
        if self._flight is None:
            call([])
            return
        self._flight.calls.append(call)
        if self._flight.is_over:
            self._flight.call()

    def __del__(self) -> None:
        flight = self._flight
        if flight is None or os.getpid() != self._process:
            return
        if is_copying() and not flight.is_over:  # garbage is collected by who would wait for itself
            return
        try:
            self.wait()
        except BaseException as error:  # whoever uses the device next gets it
            log.debug("a copy that nobody waited for failed: %s", error)


DONE = Copy()


def is_copying() -> bool:
    """Whether this thread is one of a ring's."""
    return threading.current_thread().name.startswith(THREADS)


def begin(
    device: Any,
    direction: str,
    array: np.ndarray,
    buffer: Any,
    offset: int,
    after: Any = None,
    overlap: bool = True,
) -> Copy:
    """Begin to copy a host array of any strides, packed in C order, to or from ``offset`` bytes
    behind a buffer's begin: from pinned memory by the driver, else staged; see `Device.upload`.

    Until `Copy.wait` returns, neither what is read nor what is written may be written to, and
    nothing that is begun on the device may use what is written. Copies of one direction are made in
    the order of their start. Where the device has no `ring`, and without ``overlap`` where the
    driver alone is as fast, the copy is complete at once. ``after`` is the event that must have
    come before the buffer is touched, as `Device.record` gives it; None: all that the default queue
    holds now.
    """
    staged = bool(array.nbytes)
    if not overlap:
        least = least_staged.get(device.name, _USUAL[device.stages])[direction]
        staged = array.nbytes >= least and not (
            array.flags.c_contiguous and device.is_pinned(array)
        )
    ring = device.ring() if staged else None
    if ring is None:
        if after is not None:
            device.wait(after)
        copy_packed(device, direction, array, buffer, offset)
        return DONE
    if after is None:
        after = device.record()
    is_direct = overlap and device.copies_directly(array)
    start = ring.start_pinned if is_direct else ring.start
    return start(direction, array, buffer, offset, after)


def rows(array: np.ndarray) -> tuple[int, int, int] | None:
    """(number, bytes, pitch) of the rows of contiguous memory at equal distances that an array
    consists of, one if it is contiguous; None where there are none, or too short ones."""
    if array.flags.c_contiguous:
        return 1, array.nbytes, array.nbytes
    axis, row = array.ndim, array.itemsize
    while array.shape[axis - 1] == 1 or array.strides[axis - 1] == row:
        axis -= 1
        row *= array.shape[axis]
    outer = [(n, array.strides[i]) for i, n in enumerate(array.shape[:axis]) if n > 1]
    if row < _LEAST_ROW or any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(outer)):
        return None
    return array.nbytes // row, row, outer[-1][1]


def pieces(array: np.ndarray, most: int, begin: int = 0) -> Iterator[tuple[np.ndarray, int]]:
    """Views of an array of any strides that follow each other in C order, of that many bytes at
    most or of one element, and ``begin`` plus the number of bytes before each."""
    if array.nbytes <= most or not array.ndim:
        yield array, begin
        return
    row = array.nbytes // len(array)
    count = most // row
    for i in range(0, len(array), count or 1):
        part = array[i : i + count] if count else array[i, ...]
        yield from pieces(part, most, begin + i * row)
