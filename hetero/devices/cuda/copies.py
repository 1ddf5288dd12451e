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
    here = 0, 0, _HOST, _address(array), 0, 0, pitch  # CUDA_MEMCPY2D: two sides, width and height
    there = 0, 0, _DEVICE, 0, address, 0, nbytes
    sides = here + there if direction == UPLOAD else there + here
    words = (ctypes.c_uint64 * 16)(*sides, nbytes, number)
    driver.call("cuMemcpy2DAsync_v2", words, stream)


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
