"""Copies between host and device: by the driver, directly from pinned memory, or staged.

Callers have `Device.upload`, `download`, `begin_upload` and `begin_download`; which way a copy goes
is chosen here. `hetero.host.copying.staging` stages it.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import queue
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from hetero.errors import DeviceError

UPLOAD, DOWNLOAD = "upload", "download"

_least: dict[str, Mapping[str, float]] = {}  # device -> direction -> bytes, see `believe`
log = logging.getLogger("hetero")


def believe(measured: Mapping[str, Mapping[str, float]]) -> None:
    """Take what was measured in place of what was known.

    Parameters
    ----------
    measured : dict
        Device -> direction -> bytes from which on staged copies of pageable memory are faster.
    """
    global _least
    _least = dict(measured)


def copy_packed(
    device: Any, direction: str, array: np.ndarray, buffer: Any, offset: int = 0
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


def begin(
    device: Any,
    direction: str,
    array: np.ndarray,
    buffer: Any,
    offset: int,
    after: Any = None,
    overlap: bool = True,
) -> Copy:
    """Begin to copy a host array of any strides, packed in C order.

    Until `Copy.wait` returns, neither what is read nor what is written may be written to, and
    nothing that is begun on the device may use what is written. Copies of one direction begin in
    the order of their start; two of each may be under way at once. A copy that is dropped is waited
    for. Where the device has no `ring`, the copy is complete at once.

    Parameters
    ----------
    device : Device
    direction : {"upload", "download"}
    array : numpy.ndarray
    buffer : buffer
    offset : int
        Bytes from the buffer's begin.
    after : event or None
        What must have come before the buffer is touched, as `Device.record` gives it; None: all
        that the default queue holds now.
    overlap : bool
        Whether the host has something to do meanwhile. Without, the copy is complete at once where
        the driver alone is as fast.
    """
    if not overlap and _is_large(device, direction, array):
        staged = _staged(device, direction, array, buffer, offset, after)
        if staged is not None:
            return staged
    ring = device.ring() if overlap else None
    if ring is None or not array.nbytes:
        if after is not None:
            device.wait(after)
        copy_packed(device, direction, array, buffer, offset)
        return Copy()
    if after is None:
        after = device.record()
    start = ring.start_pinned if device.copies_directly(array) else ring.start
    return start(direction, array, buffer, offset, after)


def _is_large(device: Any, direction: str, array: np.ndarray) -> bool:
    """Whether staged copies of that many bytes are the faster ones, if they are pageable."""
    return array.nbytes >= (_least.get(device.name) or device.least_staged)[direction]


def _staged(
    device: Any, direction: str, array: np.ndarray, buffer: Any, offset: int, after: Any = None
) -> Copy | None:
    """Begin a staged copy if that is faster than the driver alone; None where it is not."""
    ring = device.ring()
    if ring is None or (array.flags.c_contiguous and device.is_pinned(array)):
        return None
    return ring.start(direction, array, buffer, offset, after or device.record())


class Outcome:
    """What comes of a copy. A signal's handler may come in between anywhere, and wait for another.

    Attributes
    ----------
    is_there : bool
    mark : event, optional
        Of the last slice, where that is on its way.
    error : BaseException, optional
    """

    def __init__(self) -> None:
        self.is_there, self.mark, self.error = False, None, None
        self._news = queue.SimpleQueue[bool]()

    def set(self, mark: Any, error: BaseException | None = None) -> None:
        self.mark, self.error, self.is_there = mark, error, True
        self._news.put(True)

    def wait(self) -> None:
        self._news.put(self._news.get())  # others may wait, too


class Staged(Copy):
    """A copy that a ring's thread makes. One that is dropped is waited for.

    Parameters
    ----------
    device : Device
    outcome : Outcome
    """

    def __init__(self, device: Any, outcome: Outcome) -> None:
        self._device, self._outcome, self._process = device, outcome, os.getpid()
        self._is_over = False

    def wait(self) -> None:
        """An interrupt is raised when nothing is under way."""
        if os.getpid() != self._process:
            raise DeviceError("a copy cannot be waited for in a forked child")
        outcome, interrupt = self._outcome, None
        while not outcome.is_there:
            try:
                outcome.wait()
            except BaseException as error:
                interrupt = interrupt or error
        try:
            if outcome.error is not None:
                raise outcome.error
            if outcome.mark is not None and not self._is_over:
                with self._device.active():
                    self._device.await_event(outcome.mark)
            self._is_over = True
        finally:
            if interrupt is not None:
                raise interrupt

    def __del__(self) -> None:
        # The ring's own thread, in which garbage may be collected, would wait for itself.
        outcome = getattr(self, "_outcome", None)
        if outcome is None or self._is_over or os.getpid() != self._process or here.is_copying:
            return
        try:
            self.wait()
        except BaseException as error:  # whoever uses the device next gets it
            log.debug("a copy that nobody waited for failed: %s", error)


class Here(threading.local):
    """What holds for a thread.

    Attributes
    ----------
    is_copying : bool
        Whether it is one of a ring's.
    """

    is_copying = False


here = Here()


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

    def __init__(self, device: Any, marks: list[Any], array: np.ndarray) -> None:
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
