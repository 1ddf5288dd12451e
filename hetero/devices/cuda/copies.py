"""Copies between the host and a CUDA device: pinned arrays, of which the rows may lie apart, and
slices of ordinary ones by compiled loops.

Of a pinned matrix the bus takes row after row, the host nothing.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from hetero.devices.cuda.context import Lent, State
from hetero.devices.cuda.driver import call, error_text, libcuda
from hetero.devices.cuda.pinned import sleeping_event
from hetero.errors import DeviceError
from hetero.host.copying import slices
from hetero.host.copying.copy_jobs import DOWNLOAD, UPLOAD, pieces, rows

_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_LEAST = 256  # bytes of a row; the bus is slow with less
_PART = 64 << 20  # bytes that are copied at once: both directions then share the bus better


class _Copy(ctypes.Structure):
    """CUDA_MEMCPY2D."""

    _fields_ = [
        *((f"src{name}", ctypes.c_size_t) for name in ("X", "Y")),
        ("srcMemoryType", ctypes.c_uint),
        *((f"src{name}", ctypes.c_void_p) for name in ("Host", "Device", "Array")),
        ("srcPitch", ctypes.c_size_t),
        *((f"dst{name}", ctypes.c_size_t) for name in ("X", "Y")),
        ("dstMemoryType", ctypes.c_uint),
        *((f"dst{name}", ctypes.c_void_p) for name in ("Host", "Device", "Array")),
        ("dstPitch", ctypes.c_size_t),
        ("WidthInBytes", ctypes.c_size_t),
        ("Height", ctypes.c_size_t),
    ]


def can_take(array: np.ndarray) -> bool:
    """Whether the bus takes the rows of an array that is not contiguous."""
    found = rows(array)
    return found is not None and found[2] >= found[1] >= _LEAST


def copy_rows(direction: str, array: np.ndarray, address: int, stream: int) -> None:
    """Begin to copy a pinned matrix that `can_take` to an address of packed device memory, or from
    there, in the order of a stream, which is the driver's handle."""
    found = rows(array)
    assert found is not None
    number, nbytes, pitch = found
    host = array.__array_interface__["data"][0]
    there = {"Device": address, "MemoryType": _DEVICE, "Pitch": nbytes}
    here = {"Host": host, "MemoryType": _HOST, "Pitch": pitch}
    source, target = (here, there) if direction == UPLOAD else (there, here)
    extents = {f"src{k}": v for k, v in source.items()} | {f"dst{k}": v for k, v in target.items()}
    copy = _Copy(WidthInBytes=nbytes, Height=number, **extents)
    call("cuMemcpy2DAsync_v2", ctypes.byref(copy), ctypes.c_void_p(stream))


def enqueue(
    device: Any, direction: str, array: np.ndarray, address: int, stream: Any, awake: bool
) -> Any:
    """Let a stream copy; the event of its end, see `Device.enqueue`."""
    driver = device.driver
    # One event for all parts: the bus rests for 10 us where a stream comes past one.
    for part, begin in pieces(array, _PART):
        if not part.flags.c_contiguous:
            copy_rows(direction, part, address + begin, stream.handle)
        elif direction == UPLOAD:
            driver.memcpy_htod_async(address + begin, part, stream.raw)
        else:
            driver.memcpy_dtoh_async(part, address + begin, stream.raw)
    if awake:
        return device.record(stream)
    asleep = driver.event_flags.DISABLE_TIMING | driver.event_flags.BLOCKING_SYNC
    event = Lent(device.state().copied, lambda: driver.Event(asleep))
    event.raw.record(stream.raw)
    return event


class SliceCopies:
    """Compiled code (`hetero.host.copying.slices`) that copies for a context.

    Parameters
    ----------
    state : State
        The context's.
    """

    def __init__(self, state: State) -> None:
        self._kept = state.handles_of_events
        self._events: list[int] = []
        for _ in range(slices.BUFFERS):
            try:
                self._events.append(self._kept.pop())
            except IndexError:
                self._events.append(sleeping_event())

    def copy(
        self,
        direction: str,
        array: np.ndarray,
        layout: tuple[int, int, int],
        address: int,
        region: np.ndarray,
        threads: int,
        stream: Any,
    ) -> None:
        """Copy an array as `slices.copy` does; ``layout`` is that of `rows`."""
        host, down = array.__array_interface__["data"][0], direction == DOWNLOAD
        driver = {"stream": stream.handle, "event": tuple(self._events), **_functions(direction)}
        if status := slices.copy(host, address, layout, region, threads, down, **driver):
            raise DeviceError(f"a staged {direction} failed: {error_text(status)}")

    def __del__(self) -> None:
        self._kept += self._events


@functools.cache
def _functions(direction: str) -> dict[str, int]:
    """Addresses of the driver's functions, for `hetero.host.copying.slices.copy`."""
    names = {
        "send": "cuMemcpyHtoDAsync_v2" if direction == UPLOAD else "cuMemcpyDtoHAsync_v2",
        "record": "cuEventRecord",
        "query": "cuEventQuery",
    }
    library = libcuda()
    return {
        name: ctypes.cast(getattr(library, function), ctypes.c_void_p).value or 0
        for name, function in names.items()
    }
