"""Copies of contiguous rows without the interpreter's lock: `slices.c`, called through ctypes.

It is compiled where hetero is installed, if a C compiler is there; without it copies are staged by
Python's threads, which are slower (`hetero.host.copying.staging`).
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import logging
import math
import queue
import threading
from pathlib import Path
from typing import Any

import numpy as np

from hetero import locks
from hetero.host import cpu

BUFFERS, _JOBS = 16, 16  # of a ring, and under way at once, at most; as in slices.c
_FEW = 4  # threads, of which the one that leads is one; of more it is not
_OTHERS = 4  # cores without threads that help: for those who lead and for the caller
_MOST_HELPERS = 28  # those of four copies: more of them only wait for the memory
_SHARE = 1 << 20  # bytes for which one more thread is worth waking
_SLICE, _LEAST_SLICE = 4 << 20, 256 << 10  # bytes that the driver copies at once
_IN_CALLS = 400 << 10  # bytes that are sent in the time of the calls for a slice, 8 us
_CHUNK, _LEAST_CHUNK = 256 << 10, 64 << 10  # bytes that a thread copies at once
_CHUNKS = 32  # of what is small
# Bytes of a row from which on it is stored past the caches. The buffers of long uploads stay there.
_PAST, _NEVER, _LONG = 4096, 1 << 62, 64 << 20
_HUGE_PAGE = 2 << 20  # bytes of a huge page
_SET_TIMERSLACK = 29  # prctl
_LARGE = 16 << 20  # bytes of a download into new memory: one thread touches each huge page

log = logging.getLogger("hetero")
_libc = ctypes.CDLL(None)
_lock = locks.new()
_free: queue.SimpleQueue[_Job] = queue.SimpleQueue()  # jobs that no copy uses


class _Job(ctypes.Structure):
    """``struct job`` of slices.c; all that it has are words."""

    _fields_ = [
        *((name, ctypes.c_long) for name in ("host", "ring", "device", "row", "pitch", "bytes")),
        *((name, ctypes.c_long) for name in ("slice", "chunk", "each", "first", "last", "buffers")),
        *((name, ctypes.c_long) for name in ("helpers", "pool", "past", "down", "stream")),
        ("event", ctypes.c_long * BUFFERS),
        *((name, ctypes.c_long) for name in ("send", "record", "query", "next", "limit")),
        ("left", ctypes.c_long * BUFFERS),
    ]


def library() -> Any:
    """slices.c, with threads that help from now on; None where it was not compiled."""
    with _lock:
        return _load()


@functools.cache
def _load() -> Any:
    try:
        found = ctypes.CDLL(str(Path(__file__).with_name("libslices.so.1")))
    except OSError as error:
        log.info("copies do without compiled code: %s", error)
        return None
    for job in (_Job * _JOBS).in_dll(found, "jobs"):
        _free.put(job)

    def help_for_ever() -> None:
        be_prompt()
        found.help()

    with contextlib.suppress(RuntimeError):  # there are too many threads
        for _ in range(helpers()):
            threading.Thread(target=help_for_ever, name="hetero-helper", daemon=True).start()
    return found


def helpers() -> int:
    """How many threads help: as many as one copy wants, and where there are more cores, several."""
    return min(max(cpu.cores() - _OTHERS, cpu.cores() // 2 - 1), _MOST_HELPERS)


def be_prompt() -> None:
    """Let the calling thread's rests be as short as it asks for."""
    _libc.prctl(_SET_TIMERSLACK, ctypes.c_ulong(1000))  # ns


def copy(
    host: int,
    device: int,
    layout: tuple[int, int, int],
    region: np.ndarray,
    threads: int,
    down: bool,
    driver: dict[str, Any],
    is_new: bool = False,
) -> int:
    """Copy rows of contiguous memory; 0, or the driver's first error.

    A download is complete then. Of an upload all is in the region, and the last slices may be on
    their way, as after an error.

    Parameters
    ----------
    host, device : int
        Addresses of the first row, and of packed memory of the device.
    layout : tuple
        As `staging.rows` gives it.
    region : numpy.ndarray
        Pinned memory of 1 MiB or more, which no copy uses but those by the same events.
    threads : int
        How many copy, at most.
    down : bool
        Whether to the host.
    driver : dict
        The driver's ``stream``, `BUFFERS` of its ``events``, and addresses of functions: ``send``
        (to, from, bytes, stream), ``record`` (event, stream) and ``query`` (event), which returns
        600 while the event is to come.
    is_new : bool
        Whether the memory begins a huge page and has no pages.
    """
    number, row, pitch = layout
    nbytes = number * row
    if down and not is_new and number == 1 and row >= _LARGE and _has_no_pages(host, row):
        # Two threads that touch the same new page for the first time both clear it.
        head = -host % _HUGE_PAGE
        rest = 1, row - head, row - head
        if status := copy(host, device, (1, head, head), region, threads, down, driver):
            return status
        return copy(host + head, device + head, rest, region, threads, down, driver, True)
    # Each slice costs its calls, and the last one the time to send it: both together are least.
    size = min(max(math.isqrt(nbytes * _IN_CALLS), _LEAST_SLICE), _SLICE, region.nbytes)
    chunk = min(max(nbytes // _CHUNKS // _LEAST_CHUNK * _LEAST_CHUNK, _LEAST_CHUNK), _CHUNK)
    if is_new:
        chunk = min(_HUGE_PAGE, size)
    size -= size % chunk
    found, job = library(), _free.get()
    job.host, job.device, job.row, job.pitch, job.bytes = host, device, row, pitch, nbytes
    job.ring = region.__array_interface__["data"][0]
    job.buffers = max(min(region.nbytes // size, BUFFERS), 1)
    job.slice, job.chunk, job.each = size, chunk, size // chunk
    job.first, job.last = job.next, job.next + -(-nbytes // chunk)
    job.helpers, job.pool = min(threads - (threads <= _FEW), nbytes // _SHARE), helpers()
    job.past = _NEVER if is_new or (not down and nbytes >= _LONG) else _PAST
    job.down = down
    job.stream, job.event = driver["stream"].handle, tuple([e.handle for e in driver["events"]])
    job.send, job.record, job.query = driver["send"], driver["record"], driver["query"]
    try:
        return found.copy_slices(ctypes.byref(job))
    finally:
        _free.put(job)


def _has_no_pages(host: int, nbytes: int) -> bool:
    """Whether nobody has touched the memory, by two places in it (on Linux)."""
    found = ctypes.c_ubyte(1)
    for place in (host + nbytes // 2, host + nbytes // 4):
        page = ctypes.c_void_p(place // _HUGE_PAGE * _HUGE_PAGE)
        if _libc.mincore(page, ctypes.c_size_t(1), ctypes.byref(found)) or not found.value & 1:
            return True
    return False
