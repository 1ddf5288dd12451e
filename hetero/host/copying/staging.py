"""Staged copies: ordinary host memory moves through pinned buffers, filled by several threads.

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
import logging
import os
import queue
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from hetero import locks
from hetero.errors import DeviceError
from hetero.host import cpu
from hetero.host.copying import copy_jobs, slices
from hetero.host.copying.copy_jobs import THREADS, UPLOAD, Copy, Flight, pieces

PURPOSE = "pinned buffers of copies"
_SLICE = 4 << 20  # bytes of a buffer
_REGION = 32 << 20  # bytes of all buffers of a lane
_PART = 256 << 10  # bytes that are worth a thread's while to pack
_AWAKE = 8 << 20  # bytes of pinned memory, 0.15 ms: to wake a thread takes half as long
_MOST_THREADS = 8  # that copy: more only wait for the same memory

log = logging.getLogger("hetero")
_rings: weakref.WeakSet[Ring] = weakref.WeakSet()
_warned: set[str] = set()  # names of devices without pinned memory


class Ring:
    """The pinned buffers of one context, in which the device is active, and the threads that fill
    and empty them. They are there from the first copy of a direction until `close`."""

    def __init__(self, device: Any) -> None:
        self._lanes: dict[str, _Lane] = {}  # by direction
        self.device, self.storage = device, device.storage()
        self._lock = locks.new()
        self._streams: dict[str, Any] = {}
        _close_at_exit()
        _rings.add(self)

    def start(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin what `copy_jobs.begin` says; nothing need have come where there is no ``after``."""
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
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin to copy an array that `Device.copies_directly`; the device must be active."""
        with self._lock:
            if direction not in self._streams:
                self._streams[direction] = self.device.new_stream()
            stream = self._streams[direction]
        if after is not None:
            self.device.wait(after, stream)
        flight, parts = Flight(array), [(array, 0)]
        if array.nbytes > _AWAKE and array.flags.c_contiguous:
            flat = array.reshape(-1).view(np.uint8)
            parts = [(flat[:-_AWAKE], 0), (flat[-_AWAKE:], flat.nbytes - _AWAKE)]
        try:
            for part, begin in parts:
                given = direction, part, buffer, offset + begin, stream, part.nbytes <= _AWAKE
                flight.marks.append(self.device.enqueue(*given))
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
        if not copy_jobs.is_copying():  # else a thread would wait for itself
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
        self._most, self._stream, self._slices = _REGION, None, None
        self._region = np.empty(0, np.uint8)
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
                stream = device.new_stream()
                self._slices = device.slice_copies(self._direction, stream)
                self._stream = stream
            if after is not None:
                device.wait(after, self._stream)
            try:
                region, compiled = self._grow(array.nbytes), self._slices
                if region.nbytes < min(_SLICE, array.nbytes):
                    if after is not None:
                        device.wait(after)
                    copy_jobs.copy_packed(device, self._direction, array, buffer, offset)
                elif compiled and compiled.copy(array, buffer + offset, region, usual_threads()):
                    return [device.record(self._stream)]
                else:
                    self._copy_packed(array, buffer, offset)
            except BaseException:
                with contextlib.suppress(Exception):
                    device.synchronize(self._stream)
                raise
        return []

    def _copy_packed(self, array: np.ndarray, buffer: Any, offset: int) -> None:
        """Copy piece by piece, each of which is packed by several threads."""
        device, region, size = self._device, self._region, min(_SLICE, len(self._region))
        device.synchronize(self._stream)  # buffers may be on their way
        flying: list[tuple[Any, np.ndarray, np.ndarray]] = []

        def arrive() -> None:
            mark, view, packed = flying.pop(0)
            device.await_event(mark)
            if self._direction != UPLOAD:
                self._pack(view, packed)

        slots = len(region) // size
        for number, (view, begin) in enumerate(pieces(array, size)):
            if len(flying) == slots:
                arrive()
            at = number % slots * size
            packed = region[at : at + view.nbytes].view(view.dtype).reshape(view.shape)
            if self._direction == UPLOAD:
                self._pack(packed, view)
            where = buffer, offset + begin, self._stream
            flying.append((device.enqueue(self._direction, packed, *where), view, packed))
        while flying:
            arrive()

    def _pack(self, target: np.ndarray, source: np.ndarray) -> None:
        share = max(target.nbytes // usual_threads(), _PART)
        if not self.is_alive() or target.nbytes <= share:
            np.copyto(target, source)
        else:
            to, of = ([part for part, _ in pieces(each, share)] for each in (target, source))
            list(_packers().map(np.copyto, to, of))

    def _grow(self, nbytes: int) -> np.ndarray:
        """Pinned memory for that many bytes on their way, or what there is."""
        wanted = min(max(1 << (nbytes - 1).bit_length(), self._most // 8), self._most)
        if len(self._region) < wanted:
            self._device.synchronize(self._stream)  # what is there may be on its way
            try:
                self._region = self._device.pinned(wanted, PURPOSE)
            except Exception as error:
                self._most = len(self._region)
                if (name := self._device.name) not in _warned:
                    _warned.add(name)
                    why = "copies are slower, the system gives no pinned memory"
                    log.warning("%s: %s: %s", name, why, error)
        return self._region


def close_all() -> None:
    """Give the buffers of all rings back."""
    for ring in list(_rings):
        ring.close()


@functools.cache
def _close_at_exit() -> None:
    """Close all rings when this process ends; no forked child does."""
    process = os.getpid()
    atexit.register(lambda: close_all() if os.getpid() == process else None)


@functools.cache
def usual_threads() -> int:
    """Threads for each copy: half the cores that this process may use, but not too many."""
    return max(1, min(_MOST_THREADS, cpu.cores() // 2))


@functools.cache
def _packers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(usual_threads(), f"{THREADS} packer")
