"""What one thread of a ring does: it copies the pieces of jobs through buffers of its own."""

from __future__ import annotations

import collections
import logging
import queue
from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import numpy as np

from hetero.errors import DeviceError
from hetero.host.copying import lane
from hetero.host.copying.copy_jobs import (
    DOWNLOAD,
    UPLOAD,
    Device,
    Job,
    behind,
    copy_packed,
    here,
    pieces,
)
from hetero.host.copying.scheduling import be_nice, be_punctual

PURPOSE = "pinned buffers of copies"
_PLAIN = 8 << 20  # bytes that the driver copies where there is no buffer, or not yet
_PLAINER = 64 << 20  # while the loops are compiled: between two of these it waits for Python
_IDLE = 60.0  # seconds without a copy after which a thread ends and gives its buffers back

log = logging.getLogger("hetero")


class Ring(Protocol):
    """The part of `hetero.host.copying.staging.Ring` that a lane uses."""

    device: Device
    place: Any
    buffers: int
    slice_bytes: int
    region_bytes: int
    helpers: int
    regions: Any
    leave: Callable[[Way, Any], bool]
    ended: Callable[[Job], None]


class Way(NamedTuple):
    """What a thread copies: in which direction, and whether with helpers."""

    direction: str
    leads: bool


class Slot(NamedTuple):
    """A slice on its way: its buffer, its bytes there, its place in the array, and its mark."""

    buffer: np.ndarray
    packed: np.ndarray
    view: np.ndarray
    mark: Any


