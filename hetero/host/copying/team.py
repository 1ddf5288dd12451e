"""Threads that help to copy, for all devices of this process: see `hetero.host.copying.lane`."""

from __future__ import annotations

import ctypes
import itertools
import math
import mmap
import os
import threading
from typing import Any

import numpy as np

from hetero import locks
from hetero.host.copying import lane, lane_task, scheduling

_NAME = "hetero-copy helper"  # begins as all threads of ours that never call BLAS
_LOOKS = 100  # for a task, before a helper sleeps
_ALIGNED = 128  # bytes: two cache lines, which a processor may load together
_HUGE_PAGE = 2 << 20  # bytes of a huge page
_TASK = ctypes.c_int64 * len(lane_task.FIELDS)
_FIRST = min(lane_task.FIELDS.values())  # word
_COUNTS = 8 * (_FIRST - lane_task.NEXT)  # bytes, of what is counted anew

_SLICE = 4 << 20  # bytes that the driver sends at once, at most
_LEAST_SLICE = 256 << 10  # bytes that the driver sends at once, at least
_IN_CALLS = 400 << 10  # bytes that are sent in the time of the calls for a slice, 8 us
_CHUNK = 256 << 10  # bytes that a thread copies at once
_LEAST_CHUNK = 64 << 10  # bytes that a thread copies at once, at least
_CHUNKS = 32  # of what is small: several for each thread
_LONG = 64 << 20  # bytes from which on the one who leads sleeps while others copy
_REST = 40  # microseconds of sleep of the one who leads, while others copy
_PATIENCE = 4  # rests while nobody else copies
MOST = 8  # who help one copy; more only wait for the same memory, and are to be woken
_ENOUGH = 4  # who help; fewer would not keep the bus busy without the one who leads
# Bytes of a download from which on each thread touches huge pages of its own, to any memory and to
# such that has no pages yet.
_LARGE, _LARGE_NEW = 64 << 20, 16 << 20
# Bytes of a row, see `lane_task.FIELDS`. What is stored past the caches is not read before, and a
# buffer that is sent from memory waits for no other processor's cache. But new pages come there
# when they are cleared, and the buffers of long uploads stay there, filled again and again.
_NEVER, _PAST = 1 << 62, 4096


try:
    _mincore: Any = ctypes.CDLL(None).mincore
except (AttributeError, TypeError, OSError):  # another system
    _mincore = None


