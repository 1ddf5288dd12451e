"""Copies between host and device: by the driver, directly from pinned memory, or staged.

Callers have `Device.upload`, `download`, `begin_upload` and `begin_download`. Staged is what moves
between ordinary host memory and a device through pinned buffers, filled by several threads.

A driver copies ordinary memory through a pinned buffer of its own with one thread, which is slower
than the bus. Here several threads fill buffers while others are on the bus. Downloads go the other
way round, where what takes time is that new pages are touched: several threads touch them.

A ring has a thread for each direction, which makes one copy after the other. Arrays with
contiguous rows are copied by compiled code (`hetero.host.copying.slices`), where it is there;
others are packed by NumPy. With a second thread a direction two downloads of 16 MiB take 15 % less,
larger ones the same, and both directions at once 15 % more (H200, 16 cores).
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import logging
import math
import os
import queue
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from typing import Any

import numpy as np

from hetero import locks
from hetero.errors import DeviceError
from hetero.host import cpu
from hetero.host.copying import slices

UPLOAD, DOWNLOAD = "upload", "download"
THREADS = "hetero-copy"  # the names of threads that copy begin so
_LEAST_ROW = 128  # bytes of a row that is copied by itself, at least
_LEAST_SENT = 256  # of one that the bus takes by itself; it is slow with less

# Device -> direction -> bytes from which on staged copies of pageable memory are faster, as the
# profile says; before calibration, of devices that stage, and of others.
least_staged: Mapping[str, Mapping[str, float]] = {}
_USUAL = {True: 8 << 20, False: math.inf}
PURPOSE = "pinned buffers of copies"
_SLICE = 4 << 20  # bytes of a buffer
_REGION = 32 << 20  # bytes of all buffers of a lane
_PART = 256 << 10  # bytes that are worth a thread's while to pack
_MOST_THREADS = 8  # that copy: more only wait for the same memory

log = logging.getLogger("hetero")
_rings: weakref.WeakSet[Ring] = weakref.WeakSet()
_warned: set[str] = set()  # names of devices without pinned memory


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
        self.then: Callable[[list[Any] | None], object] = lambda marks: None  # see `Copy.then`

    def end(self, marks: list[Any], error: BaseException | None = None) -> None:
        self.marks, self.error, self.is_over = marks, error, True
        try:
            self.then(None if error else marks)
        finally:
            self.news.put(None)


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
                        self._device.wait(mark)
            self._flight = None
        finally:
            if interrupt is not None:
                raise interrupt

    def then(self, call: Callable[[list[Any] | None], object]) -> None:
        """``call(marks)`` when the host has done its part, with events that come when all is done,
        or ``call(None)`` if it failed; by the thread that did it, or at once, or by both."""
        if (flight := self._flight) is None:
            call([])
            return
        flight.then = call
        if flight.is_over:
            call(None if flight.error else flight.marks)

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
    offset: int = 0,
    after: Any = None,
    overlap: bool = True,
) -> Copy:
    """Begin to copy a host array of any strides, packed in C order, to or from ``offset`` bytes
    behind a buffer's begin: from pinned memory by the driver, else staged; see `Device.upload`.

    Until `Copy.wait` returns, neither what is read nor what is written may be written to, and
    nothing that is begun on the device may use what is written. Copies of one direction are made in
    the order of their start. Where the device has no `ring`, and without ``overlap`` where the
    driver alone is as fast, the copy is complete at once: then the host has nothing to do
    meanwhile. ``after`` is the event that must have come before the buffer is touched, as
    `Device.record` gives it; None: all that the default queue holds now.
    """
    staged = bool(array.nbytes)
    if not overlap:
        least = least_staged.get(device.name, {}).get(direction, _USUAL[device.stages])
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
    is_direct = overlap and _may_be_sent(device, array) and device.is_pinned(array)
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


def _may_be_sent(device: Any, array: np.ndarray) -> bool:
    """Whether a device takes an array as it lies in pinned memory."""
    if array.flags.c_contiguous:
        return True
    found = rows(array) if device.is_cuda else None
    return found is not None and found[2] >= found[1] >= _LEAST_SENT


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


# -- Staged copies ---------------------------------------------------------------------------------


class Ring:
    """The pinned buffers of one context, in which the device is active, and the threads that fill
    and empty them. They are there from the first copy of a direction until `close`."""

    def __init__(self, device: Any) -> None:
        self._lanes: dict[str, _Lane] = {}  # by direction
        self.device, self.storage = device, device.storage()
        self._lock = locks.new()
        self._streams: dict[str, Any] = {}
        self.process = os.getpid()
        _rings.add(self)

    def start(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin what `begin` says; nothing need have come where there is no ``after``."""
        if after is not None and self.device.passed(after):
            after = None
        flight = Flight()
        job = flight, array, buffer, offset, after
        with self._lock:
            lane = self._lanes.get(direction)
            if lane is None:
                lane = self._lanes[direction] = _Lane(self, direction)
            if is_alive := lane.is_alive():
                lane.jobs.put(job)
        if not is_alive:
            lane.make(*job)
        return Copy(self.device, flight)

    def start_pinned(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int, after: Any
    ) -> Copy:
        """Begin to copy an array that the device takes from pinned memory; it must be active."""
        with self._lock:
            if direction not in self._streams:
                self._streams[direction] = self.device.new_stream()
            stream = self._streams[direction]
        self.device.wait(after, stream)
        flight = Flight(array)
        try:
            flight.marks.append(self.device.enqueue(direction, array, buffer, offset, stream))
        except BaseException:
            self.device.synchronize(stream)  # of the parts before
            raise
        return Copy(self.device, flight)

    def close(self) -> None:
        """End the threads when they have done what was begun, and give the buffers back; the next
        copy starts anew."""
        with self._lock:
            lanes = self._end()
            self._lanes, self._streams = {}, {}
        if not is_copying():  # else a thread would wait for itself
            for lane in lanes:
                lane.join()

    def _end(self) -> list[_Lane]:
        """Have the threads end when they have done what was begun; tell which these are."""
        living = [lane for lane in self._lanes.values() if lane.is_alive()]
        for lane in living:
            lane.jobs.put(None)
        return living

    def __del__(self) -> None:
        self._end()


