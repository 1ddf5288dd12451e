"""The CUDA driver's own functions: memory, events, the order of streams, and what PyCUDA lacks.

Contexts and launches go by PyCUDA's names instead (`hetero.devices.cuda.chosen`), since PyCUDA has
to know which context is current.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Iterator
from ctypes import byref
from typing import Any

from hetero.arrays.device_array import DeviceArray
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.imports import load

PYCUDA = "pycuda.driver"  # the module
LEGACY = 0  # the default stream of the current context, where our work goes
TIMED, UNTIMED = 0, 2  # events; who waits for one stays awake, since waking takes 75 us
_OUT_OF_MEMORY = 2  # CUDA_ERROR_OUT_OF_MEMORY
_HOST, _MEMORY_TYPE = 1, 2  # CU_MEMORYTYPE_HOST, CU_POINTER_ATTRIBUTE_MEMORY_TYPE


def array_type(package: Any) -> Any:
    """What arrays on devices are made of, ``type(shape, dtype, allocator=allocate)``."""
    return load("pycuda.gpuarray").GPUArray if package.__name__ == PYCUDA else DeviceArray


class DriverError(DeviceError):
    """A function of the driver failed with a status."""

    def __init__(self, text: str, status: int = 0) -> None:
        super().__init__(text)
        self.status = status


@functools.cache
def libcuda() -> Any:
    """The CUDA driver's library."""
    return ctypes.CDLL("libcuda.so.1")


def error_text(status: int) -> str:
    """What the CUDA driver says of an error's number."""
    text = ctypes.c_char_p()
    libcuda().cuGetErrorString(status, byref(text))
    return f"{(text.value or b'unknown').decode()} (error {status})"


@functools.cache
def _function(name: str, count: int) -> Any:
    made = libcuda()[name]
    made.argtypes = (ctypes.c_void_p,) * count  # which takes numbers, addresses and arrays
    return made


def status_of(function: str, *arguments: Any) -> int:
    """The status of a call of the driver, which takes all as 64 bits."""
    return _function(function, len(arguments))(*arguments)


def error_of(function: str, status: int) -> DeviceError:
    """The error of a call that failed."""
    text = f"{function} failed: {error_text(status)}"
    if status == _OUT_OF_MEMORY:
        return DeviceMemoryError(f"out of device memory: {text}")
    return DriverError(text, status)


def call(function: str, *arguments: Any) -> None:
    """Call a function of the driver; its status as an error where it failed."""
    if status := status_of(function, *arguments):
        raise error_of(function, status)


def given(function: str, *arguments: Any) -> int:
    """The number or the handle that a function writes to where its first argument points."""
    value = ctypes.c_uint64()
    call(function, byref(value), *arguments)
    return value.value


def text(function: str, device: int) -> str:
    """What a function says of a device."""
    buffer = ctypes.create_string_buffer(256)
    call(function, buffer, len(buffer), device)
    return buffer.value.decode()


def current_context() -> int | None:
    """The handle of the context that is current in this thread, None without one."""
    handle = ctypes.c_void_p()
    libcuda().cuCtxGetCurrent(byref(handle))
    return handle.value


def free_memory() -> int:
    """Bytes of the current context's device that nobody has."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    call("cuMemGetInfo_v2", byref(free), byref(total))
    return free.value


def is_pinned(address: int) -> bool:
    """Whether the driver says that an address of the host is pinned, whoever did it."""
    kind = ctypes.c_uint()
    return not status_of("cuPointerGetAttribute", byref(kind), _MEMORY_TYPE, address) and (
        kind.value == _HOST
    )


def order(first: int, then: int) -> None:
    """Let a stream go on only after what another one holds now; both are the driver's handles."""
    context = ctypes.c_uint64()
    if first != LEGACY:  # a library's current stream may be another device's
        call("cuStreamGetCtx", first, byref(context))
    with pushed(context.value) if context.value else contextlib.nullcontext():
        event = given("cuEventCreate", UNTIMED)
    try:
        call("cuEventRecord", event, first)
        call("cuStreamWaitEvent", then, event, 0)
    finally:  # the driver keeps it until the wait is over
        status_of("cuEventDestroy_v2", event)


@contextlib.contextmanager
def pushed(context: int) -> Iterator[None]:
    """A context made current for a block, unseen by PyCUDA."""
    call("cuCtxPushCurrent_v2", context)
    try:
        yield
    finally:
        pop()


def pop() -> None:
    """Leave the context that is current in this thread."""
    twice("cuCtxPopCurrent_v2", byref(ctypes.c_void_p()))


@contextlib.contextmanager
def primary(device: int) -> Iterator[None]:
    """The primary context of a device, by the driver's number, made current where there is one;
    DeviceError where there is none."""
    flags, is_active = ctypes.c_uint(), ctypes.c_int()
    call("cuDevicePrimaryCtxGetState", device, byref(flags), byref(is_active))
    if not is_active.value:
        raise DeviceError("the device has no primary context")
    context = given("cuDevicePrimaryCtxRetain", device)
    try:
        with pushed(context):
            yield
    finally:
        twice("cuDevicePrimaryCtxRelease_v2", device)


def twice(function: str, *arguments: Any) -> None:
    """Call what gives something back again if it fails: nobody else would."""
    if status_of(function, *arguments):
        status_of(function, *arguments)
