"""Copies that were begun: what threads do of them piece by piece, and what waits for them."""

from __future__ import annotations

import ctypes
import itertools
import logging
import math
import os
import queue
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from hetero import locks
from hetero.errors import DeviceError

UPLOAD, DOWNLOAD = "upload", "download"

log = logging.getLogger("hetero")


class Here(threading.local):
    """What holds for a thread.

    Attributes
    ----------
    is_lane : bool
        Whether it does nothing but copy pieces.
    """

    is_lane = False


here = Here()


class Slices(Protocol):
    """How compiled loops (`hetero.host.copying.lane`) copy for a device."""

    def copy(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int,
        region: np.ndarray,
        stream: Any,
        cancel: Any,
        helpers: int,
    ) -> None:
        """Copy an array, of which the rows are contiguous, through pinned memory, with helpers,
        until it is done or `cancel` holds a value that is not 0."""


class Device(Protocol):
    """What staging needs of a `hetero.devices.base.Device`."""

    name: str
    active: Callable[[], AbstractContextManager[Any]]
    place: Callable[[], Any]
    pinned: Callable[..., np.ndarray]
    new_stream: Callable[[], Any]
    wait: Callable[..., None]
    enqueue: Callable[..., Any]
    await_event: Callable[[Any], None]
    synchronize: Callable[..., None]
    passed: Callable[[Any], bool]
    slices: Slices | None


def copy_packed(
    device: Device, direction: str, array: np.ndarray, buffer: Any, offset: int = 0
) -> None:
    """Let the driver copy a host array of any strides, packed in C order, at once."""
    if not array.nbytes:
        return
    if array.flags.c_contiguous:
        device.enqueue(direction, array, buffer, offset)
    elif direction == UPLOAD:
        device.enqueue(direction, np.ascontiguousarray(array), buffer, offset)
    else:
        packed = np.empty(array.shape, array.dtype)
        device.enqueue(direction, packed, buffer, offset)
        array[...] = packed


class Copy:
    """A copy between host and device that was begun."""

    def wait(self) -> None:
        """Return when it is complete; raise what made it fail."""


class Job:
    """A copy that threads do slice by slice, or one with its helpers, see `team`."""

    def __init__(
        self,
        direction: str,
        array: np.ndarray,
        buffer: Any,
        offset: int,
        after: Any,
        most: int,
        is_whole: bool = False,
    ) -> None:
        self.direction, self.buffer, self.after, self.is_whole = direction, buffer, after, is_whole
        self.count, self._piece = pieces(array, most)
        self._offset = offset
        self.error: BaseException | None = None
        self.is_cancelled = False
        self.flag = ctypes.c_int64(0)  # the same, for compiled loops
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
        """That many slices that were taken are done with."""
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
            self.flag.value = 1
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
        while not here.is_lane:  # a lane would wait for itself
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

    def __init__(self, job: Job) -> None:
        self._job: Job | None = job
        self._error: BaseException | None = None

    def wait(self) -> None:
        job = self._job
        if job is not None:
            job.wait()
            self._job, self._error = None, job.error
        if self._error is not None:
            raise self._error

    def __del__(self) -> None:
        job = getattr(self, "_job", None)
        if job is not None:
            job.stop()


class Direct(Copy):
    """A copy of pinned memory that is on its way, without threads of ours.

    Parameters
    ----------
    device : Device
    marks : list
        As its `enqueue` gives them, in the order in which they come.
    array : numpy.ndarray
        Kept alive until then.
    """

    def __init__(self, device: Device, marks: list[Any], array: np.ndarray) -> None:
        self._device, self._marks, self._array = device, marks, array

    def wait(self) -> None:
        if self._marks:
            with self._device.active():
                while self._marks:
                    self._device.await_event(self._marks[0])
                    del self._marks[0]
            self._array = None

    def __del__(self) -> None:
        try:
            self.wait()
        except Exception as error:  # whoever uses the device next gets it
            log.debug("a copy that nobody waited for failed: %s", error)


_LEAST_ROW = 128  # bytes of a row that is copied by a job of its own, at least


def in_rows(array: np.ndarray) -> tuple[np.ndarray] | tuple[()]:
    """An array as rows of contiguous memory at equal distances, or as one; nothing where it is
    neither, and where rows are too short to copy each by itself.
    """
    if array.flags.c_contiguous:
        return (array,)
    if array.ndim == 2 and array.strides[1] == array.itemsize and array.shape[0] > 1:
        return (array,) if array.shape[1] * array.itemsize >= _LEAST_ROW else ()
    axis, row = array.ndim, array.itemsize
    while axis and (array.shape[axis - 1] == 1 or array.strides[axis - 1] == row):
        axis -= 1
        row *= array.shape[axis]
    outer = [(n, step) for n, step in zip(array.shape[:axis], array.strides, strict=False) if n > 1]
    apart = any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(outer))
    if apart or not outer or row < _LEAST_ROW or not array.size:
        return ()
    shape = math.prod(n for n, _ in outer), row // array.itemsize
    return (np.lib.stride_tricks.as_strided(array, shape, (outer[-1][1], array.itemsize)),)


def behind(array: np.ndarray, nbytes: int) -> np.ndarray | None:
    """What follows that many bytes of an array that `in_rows` made; None within a row."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)[nbytes:]
    row = array.shape[1] * array.itemsize
    return None if nbytes % row else array[nbytes // row :]


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
