"""Staged copies: ordinary host memory moves through pinned buffers, filled by several threads.

A driver copies ordinary memory through a pinned buffer of its own with one thread, which is slower
than the bus. Here several threads fill buffers while others are on the bus. Downloads go the other
way round, where what takes time is that new pages are touched: several threads touch them.

Arrays whose rows are contiguous are copied in compiled loops without the interpreter's lock
(`hetero.host.copying.lane`), as soon as these are there: for each direction one thread leads, which
calls the driver, and those of a `team` help. A second one leads where another copy is under way,
which is filled while the first waits for the bus. Other arrays are packed by several threads, each
with buffers and a stream of its own; they share nothing but the number of the next piece.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import os
import queue
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero import locks
from hetero.host import cgroup, pages
from hetero.host.copying import lane, team
from hetero.host.copying.copy_jobs import (
    DOWNLOAD,
    UPLOAD,
    Copy,
    Device,
    Direct,
    Job,
    Staged,
    here,
    in_rows,
)
from hetero.host.copying.lanes import Lane, Way, takes_slices, wanted_region
from hetero.host.copying.scheduling import be_nice
from hetero.host.copying.warming import Regions

_SLICE = 4 << 20  # bytes of a buffer of a thread of its own
_LEAST_SLICE = 1 << 20  # bytes: waking another thread takes longer than copying less
_BUFFERS = 2  # of a thread
_REGION = 32 << 20  # bytes of all buffers of one that leads
_LEADERS = 2  # for each direction
_AWAKE = 8 << 20  # bytes of pinned memory, 0.15 ms: to wake a thread takes half as long
_LONG = 1 << 30  # bytes that the driver copies in about as long as what copies need is made
_MOST_LANES = 8  # threads for each direction: more only wait for the same memory
_WAYS = [Way(direction, leads) for direction in (UPLOAD, DOWNLOAD) for leads in (False, True)]
_LATER = 0.02  # seconds; the first copy, if it is short, is alone with the interpreter
_NAME = "hetero-copy"  # begins as all threads of ours that never call BLAS

_rings: weakref.WeakSet[Any] = weakref.WeakSet()
_least: dict[str, Mapping[str, float]] = {}  # device -> direction -> bytes, see `believe`


def least(name: str) -> Mapping[str, float] | None:
    """Direction -> bytes from which on staged copies of a device are faster, where measured."""
    return _least.get(name)


def believe(measured: Mapping[str, Mapping[str, float]]) -> None:
    """Take what was measured for `least`, of all devices, in place of what was known."""
    global _least
    _least = dict(measured)


class Ring:
    """The pinned buffers of one context and the threads that fill and empty them.

    Threads start when there is work for them, at most that many for each direction, and end after
    a minute without any.

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
    helpers : int, optional
        Threads that help, of all rings together. Default: see `usual_helpers`.
    region_bytes : int, optional
        Of the buffers of a thread with helpers.
    ahead : bool, optional
        Whether these are made by a thread of its own while the driver copies.
    """

    def __init__(
        self,
        device: Device,
        lanes: int | None = None,
        slice_bytes: int = _SLICE,
        least_bytes: int = _LEAST_SLICE,
        buffers: int = _BUFFERS,
        helpers: int | None = None,
        region_bytes: int = _REGION,
        ahead: bool = False,
    ) -> None:
        self.device, self.place = device, device.place()
        self.lanes = lanes or usual_lanes()
        self.slice_bytes, self.least_bytes, self.buffers = slice_bytes, least_bytes, buffers
        self._helpers = helpers
        self.region_bytes = region_bytes
        self.regions, self._ahead = Regions(device, self.place, self._warm), ahead
        self._lock = locks.new()
        self._led = {UPLOAD: 0, DOWNLOAD: 0}  # jobs under way
        self._queues = {way: queue.SimpleQueue() for way in _WAYS}
        self._threads: dict[Way, list[threading.Thread]] = {way: [] for way in _WAYS}
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
        most = min(max(share, self.least_bytes), self.slice_bytes)
        is_whole = False
        if takes_slices(self.device, soon=self._ahead) and (rows := in_rows(array)):
            (array,) = rows
            most, is_whole = array.nbytes, True
        if after is not None and self.device.passed(after):
            after = None
        pages.open_()
        job = Job(direction, array, buffer, offset, after, most, is_whole)
        started = Staged(job)  # cancels the copy if an exception follows
        way = Way(direction, is_whole)
        with self._lock:
            wanted = min(job.count, self.lanes)
            if is_whole:
                wanted = min(self._led[direction], _LEADERS - 1) + 1
                self._led[direction] += 1
                if self._ahead:
                    size = wanted_region(array.nbytes, self.region_bytes)
                    wanted = min(wanted, max(self.regions.ask(direction, wanted, size), 1))
            workers = self._started(way, wanted)
            for _ in range(min(job.count, workers)):
                self._queues[way].put(job)
        if not workers:
            Lane(self, None).do(job, buffered=False)
        return started

    def is_worth_it(self, direction: str, array: np.ndarray) -> bool:
        """Whether a copy that is waited for at once is faster by `start` than by the driver.

        Not while the loops are compiled, which is begun with the first copy.
        """
        if not self._ahead or array.nbytes >= _LONG or takes_slices(self.device):
            return True
        if not (takes_slices(self.device, soon=True) and in_rows(array)):
            return True
        self.regions.ask(direction, 1, wanted_region(array.nbytes, self.region_bytes))
        return False

    def _warm(self, direction: str, when: Any) -> None:
        """Start the threads of copies whose buffers are there; these end if there are none."""
        with self._lock:
            if not self.regions.is_wanted(when) or not self._started(Way(direction, True), 1):
                return
        team.current(self.helpers)
        _end_team()  # if all was given back meanwhile

    def prepare(self) -> None:
        """Return when copies are as fast as they will be."""
        if self._ahead:
            lane.settled.wait()

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

    def _started(self, way: Way, wanted: int) -> int:
        """How many threads there are, when those that are wanted were started."""
        threads = self._threads[way]
        while len(threads) < wanted:
            worker = Lane(self, self._queues[way])
            thread = threading.Thread(
                target=worker.run, args=(way,), name=f"{_NAME} {way.direction}", daemon=True
            )
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending, or there are too many
                break
            threads.append(thread)
        return len(threads)

    def ended(self, job: Job) -> None:
        """A thread has no more to do for a job."""
        if job.is_whole:
            with self._lock:
                self._led[job.direction] -= 1

    def leave(self, way: Way, own: Any) -> bool:
        """Whether the calling thread of ours may end: nothing waits in its queue."""
        with self._lock:
            if not own.empty():
                return False
            own_thread = threading.current_thread()
            if own_thread in self._threads[way]:
                self._threads[way].remove(own_thread)
            if self.is_idle():
                self.regions.forget()
        _end_team()
        return True

    @property
    def helpers(self) -> int:
        """Threads that help, of all rings together."""
        if self._helpers is not None:
            return self._helpers
        return usual_helpers(sum(not ring.is_idle() for ring in _all_rings()))

    def is_idle(self) -> bool:
        """Whether it has no threads."""
        return not any(self._threads.values())

    def close(self) -> None:
        """End the threads when they have done what was begun, and give the buffers back.

        The next copy starts anew.
        """
        with self._lock:
            ending = self.regions.end()
            for way, threads in self._threads.items():
                for _ in threads:
                    self._queues[way].put(None)
                ending += threads
                self._queues[way], self._threads[way] = queue.SimpleQueue(), []
            self._streams.clear()
        for thread in () if here.is_lane else ending:  # two of them would wait for each other
            thread.join()
        _end_team()


def _all_rings() -> list[Ring]:
    """Those that there are, also while another thread makes one."""
    while True:
        with contextlib.suppress(RuntimeError):  # the set changed meanwhile
            return list(_rings)


def _end_team() -> None:
    """Let those who help end, where nobody is left to be helped."""
    if all(ring.is_idle() for ring in _all_rings()):
        team.close()
        pages.close()


def close_all() -> None:
    """Give the buffers of all rings back."""
    for ring in _all_rings():
        ring.close()


@functools.cache
def compile_ahead() -> threading.Thread:
    """Compile the loops beside what the program does, once."""

    def prepare() -> None:
        time.sleep(_LATER)
        # Not nice as long as it may hold the interpreter, which the program waits for.
        lane.compile_ahead(be_nice)

    compiler = threading.Thread(target=prepare, name=f"{_NAME} compiler", daemon=True)
    try:
        compiler.start()
    except RuntimeError:  # the interpreter starts no threads any more: done without
        lane.settled.set()
    else:
        _at_exit(compiler.join)
    return compiler


@functools.cache
def _close_at_exit() -> None:
    _at_exit(close_all)


def _at_exit(function: Callable[[], object]) -> None:
    """Call a function when this process ends; no forked child does."""
    process = os.getpid()
    atexit.register(lambda: function() if os.getpid() == process else None)


@functools.cache
def usual_lanes() -> int:
    """Threads for each direction: half the cores that this process may use, but not too many."""
    return max(1, min(_MOST_LANES, cgroup.cores() // 2))


@functools.cache
def usual_helpers(rings: int = 1) -> int:
    """Threads that help those who lead: half the cores as well, but not too many for each ring."""
    return max(1, min(team.MOST * rings, cgroup.cores() // 2))
