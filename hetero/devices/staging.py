"""Staged copies: ordinary host memory moves through pinned buffers, filled by several threads.

A driver copies ordinary memory through a pinned buffer of its own with one thread, which is slower
than the bus. Here several threads do it. Each has two buffers and a stream: it fills one while the
other is on the bus. They share nothing but the number of the next piece, so nothing is handed from
thread to thread. Downloads go the other way round, where what takes time is that new pages are
touched: several threads touch them.

Arrays that are not contiguous are packed on the way. Pieces of arrays whose rows are contiguous are
copied slice by slice in a compiled loop without the interpreter's lock (`hetero.kernels.cpu.lane`),
as soon as that is there.
"""

from __future__ import annotations

import atexit
import collections
import contextlib
import functools
import itertools
import logging
import math
import os
import queue
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero import locks
from hetero.errors import DeviceError
from hetero.kernels.cpu import blas_spin, lane

UPLOAD, DOWNLOAD = "upload", "download"
PURPOSE = "pinned buffers of copies"
_SLICE = 4 << 20  # bytes of a buffer
_LEAST_SLICE = 1 << 20  # bytes: waking another thread takes longer than copying less
_BUFFERS = 2  # of a thread
_PIECE = 16 << 20  # bytes that a compiled loop copies
_PART = 4 << 20  # bytes of its slices; the driver takes 60 us for each
_LEAST_ROW = 128  # bytes
_IN_CALLS = 1 << 19  # bytes that a thread copies in the time of a piece's calls to the driver
_NICE = 10  # the program's own work goes first
_MOST_LANES = 8
_IDLE = 60.0  # seconds without a copy after which a thread ends and gives its buffers back
_NAME = "hetero-copy"  # begins as all threads of ours that never call BLAS

log = logging.getLogger("hetero")
_rings: weakref.WeakSet[Any] = weakref.WeakSet()
_here = threading.local()
_least: dict[str, Mapping[str, float]] = {}  # device -> direction -> bytes, see `believe`


def is_lane() -> bool:
    """Whether the calling thread begins no staged copies: it copies slices, or is in `plainly`."""
    return getattr(_here, "is_lane", False)


@contextlib.contextmanager
def plainly() -> Iterator[None]:
    """A context in which this thread's copies go through no ring."""
    before, _here.is_lane = is_lane(), True
    try:
        yield
    finally:
        _here.is_lane = before


def least(name: str) -> Mapping[str, float] | None:
    """Direction -> bytes from which on staged copies of a device are faster, where measured."""
    return _least.get(name)


def believe(measured: Mapping[str, Mapping[str, float]]) -> None:
    """Take what was measured for `least`, of all devices, in place of what was known."""
    global _least
    _least = dict(measured)


class Device(Protocol):
    """What staging needs of a `hetero.devices.base.Device`."""

    name: str
    active: Callable[[], AbstractContextManager[Any]]
    place: Callable[[], Any]
    pinned: Callable[..., np.ndarray]
    new_stream: Callable[[], Any]
    wait: Callable[..., None]
    send: Callable[..., Any]
    await_sent: Callable[[Any], None]
    synchronize: Callable[..., None]
    passed: Callable[[Any], bool]
    sends_slices: Callable[[str], bool]
    send_slices: Callable[..., None]
    copy_plainly: Callable[..., None]


class Copy:
    """A copy between host and device that was begun."""

    def wait(self) -> None:
        """Return when it is complete; raise what made it fail."""


