"""Copies of contiguous rows without the interpreter's lock: `slices.c`, called through ctypes.

It is compiled where hetero is installed, if a C compiler is there; without it copies are staged by
Python's threads, which are slower (`hetero.host.copying.staging`).
"""

from __future__ import annotations

import ctypes
import functools
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["BUFFERS", "copy", "library"]

BUFFERS = 16  # of a ring, at most; as in slices.c
_HELPERS = 8  # threads that help the calling one, at most; more wait for the same memory
_SHARE = 1 << 20  # bytes for which one more thread is worth starting
_SLICE, _LEAST_SLICE = 4 << 20, 256 << 10  # bytes that the driver copies at once
_IN_CALLS = 400 << 10  # bytes that are sent in the time of the calls for a slice, 8 us
_CHUNK = 64 << 10  # bytes that a thread copies at once, at least
_CHUNKS = 4  # of a slice
_HUGE_PAGE = 2 << 20  # bytes of a huge page
_LARGE = 16 << 20  # bytes of a download from which on threads touch huge pages of their own

log = logging.getLogger("hetero")


class _Job(ctypes.Structure):
    """``struct job`` of slices.c."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("host", "ring", "device")),
        *((name, ctypes.c_long) for name in ("row", "pitch", "lead", "end", "slice", "chunk")),
        *((name, ctypes.c_long) for name in ("buffers", "helpers", "download")),
        ("stream", ctypes.c_void_p),
        ("event", ctypes.c_void_p * BUFFERS),
        *((name, ctypes.c_void_p) for name in ("send", "record", "query", "drain")),
        *((name, ctypes.c_long) for name in ("next", "limit", "is_over")),
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
    array: np.ndarray,
    address: int,
    region: np.ndarray,
    threads: int,
    stream: int,
    events: Sequence[int],
    driver: Mapping[str, int],
    is_download: bool,
) -> int:
    """Copy an array; 0, or the driver's first error.

    A download is complete then. Of an upload all is in the region, and the last slices may be on
    their way. After an error nothing is.

    Parameters
    ----------
    array : numpy.ndarray
        Contiguous, or a matrix of which the rows are.
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
    """
    nbytes, host = array.nbytes, array.__array_interface__["data"][0]
    row = pitch = nbytes
    if not array.flags.c_contiguous:
        row, pitch = array.shape[1] * array.itemsize, array.strides[0]
    # Each slice costs its calls, and the last one the time to send it: both together are least.
    size = min(max(math.isqrt(nbytes * _IN_CALLS), _LEAST_SLICE), _SLICE, region.nbytes)
    chunk, lead = -(-size // _CHUNKS // _CHUNK) * _CHUNK, 0
    if is_download and nbytes >= _LARGE and row == nbytes and region.nbytes >= 2 * _HUGE_PAGE:
        # Two threads that touch the same new page for the first time both clear it.
        chunk, lead = _HUGE_PAGE, host % _HUGE_PAGE
        size = max(size, chunk)
    size -= size % chunk
    job = _Job(
        *(host, region.__array_interface__["data"][0], address),
        *(row, pitch, lead, nbytes + lead, size, chunk),
        buffers=max(min(region.nbytes // size, BUFFERS), 1),
        helpers=min(threads - 1, nbytes // _SHARE, _HELPERS),
        download=is_download,
        stream=stream,
        event=(ctypes.c_void_p * BUFFERS)(*events),
        **driver,
    )
    found = library()
    assert found is not None
    return found(ctypes.byref(job))
