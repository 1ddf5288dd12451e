"""Staged copies: ordinary host memory moves through pinned buffers, filled by several threads.

A driver copies ordinary memory through a pinned buffer of its own with one thread, which is slower
than the bus. Here several threads fill buffers while others are on the bus. Downloads go the other
way round, where what takes time is that new pages are touched: several threads touch them.

For each direction a ring has two lanes, each with a thread that makes one copy after the other.
Arrays whose rows are contiguous are copied by compiled code without the interpreter's lock, where
it is there (`hetero.host.copying.slices`). Other arrays, and all of them elsewhere, are packed by
NumPy.
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
from typing import Any

import numpy as np

from hetero import locks
from hetero.errors import DeviceError
from hetero.host import cpu, pages
from hetero.host.copying.copy_jobs import (
    DOWNLOAD,
    UPLOAD,
    Copy,
    Direct,
    Outcome,
    Staged,
    copy_packed,
    here,
    in_rows,
    pieces,
)
from hetero.imports import load

PURPOSE = "pinned buffers of copies"
_SLICE = 4 << 20  # bytes of a buffer
_REGION = 32 << 20  # bytes of all buffers of a lane
_PART = 256 << 10  # bytes that are worth a thread's while to pack
_AWAKE = 8 << 20  # bytes of pinned memory, 0.15 ms: to wake a thread takes half as long
_MOST_THREADS = 8  # that copy: more only wait for the same memory
_LANES = 2  # of a direction
_NAME = "hetero-copy"  # the names of its threads begin so

log = logging.getLogger("hetero")
_rings: weakref.WeakSet[Ring] = weakref.WeakSet()


class Ring:
    """The pinned buffers of one context and the threads that fill and empty them.

    Threads and buffers are there from the first copy of a direction until `close`.

    Parameters
    ----------
    device : Device
        Active in the context that the ring is for.
    threads : int, optional
        Threads that help with a copy. Default: half the cores that this process may use, 8 at most.
    slice_bytes, region_bytes : int, optional
        Of a buffer, and of all buffers of a lane.
    """

    def __init__(
        self,
        device: Any,
        threads: int | None = None,
        slice_bytes: int = _SLICE,
        region_bytes: int = _REGION,
    ) -> None:
        self.device, self.place = device, device.place()
        self.threads = threads or usual_threads()
        self.slice_bytes, self.region_bytes = slice_bytes, region_bytes
        self._lock = locks.new()
        self._ways: dict[str, _Way] = {}
        self._streams: dict[str, Any] = {}
        _close_at_exit()
        _rings.add(self)

    def start(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin to copy an array of any strides, packed in C order, to or from a buffer.

        Copies of one direction begin in the order of their start; two may be under way at once.

        Parameters
        ----------
        direction : {"upload", "download"}
        array : numpy.ndarray
        buffer : buffer
        offset : int
            Bytes from the buffer's begin.
        after : event, optional
            What must have come before the buffer is touched.
        """
        if after is not None and self.device.passed(after):
            after = None
        with self._lock:
            way = self._ways.get(direction)
            if way is None:
                way = self._ways[direction] = _Way(self, direction)
        return Staged(self.device, way.start(array, buffer, offset, after))

    def start_pinned(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin to copy an array that is pinned and contiguous; the device must be active."""
        with self._lock:
            if direction not in self._streams:
                self._streams[direction] = self.device.new_stream()
            stream = self._streams[direction]
        if after is not None:
            self.device.wait(after, stream)
        parts = [(array, 0)]
        if array.nbytes > _AWAKE and array.flags.c_contiguous:
            flat = array.reshape(-1).view(np.uint8)
            parts = [(flat[:-_AWAKE], 0), (flat[-_AWAKE:], flat.nbytes - _AWAKE)]
        marks: list[Any] = []
        try:
            for part, begin in parts:
                awake = part.nbytes <= _AWAKE
                to = buffer, offset + begin
                marks.append(self.device.enqueue(direction, part, *to, stream, awake))
        except BaseException:
            self.device.synchronize(stream)  # of the parts before
            raise
        return Direct(self.device, marks, array)

    def close(self) -> None:
        """End the threads when they have done what was begun, and give the buffers back.

        The next copy starts anew.
        """
        with self._lock:
            ways, self._ways = list(self._ways.values()), {}
            self._streams.clear()
        for way in ways:
            way.close()
        if not any(ring._ways for ring in list(_rings)):
            pages.clear()


class _Way:
    """Copies of one direction: a queue of them, and the lanes that make them.

    A second lane is there once a copy is begun while another is under way: it fills its buffers
    while the bus has those of the first.
    """

    def __init__(self, ring: Ring, direction: str) -> None:
        self._ring, self._direction = weakref.proxy(ring), direction
        self._jobs = queue.SimpleQueue[Any]()  # which a signal's handler may use, too
        self._lanes: list[_Lane] = []
        self._leaders: list[threading.Thread] = []

    def start(self, array: np.ndarray, buffer: Any, offset: int, after: Any) -> Outcome:
        """Have a copy made."""
        outcome = Outcome()
        job = outcome, array, buffer, offset, after
        busy = self._jobs.qsize() + sum(lane.is_busy for lane in self._lanes)
        if len(self._lanes) < min(1 + busy, _LANES):
            self._more()
        if self._leaders:
            self._jobs.put(job)
        else:
            self._lanes[0].make(*job)
        return outcome

    def _more(self) -> None:
        lane = _Lane(self._ring, self._direction)
        name, given = f"{_NAME} {self._direction}", (self._jobs, lane)
        with contextlib.suppress(RuntimeError):  # the interpreter is ending, or there are too many
            leader = threading.Thread(target=_lead, name=name, args=given, daemon=True)
            leader.start()
            weakref.finalize(self, self._jobs.put, None)
            self._leaders.append(leader)
            lane.have_packers()
        self._lanes.append(lane)

    def close(self) -> None:
        for _ in self._leaders:
            self._jobs.put(None)
        if not here.is_copying:  # else a thread would wait for itself
            for leader in self._leaders:
                leader.join()
        for lane in self._lanes:
            lane.close()


class _Lane:
    """What makes one copy after another: a stream, pinned memory, and threads that help to pack."""

    def __init__(self, ring: Ring, direction: str) -> None:
        self._device, self._place, self._direction = ring.device, ring.place, direction
        self._threads, self._slice, self._most = ring.threads, ring.slice_bytes, ring.region_bytes
        self._packers: Any = _Here()
        self._stream: Any = None
        self._region = np.empty(0, np.uint8)
        self._slices: Any = None
        self.is_busy = False

    def have_packers(self) -> None:
        executor = load("concurrent.futures").ThreadPoolExecutor
        self._packers = executor(self._threads, f"{_NAME} packer", _is_ours)

    def make(self, outcome: Outcome, *given: Any) -> None:
        self.is_busy = True
        try:
            mark = self._copy(*given)
        except BaseException as error:
            outcome.set(None, error)
        else:
            outcome.set(mark)
        self.is_busy = False

    def close(self) -> None:
        if self._slices is not None and not here.is_copying:
            self._slices.close()
        self._packers.shutdown(wait=not here.is_copying)

    def _copy(self, array: np.ndarray, buffer: Any, offset: int, after: Any) -> Any:
        """Copy, and return the event of what is on its way yet."""
        device, nbytes = self._device, array.nbytes
        with device.active():
            if device.place() is not self._place:
                raise DeviceError("the context in which a copy was begun is gone")
            if self._stream is None:
                self._stream, self._slices = device.new_stream(), device.slice_copies()
            if after is not None:
                device.wait(after, self._stream)
            rows = in_rows(array) if self._slices is not None else ()
            try:
                self._grow(nbytes)
                if self._region.nbytes < min(self._slice, nbytes):
                    if after is not None:
                        device.wait(after)
                    copy_packed(device, self._direction, array, buffer, offset)
                elif self._slices is not None and rows and nbytes:
                    given = self._region, self._threads, self._stream
                    self._slices.copy(self._direction, *rows, buffer + offset, *given)
                    return device.record(self._stream)
                else:
                    self._copy_packed(array, buffer, offset)
            except BaseException:
                with contextlib.suppress(Exception):
                    device.synchronize(self._stream)
                raise
        return None

    def _copy_packed(self, array: np.ndarray, buffer: Any, offset: int) -> None:
        """Copy piece by piece, each of which is packed by several threads."""
        device, slots = self._device, len(self._region) // self._slice
        device.synchronize(self._stream)  # buffers may be on their way
        count, piece = pieces(array, min(self._slice, len(self._region)))
        flying: list[tuple[Any, np.ndarray, np.ndarray]] = []

        def arrive() -> None:
            mark, view, packed = flying.pop(0)
            device.await_event(mark)
            if self._direction == DOWNLOAD:
                self._pack(view, packed)

        for number in range(count):
            view, begin = piece(number)
            if len(flying) == max(slots, 1):
                arrive()
            at = number % max(slots, 1) * self._slice
            packed = self._region[at : at + view.nbytes].view(view.dtype).reshape(view.shape)
            if self._direction == UPLOAD:
                self._pack(packed, view)
            where = buffer, offset + begin, self._stream
            flying.append((device.enqueue(self._direction, packed, *where), view, packed))
        while flying:
            arrive()

    def _pack(self, target: np.ndarray, source: np.ndarray) -> None:
        axis = int(np.argmax(target.shape)) if target.ndim else 0
        parts = min(self._threads, target.nbytes // _PART, *target.shape[axis : axis + 1])
        if parts < 2:
            return np.copyto(target, source)
        cut = functools.partial(np.array_split, indices_or_sections=parts, axis=axis)
        list(self._packers.map(np.copyto, cut(target), cut(source)))
        return None

    def _grow(self, nbytes: int) -> None:
        """Have pinned memory for that many bytes on their way, or what there is."""
        wanted = min(max(1 << (nbytes - 1).bit_length(), self._most // 8), self._most)
        if len(self._region) >= wanted or not nbytes:
            return
        self._device.synchronize(self._stream)  # what is there may be on its way
        try:
            self._region = self._device.pinned(wanted, PURPOSE)
        except Exception as error:
            self._most = len(self._region)
            _refused(self._device.name, error)


def _lead(jobs: queue.SimpleQueue[Any], lane: _Lane) -> None:
    _is_ours()
    while (job := jobs.get()) is not None:
        lane.make(*job)
        del job  # which would be kept until the next one


class _Here:
    """An executor without threads."""

    map = staticmethod(map)

    def shutdown(self, wait: bool = True) -> None:
        """There is nothing to end."""


def _is_ours() -> None:
    here.is_copying = True


def _refused(name: str, error: Exception) -> None:
    """Say once that there is no pinned memory."""
    global _is_told
    if not _is_told:
        _is_told = True
        log.warning("%s: copies are slower, the system gives no pinned memory: %s", name, error)


_is_told = False


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