class _Job:
    """A copy that threads do slice by slice."""

    def __init__(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int,
        after: Any,
        most: int,
        part: int | None,
    ) -> None:
        self.direction, self.buffer, self.after, self.part = direction, buffer, after, part
        self.count, self._piece = pieces(array, most)
        self._offset = offset
        self.error: BaseException | None = None
        self.is_cancelled = False
        self._lock = locks.new()
        self._next, self._left = 0, self.count
        self._done: queue.SimpleQueue[None] = queue.SimpleQueue()  # of one, once all are done with
        if not self.count:
            self._done.put(None)
        self._process = os.getpid()

    def piece(self, number: int) -> tuple[np.ndarray, int]:
        """A slice of the array, and its byte in the buffer."""
        view, begin = self._piece(number)
        return view, self._offset + begin

    def take(self) -> int | None:
        """The number of a slice that nobody has taken; None when there is none."""
        with self._lock:
            if self._next == self.count:
                return None
            self._next += 1
            return self._next - 1

    def settle(self, number: int) -> None:
        """So many slices that were taken are done with."""
        with self._lock:
            self._left -= number
            last = number and not self._left
        if last:
            self._done.put(None)

    def cancel(self, error: BaseException | None = None) -> None:
        """Begin no more slices."""
        with self._lock:
            self.error = self.error or error
            self.is_cancelled = True
            rest, self._next = self.count - self._next, self.count
        self.settle(rest)

    def wait(self) -> None:
        """Return when no slice is under way; an interrupt cancels those that are not begun."""
        if os.getpid() != self._process:
            raise DeviceError("a copy cannot be waited for in a forked child")
        try:
            self._settled()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Cancel, and return when no slice is under way, whatever interrupts."""
        if os.getpid() != self._process:  # it is the parent's
            return
        self.cancel()
        while not is_lane():  # a lane would wait for itself
            try:
                return self._settled()
            except BaseException:  # the first interrupt is raised
                continue

    def _settled(self) -> None:
        if self._left:
            self._done.get()
        self._done.put(None)  # for whoever waits too; one too many does no harm


class Staged(Copy):
    """A copy that goes through a ring. Dropped without having been waited for, it is cancelled."""

    def __init__(self, job: _Job) -> None:
        self._job: _Job | None = job
        self._error: BaseException | None = None
        blas_spin.quiet()  # or the threads that copy wait for cores on which BLAS's spin

    def wait(self) -> None:
        job = self._job
        if job is not None:
            job.wait()
            blas_spin.usual()
            self._job, self._error = None, job.error
        if self._error is not None:
            raise self._error

    def __del__(self) -> None:
        job = getattr(self, "_job", None)
        if job is not None:
            job.stop()
            blas_spin.usual()


class Direct(Copy):
    """A copy of pinned memory that is on its way, without threads of ours.

    Parameters
    ----------
    device : Device
    mark : object
        As its `send` gives it.
    array : numpy.ndarray
        Kept alive until then.
    """

    def __init__(self, device: Device, mark: Any, array: np.ndarray) -> None:
        self._device, self._mark, self._array = device, mark, array

    def wait(self) -> None:
        if self._mark is not None:
            with self._device.active():
                self._device.await_sent(self._mark)
            self._mark = self._array = None

    def __del__(self) -> None:
        try:
            self.wait()
        except Exception as error:  # whoever uses the device next is told
            log.debug("a copy that nobody waited for failed: %s", error)


class Ring:
    """The pinned buffers of one context and the threads that fill and empty them.

    Threads start when there is work for them, at most so many for each direction, and end after
    `_IDLE` seconds without any.

    Parameters
    ----------
    device : Device
        Active in the context that the ring is for.
    lanes : int, optional
        Threads for each direction. Default: half the cores that this process may use, 8 at most.
    slice_bytes : int, optional
        Of a buffer.
    least_bytes : int, optional
        Of a slice, where the array has more.
    buffers : int, optional
        Of each thread.
    """

    def __init__(
        self,
        device: Device,
        lanes: int | None = None,
        slice_bytes: int = _SLICE,
        least_bytes: int = _LEAST_SLICE,
        buffers: int = _BUFFERS,
    ) -> None:
        self.device, self.place = device, device.place()
        self.lanes = lanes or usual_lanes()
        self.slice_bytes, self.least_bytes, self.buffers = slice_bytes, least_bytes, buffers
        self._lock = locks.new()
        self._queues = {way: queue.SimpleQueue() for way in (UPLOAD, DOWNLOAD)}
        self._threads: dict[str, list[threading.Thread]] = {UPLOAD: [], DOWNLOAD: []}
        self._streams: dict[str, Any] = {}
        _close_at_exit()
        _rings.add(self)

    def start(
        self, direction: str, array: np.ndarray, buffer: Any, offset: int = 0, after: Any = None
    ) -> Copy:
        """Begin to copy an array of any strides, packed in C order, to or from a buffer.

        Copies of one direction go in the order of their start, both directions at once.

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
        share = -(-array.nbytes // (self.lanes * self.buffers)) + 4095 & ~4095
        part = None
        most = min(max(share, self.least_bytes), self.slice_bytes)
        if self.device.sends_slices(direction) and (rows := in_rows(array, self.slice_bytes)):
            (array,) = rows
            most = min(max(share, self.least_bytes, _worth(array.nbytes)), _PIECE)
            part = min(most, _PART, self.slice_bytes)
        if after is not None and self.device.passed(after):
            after = None
        job = _Job(direction, array, buffer, offset, after, most, part)
        started = Staged(job)  # whatever comes in between, it sees to it that nothing stays begun
        with self._lock:
            workers = self._started(direction, min(job.count, self.lanes))
            for _ in range(min(job.count, workers)):
                self._queues[direction].put(job)
        if not workers:
            _Lane(self, None).do(job, buffered=False)
        return started

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
        return Direct(
            self.device, self.device.send(direction, array, buffer, offset, stream), array
        )

    def _started(self, direction: str, wanted: int) -> int:
        """How many threads there are, when those that are wanted were started."""
        threads = self._threads[direction]
        while len(threads) < wanted:
            lane = _Lane(self, self._queues[direction])
            thread = threading.Thread(
                target=lane.run, args=(direction,), name=f"{_NAME} {direction}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many
                break
            threads.append(thread)
        return len(threads)

    def leave(self, direction: str, own: Any) -> bool:
        """Whether the calling thread of ours may end: nothing waits in its queue."""
        with self._lock:
            if not own.empty():
                return False
            own_thread = threading.current_thread()
            if own_thread in self._threads[direction]:
                self._threads[direction].remove(own_thread)
            return True

    def close(self) -> None:
        """End the threads when they have done what was begun, and give the buffers back.

        The next copy starts anew.
        """
        ending = []
        with self._lock:
            for way, threads in self._threads.items():
                for _ in threads:
                    self._queues[way].put(None)
                ending += threads
                self._queues[way], self._threads[way] = queue.SimpleQueue(), []
            self._streams.clear()
        for thread in () if is_lane() else ending:  # two of them would wait for each other
            thread.join()


class _Slot(NamedTuple):
    """A slice on its way: its buffer, its bytes there, its place in the array, and its mark."""

    buffer: np.ndarray
    packed: np.ndarray
    view: np.ndarray
    mark: Any


class _Lane:
    """What one thread does: fill its buffers and send them, or wait for them and empty them."""

    def __init__(self, ring: Ring, jobs: Any) -> None:
        self._ring, self._device, self._jobs = ring, ring.device, jobs
        self._most = ring.buffers
        self._made = 0
        self._free: list[np.ndarray] = []
        self._stream: Any = None

    def run(self, direction: str) -> None:
        """Do one job after the other until the ring closes, or there are none for long."""
        _here.is_lane = True
        _be_nice()
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE)
            except queue.Empty:
                if self._ring.leave(direction, self._jobs):
                    break
                continue
            if job is None:
                break
            self.do(job)
            del job  # and the array with it
        self._free.clear()
        self._stream = None

    def do(self, job: _Job, buffered: bool = True) -> None:
        """Do slices of a job until there are none left; failures are the job's."""
        flying: collections.deque[_Slot] = collections.deque()
        taken = 0
        try:
            with plainly(), self._device.active():
                try:
                    while (number := job.take()) is not None:
                        taken += 1
                        if taken == 1:
                            self._begin(job, buffered)
                        self._do(job, number, flying)
                    while flying:
                        self._arrive(job, flying)
                except BaseException:
                    job.cancel()
                    self._land(flying)
                    raise
        except BaseException as error:  # active() has made it one of ours
            job.cancel(error)
        finally:
            job.settle(taken)

    def _begin(self, job: _Job, buffered: bool) -> None:
        if self._device.place() is not self._ring.place:
            raise DeviceError("the context in which a copy was begun is gone")
        if self._stream is None:
            self._stream = self._device.new_stream()
        if not buffered:
            self._most = 0
        if job.after is not None:
            self._device.wait(job.after, self._stream)

    def _do(self, job: _Job, number: int, flying: collections.deque[_Slot]) -> None:
        view, offset = job.piece(number)
        if job.part is not None:
            while len(self._free) < 2 and self._made < self._most:
                self._grow()
            if len(self._free) >= 2:
                self._device.send_slices(
                    *(job.direction, view, job.buffer, offset),
                    *(self._free[:2], job.part, self._stream),
                )
                return
        if not self._free and self._made < self._most:
            self._grow()
        if not self._free and flying:
            self._arrive(job, flying)
        if not self._free or job.part is not None:
            if job.after is not None:
                self._device.wait(job.after)
            self._device.copy_plainly(job.direction, view, job.buffer, offset)
            return
        buffer = self._free.pop()
        packed = buffer[: view.nbytes].view(view.dtype).reshape(view.shape)
        try:
            if job.direction == UPLOAD:
                np.copyto(packed, view)
            mark = self._device.send(job.direction, packed, job.buffer, offset, self._stream)
        except BaseException:
            self._free.append(buffer)
            raise
        flying.append(_Slot(buffer, packed, view, mark))

    def _grow(self) -> None:
        """One more buffer; where there is none to be had, those that are there must do."""
        try:
            self._free.append(self._device.pinned(self._ring.slice_bytes, PURPOSE))
        except Exception as error:
            self._most = self._made
            _refused(self._device.name, error)
        else:
            self._made += 1

    def _arrive(self, job: _Job, flying: collections.deque[_Slot]) -> None:
        """Wait for the oldest slice, and bring it where it belongs."""
        slot = flying[0]
        self._device.await_sent(slot.mark)
        flying.popleft()
        self._free.append(slot.buffer)
        if job.direction == DOWNLOAD and not job.is_cancelled:
            np.copyto(slot.view, slot.packed)

    def _land(self, flying: collections.deque[_Slot]) -> None:
        """Wait for what is still on its way after a failure."""
        try:
            if self._stream is not None:
                self._device.synchronize(self._stream)
        except Exception as error:
            log.debug("%s: a slice did not arrive: %s", self._device.name, error)
        self._free += [slot.buffer for slot in flying]
        flying.clear()


def _worth(nbytes: int) -> int:
    """Bytes of a piece that give so many bytes the least time: each piece costs the calls to the
    driver, which those of all threads wait for, and more pieces are filled at the same time."""
    return math.isqrt(nbytes * _IN_CALLS) + 4095 & ~4095


def in_rows(array: np.ndarray, most: int) -> tuple[np.ndarray] | tuple[()]:
    """An array as rows of contiguous memory at equal distances, or as one; nothing where it is
    neither, and where rows are too short to copy each by itself, or of more than ``most`` bytes.
    """
    if array.flags.c_contiguous:
        return (array,)
    axis, row = array.ndim, array.itemsize
    while axis and (array.shape[axis - 1] == 1 or array.strides[axis - 1] == row):
        axis -= 1
        row *= array.shape[axis]
    outer = [(n, step) for n, step in zip(array.shape[:axis], array.strides, strict=False) if n > 1]
    apart = any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(outer))
    if apart or not outer or not _LEAST_ROW <= row <= most or not array.size:
        return ()
    shape = math.prod(n for n, _ in outer), row // array.itemsize
    return (np.lib.stride_tricks.as_strided(array, shape, (outer[-1][1], array.itemsize)),)


