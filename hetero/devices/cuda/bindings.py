"""The names of ``pycuda.driver`` that hetero uses, without PyCUDA: launches and copies by NVIDIA's
``cuda.bindings.driver``, which are faster so, all else by the driver's own functions (`driver`).

They take the same arguments and keep to PyCUDA's rules of contexts: each thread has a stack of
those that were pushed here, and what another library makes current is left alone. Streams and
modules last as long as their context.
"""

from __future__ import annotations

import ctypes
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.devices.cuda import driver
from hetero.errors import DeviceError
from hetero.imports import load

Error = DeviceError  # of a call that failed
# CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END, and the most bytes of arguments of a launch
# that every driver takes.
_BUFFER, _SIZE, _END, _MOST_ARGUMENTS = 1, 2, 0, 4096
_api = load("cuda.bindings.driver")
function_attribute = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=8)


# -- Devices and contexts


class _Thread(threading.local):
    """What a thread has for itself: its stack of contexts, and where it lays a launch's arguments.

    The driver copies them before a launch returns.
    """

    def __init__(self) -> None:
        self.contexts: list[Context] = []
        area, self.size = ctypes.create_string_buffer(_MOST_ARGUMENTS), ctypes.c_size_t()
        self.arguments = memoryview(area).cast("B")
        ends = ctypes.addressof(area), _SIZE, ctypes.addressof(self.size), _END
        self._extra = (ctypes.c_void_p * 5)(_BUFFER, *ends)
        self.extra = ctypes.addressof(self._extra)


_thread = _Thread()


def init(flags: int = 0) -> None:
    """Begin to use the driver."""
    driver.call("cuInit", flags)


class Device:
    """A device, by its number."""

    def __init__(self, ordinal: int) -> None:
        self._number = driver.given("cuDeviceGet", ordinal)

    @staticmethod
    def count() -> int:
        return driver.given("cuDeviceGetCount")

    def retain_primary_context(self) -> Context:
        return Context(driver.given("cuDevicePrimaryCtxRetain", self._number))


class Context:
    """The primary context of a device.

    Attributes
    ----------
    handle : int
        The driver's.
    is_alive : bool
        Until it is detached.
    """

    def __init__(self, handle: int) -> None:
        self.handle, self.is_alive = handle, True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def push(self) -> None:
        if not self.is_alive:
            raise Error("a context that was detached cannot be pushed")
        driver.call("cuCtxPushCurrent_v2", self.handle)
        _thread.contexts.append(self)

    def detach(self) -> None:
        """Give it up; the driver goes on counting who retained it."""
        self.is_alive = False

    @staticmethod
    def pop() -> None:
        if not _thread.contexts:
            raise Error("no context is current that could be popped")
        driver.given("cuCtxPopCurrent_v2")
        _thread.contexts.pop()

    @staticmethod
    def get_current() -> Context | None:
        stack = _thread.contexts
        while stack and not stack[-1].is_alive:  # another thread detached it
            if driver.current_context() == stack.pop().handle:
                driver.pop()
        return stack[-1] if stack else None


class PointerHolderBase:
    """What has an address on the device."""


def _checked(given: tuple[Any], function: str) -> None:
    if given[0]:
        raise driver.error_of(function, int(given[0]))


def _buffer(array: np.ndarray) -> np.ndarray:
    """An array without axes as one element: the driver would take its value for an address."""
    return array if array.ndim else array.reshape(1)


def memcpy_htod(target: int, source: np.ndarray) -> None:
    """Copy an array to a device, and wait."""
    _checked(_api.cuMemcpyHtoD(target, _buffer(source), source.nbytes), "cuMemcpyHtoD")


def memcpy_dtoh(target: np.ndarray, source: int) -> None:
    """Copy from a device into an array, and wait."""
    _checked(_api.cuMemcpyDtoH(_buffer(target), source, target.nbytes), "cuMemcpyDtoH")


# -- Streams and kernels


class Stream:
    """A queue of the device's work, which lasts as long as its context."""

    def __init__(self, flags: int = 0) -> None:
        self.handle = driver.given("cuStreamCreate", flags)


class Module:
    """Machine code that is loaded, as long as its context lasts."""

    def __init__(self, code: bytes) -> None:
        self._handle = driver.given("cuModuleLoadData", code)

    def get_function(self, name: str) -> Function:
        return Function(driver.given("cuModuleGetFunction", self._handle, name.encode()))

    def get_global(self, name: str) -> tuple[int, int]:
        """The address of a variable, and its bytes."""
        nbytes = ctypes.c_size_t()
        rest = ctypes.byref(nbytes), self._handle, name.encode()
        return driver.given("cuModuleGetGlobal_v2", *rest), nbytes.value


module_from_buffer = Module  # from compiled code


class Function:
    """A kernel."""

    def __init__(self, handle: int) -> None:
        self._handle, self._raw = handle, _api.CUfunction(handle)

    def set_attribute(self, attribute: int, value: int) -> None:
        driver.call("cuFuncSetAttribute", self._handle, attribute, value)

    def _launch_kernel(
        self,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        arguments: bytes,
        shared_bytes: int,
        stream: Stream | None,
    ) -> None:
        here, nbytes = _thread, len(arguments)
        here.arguments[:nbytes] = arguments
        here.size.value = nbytes
        queue = driver.LEGACY if stream is None else stream.handle
        (status,) = _api.cuLaunchKernel(
            self._raw, *grid, *block, shared_bytes, queue, 0, here.extra
        )
        if status:
            raise driver.error_of("cuLaunchKernel", int(status))
