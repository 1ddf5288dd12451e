"""The names of ``pycuda.driver`` that hetero uses, on NVIDIA's ``cuda.bindings.driver``.

They take the same arguments, raise errors of one type, and keep to PyCUDA's rules of contexts: each
thread has a stack of those that were pushed here, and what another library makes current is left
alone. Streams and modules last as long as their context.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.devices.cuda import driver
from hetero.imports import load

_api = load("cuda.bindings.driver")
# CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END, and the most bytes of arguments of a launch
# that every driver takes.
_BUFFER, _SIZE, _END, _MOST_ARGUMENTS = 1, 2, 0, 4096


class Error(Exception):
    """A call of the driver failed."""


def _error(function: Callable[..., Any], status: int) -> Error:
    return Error(f"{function.__name__} failed: {driver.error_text(int(status))}")


def _call(function: Callable[..., Any], *arguments: Any) -> Any:
    """What a call of the driver gives; its status as an error where it failed."""
    status, *values = function(*arguments)
    if status:
        raise _error(function, status)
    return values[0] if len(values) == 1 else values


# -- Devices and contexts


def _names(values: Any, prefix: str) -> SimpleNamespace:
    """An enumeration by PyCUDA's names, which lack the driver's prefix."""
    return SimpleNamespace(**{n.removeprefix(prefix): v for n, v in values.__members__.items()})


device_attribute = _names(_api.CUdevice_attribute, "CU_DEVICE_ATTRIBUTE_")
function_attribute = _names(_api.CUfunction_attribute, "CU_FUNC_ATTRIBUTE_")


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
    _call(_api.cuInit, flags)


class Device:
    """A device, by its number."""

    def __init__(self, ordinal: int) -> None:
        self._raw = _call(_api.cuDeviceGet, ordinal)

    @staticmethod
    def count() -> int:
        return _call(_api.cuDeviceGetCount)

    def get_attribute(self, attribute: Any) -> int:
        return _call(_api.cuDeviceGetAttribute, attribute, self._raw)

    def retain_primary_context(self) -> Context:
        return Context(_call(_api.cuDevicePrimaryCtxRetain, self._raw))


class Context:
    """The primary context of a device.

    Attributes
    ----------
    handle : int
        The driver's.
    is_alive : bool
        Until it is detached.
    """

    def __init__(self, raw: Any) -> None:
        self.handle, self.is_alive, self._raw = int(raw), True, raw

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def push(self) -> None:
        if not self.is_alive:
            raise Error("a context that was detached cannot be pushed")
        _call(_api.cuCtxPushCurrent, self._raw)
        _thread.contexts.append(self)

    def detach(self) -> None:
        """Give it up; the driver goes on counting who retained it."""
        self.is_alive = False

    @staticmethod
    def pop() -> None:
        if not _thread.contexts:
            raise Error("no context is current that could be popped")
        _call(_api.cuCtxPopCurrent)
        _thread.contexts.pop()

    @staticmethod
    def get_current() -> Context | None:
        stack = _thread.contexts
        while stack and not stack[-1].is_alive:  # another thread detached it
            if driver.current_context() == stack.pop().handle:
                driver.pop()
        return stack[-1] if stack else None


# -- Memory


class PointerHolderBase:
    """What has an address on the device."""


def _buffer(array: np.ndarray) -> np.ndarray:
    """An array without axes as one element: the driver would take its value for an address."""
    return array if array.ndim else array.reshape(1)


def memcpy_htod(target: int, source: np.ndarray) -> None:
    """Copy an array to a device, and wait."""
    _call(_api.cuMemcpyHtoD, target, _buffer(source), source.nbytes)


def memcpy_dtoh(target: np.ndarray, source: int) -> None:
    """Copy from a device into an array, and wait."""
    _call(_api.cuMemcpyDtoH, _buffer(target), source, target.nbytes)


# -- Streams and kernels


class Stream:
    """A queue of the device's work, which lasts as long as its context."""

    def __init__(self, flags: int = 0) -> None:
        self.handle = int(_call(_api.cuStreamCreate, flags))


class Module:
    """Machine code that is loaded, as long as its context lasts."""

    def __init__(self, code: bytes) -> None:
        self._raw = _call(_api.cuModuleLoadData, code)

    def get_function(self, name: str) -> Function:
        return Function(_call(_api.cuModuleGetFunction, self._raw, name.encode()))

    def get_global(self, name: str) -> tuple[int, int]:
        """The address of a variable, and its bytes."""
        address, nbytes = _call(_api.cuModuleGetGlobal, self._raw, name.encode())
        return int(address), nbytes


module_from_buffer = Module  # from compiled code


class Function:
    """A kernel."""

    def __init__(self, raw: Any) -> None:
        self._raw = raw

    def set_attribute(self, attribute: Any, value: int) -> None:
        _call(_api.cuFuncSetAttribute, self._raw, attribute, value)

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
            raise _error(_api.cuLaunchKernel, status)