class Team:
    """Memory that tasks share, and the threads that help with them until it is closed."""

    def __init__(self) -> None:
        self._raw = (ctypes.c_int64 * (lane_task.BLOCK + _ALIGNED // 8))()
        self._begin = -(-ctypes.addressof(self._raw) // _ALIGNED) * _ALIGNED
        self._process, self._lock = os.getpid(), locks.new()
        self._threads: list[threading.Thread] = []
        self._free = list(range(lane_task.TASKS))
        self._is_closed = False
        self._system = ctypes.CDLL(None)
        self._semaphore = ctypes.c_void_p(self._begin + 8 * lane_task.SHARED["semaphore"])
        self._system.sem_init(self._semaphore, 0, 0)
        self._fixed = {
            "team": self._begin,
            "memcpy": lane.address(self._system.memcpy),
            "yield": lane.address(self._system.sched_yield),
            "post": lane.address(self._system.sem_post),
            "nap": lane.address(self._system.usleep),
        }
        self._tell("looks", _LOOKS)
        self._tell("sleep", lane.address(self._system.sem_wait))
        self._tell("yield", self._fixed["yield"])

    def _tell(self, name: str, value: int) -> None:
        ctypes.c_int64.from_address(self._begin + 8 * lane_task.SHARED[name]).value = value

    def is_usable(self) -> bool:
        """Whether it is open, and this process's."""
        return not self._is_closed and self._process == os.getpid()

    def start(self, helpers: int) -> None:
        """Have that many threads, if the system gives them."""
        if len(self._threads) >= helpers:
            return
        with self._lock:
            while len(self._threads) < helpers and not self._is_closed:
                thread = threading.Thread(target=self._serve, name=_NAME, daemon=True)
                try:
                    thread.start()
                except RuntimeError:  # the interpreter is ending, or there are too many
                    break
                self._threads.append(thread)
                self._tell("threads", len(self._threads))

    def _serve(self) -> None:
        scheduling.be_nice()
        lane.loop("serve")(self._begin)

    def run(self, direction: str, given: dict[str, int]) -> int:
        """Copy what fields of a task tell; what `lane.loop` returns."""
        with self._lock:
            number = self._free.pop() if self._free else None
        own: Any = None
        if number is None:  # too many at once: this one without help
            own = (ctypes.c_int64 * lane_task.TASK)()
            begin = ctypes.addressof(own)
        else:
            begin = self._begin + 8 * (lane_task.TASKS_AT + number * lane_task.TASK)
        given = {**self._fixed, **given, "download": int(direction == "download"), "most": MOST}
        if len(self._threads) < _ENOUGH:
            given["rest"] = 0
        words = _TASK(*map(given.get, lane_task.FIELDS, itertools.repeat(0)))
        try:
            ctypes.memset(begin + 8 * lane_task.NEXT, 0, _COUNTS)
            ctypes.memmove(begin + 8 * _FIRST, words, ctypes.sizeof(words))
            return lane.loop(direction)(begin)
        finally:
            if number is not None:
                with self._lock:
                    self._free.append(number)

    def close(self) -> None:
        """End the threads when they have copied their chunks; tasks go on without them."""
        with self._lock:
            self._is_closed = True
            threads, self._threads = self._threads, []
        self._tell("stop", 1)
        for _ in threads:
            self._system.sem_post(self._semaphore)
        for thread in threads:
            if thread is not threading.current_thread():  # in which a finalizer calls this
                thread.join()


_team: Team | None = None
_lock = locks.new()


def current(helpers: int) -> Team:
    """The team of this process, with that many threads."""
    global _team
    found = _team
    if found is None or not found.is_usable():
        with _lock:
            if _team is None or not _team.is_usable():
                _team = Team()
            found = _team
    found.start(helpers)
    return found


def close() -> None:
    """End the threads; the next copy starts anew."""
    if _team is not None and _team.is_usable():
        _team.close()


def cut(direction: str, array: np.ndarray, region: int) -> dict[str, int]:
    """Fields of a task that copies an array: in which slices and chunks.

    Parameters
    ----------
    direction : {"upload", "download"}
    array : numpy.ndarray
        Contiguous, or a matrix whose rows are.
    region : int
        Bytes that all buffers have together.
    """
    nbytes, host = array.nbytes, array.__array_interface__["data"][0]
    row = pitch = nbytes
    if not array.flags.c_contiguous:
        row, pitch = array.shape[1] * array.itemsize, array.strides[0]
    is_long = nbytes >= _LONG
    is_new = direction == "download" and _is_new(host, pitch, row, nbytes)
    passes = not is_new if direction == "download" else not is_long
    # Each slice costs its calls, and the last one the time to send it: both together are least.
    size = -(-math.isqrt(nbytes * _IN_CALLS) // _LEAST_CHUNK) * _LEAST_CHUNK
    size = min(max(size, _LEAST_SLICE), _SLICE, region)
    chunk, lead = min(max(nbytes // _CHUNKS, _LEAST_CHUNK), _CHUNK), 0
    if direction == "download" and nbytes >= (_LARGE_NEW if is_new else _LARGE):
        # Two threads that touch the same new page for the first time both clear it.
        if row == nbytes:
            chunk = min(_HUGE_PAGE, size)
            size, lead = size - size % chunk, host % chunk
        elif pitch > 0:
            chunk = min(max(_HUGE_PAGE // pitch * row, _CHUNK), size)
    return {
        "host": host,
        "bytes": nbytes,
        "row": row,
        "pitch": pitch,
        "lead": lead,
        "rest": _REST if is_long else 0,
        "patience": _PATIENCE,
        "slice": size,
        "chunk": chunk,
        "buffers": max(min(region // size, lane_task.BUFFERS, -(-(nbytes + lead) // size)), 1),
        "past": _PAST if passes else _NEVER,
    }


def _is_new(host: int, pitch: int, row: int, nbytes: int) -> bool:
    """Whether memory has no pages yet, as far as two places in it tell (on Linux)."""
    if _mincore is None:
        return False
    rows, found = nbytes // row, ctypes.c_ubyte(1)
    for share in (2, 4):
        place = host + (rows // share * pitch if rows > 1 else nbytes // share)
        page = ctypes.c_void_p(place // mmap.PAGESIZE * mmap.PAGESIZE)
        if _mincore(page, ctypes.c_size_t(1), ctypes.byref(found)) or not found.value & 1:
            return True
    return False