class Lane:
    """What one thread does: fill its buffers and send them, or wait for them and empty them."""

    def __init__(self, ring: Ring, jobs: Any) -> None:
        self._ring, self._device, self._jobs = ring, ring.device, jobs
        self._most = ring.buffers
        self._made = 0
        self._free: list[np.ndarray] = []
        self._region: np.ndarray | None = None  # of buffers for what goes whole
        self._may_grow = True
        self._stream: Any = None

    def run(self, way: Way) -> None:
        """Do one job after the other until the ring closes, or there are none for long."""
        here.is_lane = True
        if way.leads:  # a program waits for it, and it is one
            be_punctual()
        else:
            be_nice()
        while True:
            try:
                job = self._jobs.get(timeout=_IDLE)
            except queue.Empty:
                if self._ring.leave(way, self._jobs):
                    break
                continue
            if job is None:
                break
            self.do(job)
            del job  # and the array with it
        self._free.clear()
        self._region = self._stream = None

    def do(self, job: Job, buffered: bool = True) -> None:
        """Do slices of a job until there are none left; failures are the job's."""
        flying: collections.deque[Slot] = collections.deque()
        taken = 0
        try:
            with self._device.active():
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
            self._ring.ended(job)
            job.settle(taken)

    def _begin(self, job: Job, buffered: bool) -> None:
        if self._device.place() is not self._ring.place:
            raise DeviceError("the context in which a copy was begun is gone")
        if self._stream is None:
            self._stream = self._device.new_stream()
        if not buffered:
            self._most, self._may_grow = 0, False
        if job.after is not None:
            self._device.wait(job.after, self._stream)

    def _do(self, job: Job, number: int, flying: collections.deque[Slot]) -> None:
        view, offset = job.piece(number)
        if job.is_whole:
            self._do_whole(job, view, offset)
            return
        if not self._free and self._made < self._most:
            self._grow()
        if not self._free and flying:
            self._arrive(job, flying)
        if not self._free:
            if job.after is not None:
                self._device.wait(job.after)
            copy_packed(self._device, job.direction, view, job.buffer, offset)
            return
        buffer = self._free.pop()
        packed = buffer[: view.nbytes].view(view.dtype).reshape(view.shape)
        try:
            if job.direction == UPLOAD:
                np.copyto(packed, view)
            mark = self._device.enqueue(job.direction, packed, job.buffer, offset, self._stream)
        except BaseException:
            self._free.append(buffer)
            raise
        flying.append(Slot(buffer, packed, view, mark))

    def _do_whole(self, job: Job, array: np.ndarray, offset: int) -> None:
        """Do a job with whatever helpers there are, in compiled loops.

        The driver copies what comes before these and their buffers are there.
        """
        is_ready = takes_slices(self._device)
        count, piece = pieces(array, _PLAIN if is_ready else _PLAINER)
        for number in range(count):
            view, begin = piece(number)
            region = self._region_now(job.direction, array.nbytes)
            rest = behind(array, begin) if region is not None else None
            if rest is not None:
                self._device.slices.copy(
                    *(job.direction, rest, job.buffer, offset + begin),
                    *(region, self._stream, job.flag, self._ring.helpers),
                )
                return
            if not job.is_cancelled:
                self._plainly(job, view, offset + begin)

    def _plainly(self, job: Job, view: np.ndarray, offset: int) -> None:
        """Let the driver copy ordinary memory, beside what is computed where it can."""
        if not view.flags.c_contiguous:
            if job.after is not None:
                self._device.wait(job.after)
            copy_packed(self._device, job.direction, view, job.buffer, offset)
            return
        self._device.enqueue(job.direction, view, job.buffer, offset, self._stream)
        self._device.synchronize(self._stream)

    def _region_now(self, direction: str, nbytes: int) -> np.ndarray | None:
        """`_region_for`, if the loops are there; None also as long as a first one is being made."""
        if self._region is None:
            self._region = self._ring.regions.take(direction)
        if self._region is None and self._ring.regions.is_coming(direction):
            return None
        return self._region_for(nbytes) if takes_slices(self._device) else None

    def _region_for(self, nbytes: int) -> np.ndarray | None:
        """Pinned memory for that many bytes on their way, or what there is."""
        most = self._ring.region_bytes
        wanted = wanted_region(nbytes, most)
        held, tried = 0 if self._region is None else self._region.nbytes, wanted
        while self._may_grow and held < tried:
            try:
                self._region = self._device.pinned(tried, PURPOSE)
                break
            except Exception as error:
                _refused(self._device.name, error)
                tried //= 2
                self._may_grow = tried >= most // 64
        self._may_grow = self._may_grow and tried == wanted
        return self._region

    def _grow(self) -> None:
        """One more buffer; where there is none to be had, those that are there must do."""
        try:
            self._free.append(self._device.pinned(self._ring.slice_bytes, PURPOSE))
        except Exception as error:
            self._most = self._made
            _refused(self._device.name, error)
        else:
            self._made += 1

    def _arrive(self, job: Job, flying: collections.deque[Slot]) -> None:
        """Wait for the oldest slice, and bring it where it belongs."""
        slot = flying[0]
        self._device.await_event(slot.mark)
        flying.popleft()
        self._free.append(slot.buffer)
        if job.direction == DOWNLOAD and not job.is_cancelled:
            np.copyto(slot.view, slot.packed)

    def _land(self, flying: collections.deque[Slot]) -> None:
        """Wait for what is still on its way after a failure."""
        try:
            if self._stream is not None:
                self._device.synchronize(self._stream)
        except Exception as error:
            log.debug("%s: a slice did not arrive: %s", self._device.name, error)
        self._free += [slot.buffer for slot in flying]
        flying.clear()


def takes_slices(device: Device, soon: bool = False) -> bool:
    """Whether compiled loops copy for a device, which take the interpreter's lock once.

    ``soon``: or will, when they are compiled.
    """
    if device.slices is None:
        return False
    return lane.ready("serve") is not None or (soon and not lane.settled.is_set())


def wanted_region(nbytes: int, most: int) -> int:
    """Bytes of pinned memory for a copy of that many, and for others of about that size."""
    return min(max(1 << (nbytes - 1).bit_length(), most // 8), most)


def _refused(name: str, error: Exception) -> None:
    """Tell once that there is no pinned memory."""
    global _is_told
    if not _is_told:
        _is_told = True
        log.warning("%s: copies are slower, the system gives no pinned memory: %s", name, error)


_is_told = False