def pieces(array: np.ndarray, most: int) -> tuple[int, Callable[[int], tuple[np.ndarray, int]]]:
    """An array in parts that follow each other in C order.

    Parameters
    ----------
    array : numpy.ndarray
        Of any strides.
    most : int
        Bytes of a part, but for single elements that have more.

    Returns
    -------
    count : int
    piece : callable
        ``piece(i)``: a view of the array, and the number of bytes before it.
    """
    if not array.size:
        return 0, lambda i: (array, 0)
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        return -(-flat.nbytes // most), lambda i: (flat[i * most : (i + 1) * most], i * most)
    axis, inner = array.ndim - 1, array.itemsize
    while axis and inner * array.shape[axis] <= most:
        inner *= array.shape[axis]
        axis -= 1
    length, outer = array.shape[axis], array.shape[:axis]
    parts = -(-length // max(most // inner, 1))

    def piece(i: int) -> tuple[np.ndarray, int]:
        before, part = divmod(i, parts)
        begin, end = part * length // parts, (part + 1) * length // parts
        index = np.unravel_index(before, outer) if outer else ()
        return array[(*index, slice(begin, end))], (before * length + begin) * inner

    return math.prod(outer) * parts, piece


def _refused(name: str, error: Exception) -> None:
    """Tell once that there is no pinned memory."""
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
def compile_ahead() -> threading.Thread:
    """Compile the loops beside what the program does, once."""

    def prepare() -> None:
        _be_nice()
        lane.compile_ahead()
        if blas_spin.is_due():
            blas_spin.find()

    compiler = threading.Thread(target=prepare, name=f"{_NAME} compiler", daemon=True)
    with contextlib.suppress(RuntimeError):  # it starts no threads any more: done without
        compiler.start()
        _at_exit(compiler.join)
    return compiler


@functools.cache
def _close_at_exit() -> None:
    _at_exit(close_all)


def _at_exit(function: Callable[[], object]) -> None:
    """Call a function when this process ends; no forked child does."""
    process = os.getpid()
    atexit.register(lambda: function() if os.getpid() == process else None)


def _be_nice() -> None:
    """Let the program's own threads go first on busy cores (Linux has it for each thread)."""
    if hasattr(os, "setpriority") and sys.platform == "linux":
        with contextlib.suppress(OSError):
            now = os.getpriority(os.PRIO_PROCESS, 0)
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(now + _NICE, 19))


@functools.cache
def usual_lanes() -> int:
    """Threads for each direction: half the cores that this process may use, but not too many."""
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on Linux
        cores = os.cpu_count() or 1
    return max(1, min(_MOST_LANES, cores // 2))
