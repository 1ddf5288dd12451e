"""Calls of the CUDA driver that PyCUDA does not make, by the driver's library."""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from typing import Any

from hetero.arrays.device_array import DeviceArray
from hetero.errors import DeviceError
from hetero.imports import load

PYCUDA = "pycuda.driver"  # the module
LEGACY = 0  # the default stream of the current context, where our work goes
_NO_TIMING = 2  # the driver's CU_EVENT_DISABLE_TIMING


def array_type(package: Any) -> Any:
    """What arrays on devices are made of, ``type(shape, dtype, allocator=allocate)``."""
    return load("pycuda.gpuarray").GPUArray if package.__name__ == PYCUDA else DeviceArray


@functools.cache
def libcuda() -> Any:
    """The CUDA driver's library."""
    return ctypes.CDLL("libcuda.so.1")


def error_text(status: int) -> str:
    """What the CUDA driver says of an error's number."""
    text = ctypes.c_char_p()
    libcuda().cuGetErrorString(status, ctypes.byref(text))
    return f"{(text.value or b'unknown').decode()} (error {status})"


def current_context() -> int | None:
    """The handle of the context that is current in this thread, None without one."""
    handle = ctypes.c_void_p()
    libcuda().cuCtxGetCurrent(ctypes.byref(handle))
    return handle.value


def pop_context() -> None:
    """Leave the context that is current in this thread."""
    libcuda().cuCtxPopCurrent_v2(ctypes.byref(ctypes.c_void_p()))


def release_primary_context(ordinal: int) -> None:
    """Give a device's primary context back once."""
    device = ctypes.c_int()
    libcuda().cuDeviceGet(ctypes.byref(device), ordinal)
    libcuda().cuDevicePrimaryCtxRelease_v2(device)


def order(first: int, then: int) -> None:
    """Let a stream go on only after what another one holds now; both are the driver's handles."""
    event = ctypes.c_void_p()
    with _context_of(first):
        call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING))
    try:
        call("cuEventRecord", event, ctypes.c_void_p(first))
        call("cuStreamWaitEvent", ctypes.c_void_p(then), event, ctypes.c_uint(0))
    finally:  # the driver keeps it until the wait is over
        libcuda().cuEventDestroy_v2(event)


@contextlib.contextmanager
def _context_of(stream: int) -> Iterator[None]:
    """The context of a stream made current: a library's current stream may be another device's."""
    here, there = ctypes.c_void_p(), ctypes.c_void_p()
    if stream != LEGACY:
        call("cuCtxGetCurrent", ctypes.byref(here))
        call("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(there))
    if here.value == there.value:
        yield
        return
    call("cuCtxPushCurrent_v2", there)
    try:
        yield
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(there))


def call(function: str, *arguments: Any) -> None:
    """Call a function of the driver; its status as an error where it failed."""
    status = getattr(libcuda(), function)(*arguments)
    if status:
        raise DeviceError(f"{function} failed: {error_text(status)}")