class _Lane(threading.Thread):
    """What makes one copy after another: a thread with a stream and pinned memory."""

    def __init__(self, ring: Ring, direction: str) -> None:
        super().__init__(name=f"{THREADS} {direction}", daemon=True)
        self._device, self._storage, self._direction = ring.device, ring.storage, direction
        self.jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()  # also a signal handler's
        self._region = self._stream = self._calls = None
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, or there are too many
            self.start()

    def run(self) -> None:
        slices.be_prompt()
        while (job := self.jobs.get()) is not None:
            self.make(*job)
            del job  # which would be kept until the next one

    def make(self, flight: Flight, *given: Any) -> None:
        try:
            marks = self._copy(*given)
        except BaseException as error:
            flight.end([], error)
        else:
            flight.end(marks)

    def _copy(self, array: np.ndarray, buffer: Any, offset: int, after: Any) -> list[Any]:
        """Copy, and return the event of what is on its way yet."""
        device = self._device
        with device.active():
            if device.storage() is not self._storage:
                raise DeviceError("the context in which a copy was begun is gone")
            if self._stream is None:
                self._region, stream = self._pinned(), device.new_stream()
                self._calls = device.slice_calls(self._direction, stream)
                self._stream = stream
            if after is not None:
                device.wait(after, self._stream)
            try:
                layout = rows(array) if self._calls else None
                if not self._region.nbytes:
                    if after is not None:
                        device.wait(after)
                    copy_packed(device, self._direction, array, buffer, offset)
                elif layout is not None:
                    ends = array.__array_interface__["data"][0], buffer + offset
                    how = usual_threads(), self._direction == DOWNLOAD, self._calls
                    if status := slices.copy(*ends, layout, self._region, *how):
                        text = self._calls["text"](status)
                        raise DeviceError(f"a staged {self._direction} failed: {text}")
                    return [device.record(self._stream)]
                else:
                    self._copy_packed(array, buffer, offset)
            except BaseException:
                with contextlib.suppress(Exception):
                    device.synchronize(self._stream)
                raise
        return []

    def _copy_packed(self, array: np.ndarray, buffer: Any, offset: int) -> None:
        """Copy piece by piece, by several threads with a buffer each, which pack them."""
        device, region, to_device = self._device, self._region, self._direction == UPLOAD
        device.synchronize(self._stream)  # buffers may be on their way
        size = min(max(array.nbytes // (2 * usual_threads()), _PART), _SLICE)
        parts = list(pieces(array, size, offset))
        count = min(len(region) // _SLICE, len(parts))

        def copy(first: int) -> None:
            with device.active():
                for view, begin in parts[first::count]:
                    at = first * _SLICE
                    packed = region[at : at + view.nbytes].view(view.dtype).reshape(view.shape)
                    if to_device:
                        np.copyto(packed, view)
                    device.wait(
                        device.enqueue(self._direction, packed, buffer, begin, self._stream)
                    )
                    if not to_device:
                        np.copyto(view, packed)

        if usual_threads() < 2 or not self.is_alive():  # or the interpreter is ending
            for first in range(count):
                copy(first)
            return
        begun = [_packers().submit(copy, first) for first in range(count)]
        futures.wait(begun)
        for one in begun:
            one.result()

    def _pinned(self) -> np.ndarray:
        """The pinned memory of all buffers, empty where the system gives none."""
        try:
            return self._device.pinned(_REGION, PURPOSE)
        except Exception as error:
            if (name := self._device.name) not in _warned:
                _warned.add(name)
                why = "copies are slower, the system gives no pinned memory"
                log.warning("%s: %s: %s", name, why, error)
            return np.empty(0, np.uint8)


@atexit.register
def _close_all() -> None:
    """Close this process's rings at its end."""
    for ring in [each for each in _rings if each.process == os.getpid()]:
        ring.close()


@functools.cache
def usual_threads() -> int:
    """Threads for each copy: half the cores that this process may use, but not too many."""
    return max(1, min(_MOST_THREADS, cpu.cores() // 2))


@functools.cache
def _packers() -> futures.ThreadPoolExecutor:
    return futures.ThreadPoolExecutor(usual_threads(), f"{THREADS} packer")
