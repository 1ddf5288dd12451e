"""Copies between the host and a CUDA device: pinned arrays, of which the rows may lie apart, and
slices of ordinary ones by compiled loops.

Of a pinned matrix the bus takes row after row, the host nothing.
"""

from __future__ import annotations

import ctypes
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

    _side: Any = (
        *((name, ctypes.c_size_t) for name in ("X", "Y")),
        ("MemoryType", ctypes.c_uint),
        *((name, ctypes.c_void_p) for name in ("Host", "Device", "Array")),
        ("Pitch", ctypes.c_size_t),
    )
    _fields_ = [
        *((f"src{name}", kind) for name, kind in _side),
        *((f"dst{name}", kind) for name, kind in _side),
        *((name, ctypes.c_size_t) for name in ("WidthInBytes", "Height")),
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
    """Compiled code (`hetero.host.copying.slices`) that copies one way, in a stream's order."""

    def __init__(self, state: State, direction: str, stream: Any) -> None:
        self._direction, self._kept = direction, state.handles_of_events
        self._events: list[int] = []
        for _ in range(slices.BUFFERS):
            try:
                self._events.append(self._kept.pop())
            except IndexError:
                self._events.append(sleeping_event())
        send = "cuMemcpyHtoDAsync_v2" if direction == UPLOAD else "cuMemcpyDtoHAsync_v2"
        functions = {"send": send, "record": "cuEventRecord", "query": "cuEventQuery"}
        self._driver = {"stream": stream.handle, "event": tuple(self._events)}
        for name, function in functions.items():
            self._driver[name] = ctypes.cast(getattr(libcuda(), function), ctypes.c_void_p).value

    def copy(self, array: np.ndarray, address: int, region: np.ndarray, threads: int) -> bool:
        """Copy an array as `slices.copy` does; whether it consists of `rows`."""
        layout, down = rows(array), self._direction == DOWNLOAD
        if layout is None:
            return False
        host = array.__array_interface__["data"][0]
        if status := slices.copy(host, address, layout, region, threads, down, **self._driver):
            raise DeviceError(f"a staged {self._direction} failed: {error_text(status)}")
        return True

    def __del__(self) -> None:
        self._kept += self._events
