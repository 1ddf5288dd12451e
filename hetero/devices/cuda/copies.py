"""Copies between the host and a CUDA device: pinned arrays, of which the rows may lie apart, and
slices of ordinary ones by compiled loops.

Of a pinned matrix the bus takes row after row, the host nothing.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from hetero.devices.cuda import driver
from hetero.errors import DeviceError
from hetero.host.copying import slices
from hetero.host.copying.copy_jobs import DOWNLOAD, UPLOAD, pieces, rows

_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_LEAST = 256  # bytes of a row; the bus is slow with less
_PART = 64 << 20  # bytes that are copied at once: both directions then share the bus better
_SEND = {UPLOAD: "cuMemcpyHtoDAsync_v2", DOWNLOAD: "cuMemcpyDtoHAsync_v2"}


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
    there = {"Device": address, "MemoryType": _DEVICE, "Pitch": nbytes}
    here = {"Host": _address(array), "MemoryType": _HOST, "Pitch": pitch}
    source, target = (here, there) if direction == UPLOAD else (there, here)
    extents = {f"src{k}": v for k, v in source.items()} | {f"dst{k}": v for k, v in target.items()}
    copy = _Copy(WidthInBytes=nbytes, Height=number, **extents)
    driver.call("cuMemcpy2DAsync_v2", ctypes.byref(copy), stream)


def _address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def start(direction: str, array: np.ndarray, address: int, stream: int) -> None:
    """Let a stream copy a pinned array, contiguous or one that `can_take`."""
    for part, begin in pieces(array, _PART):
        if not part.flags.c_contiguous:
            copy_rows(direction, part, address + begin, stream)
            continue
        there, here = address + begin, _address(part)
        ends = (there, here) if direction == UPLOAD else (here, there)
        driver.call(_SEND[direction], *ends, part.nbytes, stream)


class SliceCopies:
    """Compiled code (`hetero.host.copying.slices`) that copies one way, in a stream's order, with
    ``events`` for its buffers (`hetero.devices.cuda.context.Lent`)."""

    def __init__(self, direction: str, stream: Any, events: list[Any]) -> None:
        self._direction, self._kept = direction, events
        functions = {"send": _SEND[direction], "record": "cuEventRecord", "query": "cuEventQuery"}
        self._driver = {"stream": stream.handle, "event": tuple(event.handle for event in events)}
        for name, function in functions.items():
            called = getattr(driver.libcuda(), function)
            self._driver[name] = ctypes.cast(called, ctypes.c_void_p).value

    def copy(self, array: np.ndarray, address: int, region: np.ndarray, threads: int) -> bool:
        """Copy an array as `slices.copy` does; whether it consists of `rows`."""
        layout, down = rows(array), self._direction == DOWNLOAD
        if layout is None:
            return False
        there = _address(array), address
        if status := slices.copy(*there, layout, region, threads, down, **self._driver):
            text = f"a staged {self._direction} failed: {driver.error_text(status)}"
            raise DeviceError(text)
        return True
