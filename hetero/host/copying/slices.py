"""Copies of contiguous rows without the interpreter's lock: `slices.c`, called through ctypes.

It is compiled where hetero is installed, if a C compiler is there; without it copies are staged by
Python's threads, which are slower (`hetero.host.copying.staging`).
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
import mmap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hetero.host import cpu

BUFFERS = 16  # of a ring, at most; as in slices.c
_FEW = 4  # threads, of which the one that leads is one; of more it is not
_OTHERS = 4  # cores without threads that help: for those who lead and for the caller
_SHARE = 1 << 20  # bytes for which one more thread is worth waking
_SLICE, _LEAST_SLICE = 4 << 20, 256 << 10  # bytes that the driver copies at once
_IN_CALLS = 400 << 10  # bytes that are sent in the time of the calls for a slice, 8 us
_CHUNK, _LEAST_CHUNK = 256 << 10, 64 << 10  # bytes that a thread copies at once
_CHUNKS = 32  # of what is small
# Bytes of a row from which on it is stored past the caches. The buffers of long uploads stay there.
_PAST, _NEVER, _LONG = 4096, 1 << 62, 64 << 20
_HUGE_PAGE = 2 << 20  # bytes of a huge page
_LARGE = 16 << 20  # bytes of a download into new memory: one thread touches each huge page

log = logging.getLogger("hetero")
_mincore = ctypes.CDLL(None).mincore


class _Job(ctypes.Structure):
    """``struct job`` of slices.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("host", "ring", "device")),
        *((name, ctypes.c_long) for name in ("row", "pitch", "bytes", "slice", "chunk")),
        *((name, ctypes.c_long) for name in ("buffers", "helpers", "threads", "past", "download")),
        ("stream", ctypes.c_void_p),
        ("event", ctypes.c_void_p * BUFFERS),
        *((name, ctypes.c_void_p) for name in ("send", "record", "query", "drain")),
        ("copied", ctypes.c_long * BUFFERS),
    ]


@functools.cache
def library() -> Callable[[Any], int] | None:
    """``copy_slices`` of slices.c; None where it was not compiled."""
    try:
        return ctypes.CDLL(str(Path(__file__).with_name("libslices.so.1"))).copy_slices
    except OSError as error:
        log.info("copies do without compiled code: %s", error)
        return None


def copy(
    host: int,
    layout: tuple[int, int, int],
    address: int,
    region: np.ndarray,
    threads: int,
    stream: int,
    events: Sequence[int],
    driver: Mapping[str, int],
    is_download: bool,
    is_new: bool = False,
) -> int:
    """Copy rows of contiguous memory; 0, or the driver's first error.

    A download is complete then. Of an upload all is in the region, and the last slices may be on
    their way. After an error nothing is.

    Parameters
    ----------
    host : int
        Address of the first row.
    layout : tuple
        As `copy_jobs.rows` gives it.
    address : int
        Of packed memory of the device.
    region : numpy.ndarray
        Pinned memory of 1 MiB or more, which no copy uses but those by the same events.
    threads : int
        How many copy, at most.
    stream : int
        The driver's handle.
    events : sequence of int
        `BUFFERS` handles of the driver's.
    driver : mapping
        Addresses of its functions: "send" (to, from, bytes, stream), "record" (event, stream),
        "query" (event), which returns 600 while the event is to come, and "drain" (stream).
    is_download : bool
    is_new : bool
        Whether the memory begins a huge page and has no pages.
    """
    given = region, threads, stream, events, driver, is_download
    number, row, pitch = layout
    nbytes = number * row
    is_large = is_download and number == 1 and nbytes >= _LARGE
    if is_large and not is_new and _has_no_pages(host, nbytes):
        # Two threads that touch the same new page for the first time both clear it.
        head = -host % _HUGE_PAGE
        rest = nbytes - head
        status = copy(host, (1, head, head), address, *given) if head else 0
        return status or copy(host + head, (1, rest, rest), address + head, *given, is_new=True)
    # Each slice costs its calls, and the last one the time to send it: both together are least.
    size = min(max(math.isqrt(nbytes * _IN_CALLS), _LEAST_SLICE), _SLICE, region.nbytes)
    chunk = min(max(nbytes // _CHUNKS // _LEAST_CHUNK * _LEAST_CHUNK, _LEAST_CHUNK), _CHUNK)
    if is_new:
        chunk = min(_HUGE_PAGE, size)
    size -= size % chunk
    job = _Job(
        *(host, region.__array_interface__["data"][0], address, row, pitch, nbytes, size, chunk),
        buffers=max(min(region.nbytes // size, BUFFERS), 1),
        helpers=min(threads - (threads <= _FEW), nbytes // _SHARE),
        threads=max(cpu.cores() - _OTHERS, threads),
        past=_NEVER if is_new or (not is_download and nbytes >= _LONG) else _PAST,
        download=is_download,
        stream=stream,
        event=(ctypes.c_void_p * BUFFERS)(*events),
        **driver,
    )
    found = library()
    assert found is not None
    return found(ctypes.byref(job))


def _has_no_pages(host: int, nbytes: int) -> bool:
    """Whether nobody has touched the memory, by two places in it (on Linux)."""
    found = ctypes.c_ubyte(1)
    for place in (host + nbytes // 2, host + nbytes // 4):
        page = ctypes.c_void_p(place // mmap.PAGESIZE * mmap.PAGESIZE)
        if _mincore(page, ctypes.c_size_t(1), ctypes.byref(found)) or not found.value & 1:
            return True
    return False
