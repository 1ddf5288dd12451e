"""Copies of pinned arrays: in parts, and of matrices whose rows lie apart.

Of those the bus takes row after row, the host nothing.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import numpy as np

from hetero.devices.cuda import pinned
from hetero.errors import DeviceError
from hetero.host.copying.copy_jobs import UPLOAD, pieces

_HOST, _DEVICE = 1, 2  # CU_MEMORYTYPE_HOST, CU_MEMORYTYPE_DEVICE
_LEAST = 256  # bytes of a row; the bus is slow with less
_SENT = 64 << 20  # bytes that are copied at once: both directions then share the bus better


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


def rows(array: np.ndarray) -> tuple[int, int, int] | None:
    """(number, bytes, pitch) of the rows of a matrix; None where that is not what it is.

    Parameters
    ----------
    array : numpy.ndarray
        Axes of length 1 may come first.
    """
    if array.ndim < 2 or array.size != array.shape[-1] * array.shape[-2]:
        return None
    number, length = array.shape[-2:]
    nbytes, pitch = length * array.itemsize, array.strides[-2]
    if array.strides[-1] != array.itemsize or pitch < nbytes or nbytes < _LEAST:
        return None
    return number, nbytes, pitch


def parts(array: np.ndarray) -> Iterator[tuple[np.ndarray, int]]:
    """What an array is copied in, one after the other, and the packed bytes before each."""
    if array.nbytes <= _SENT:
        yield array, 0
        return
    count, piece = pieces(array, _SENT)
    for number in range(count):
        yield piece(number)


def send(direction: str, array: np.ndarray, address: int, stream: int) -> None:
    """Begin to copy a matrix to packed device memory, or from there, in the order of a stream.

    Parameters
    ----------
    direction : {"upload", "download"}
    array : numpy.ndarray
        Pinned, of which `rows` knows the rows.
    address : int
        On the device.
    stream : int
        The driver's handle.

    Raises
    ------
    DeviceError
        If the driver refuses.
    """
    found = rows(array)
    assert found is not None
    number, nbytes, pitch = found
    host = array.__array_interface__["data"][0]
    there = {"Device": address, "MemoryType": _DEVICE, "Pitch": nbytes}
    here = {"Host": host, "MemoryType": _HOST, "Pitch": pitch}
    source, target = (here, there) if direction == UPLOAD else (there, here)
    told = {f"src{k}": v for k, v in source.items()} | {f"dst{k}": v for k, v in target.items()}
    copy = _Copy(WidthInBytes=nbytes, Height=number, **told)
    status = pinned.driver().cuMemcpy2DAsync_v2(ctypes.byref(copy), ctypes.c_void_p(stream))
    if status:
        raise DeviceError(f"a pinned {direction} failed: {pinned.error_text(status)}")
