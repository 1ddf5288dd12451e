"""The names of ``pycuda.driver`` that hetero uses, on NVIDIA's ``cuda.bindings.driver``.

They take the same arguments, raise the same errors, and keep to PyCUDA's rules of contexts: each
thread has a stack of those that were pushed here, and what another library makes current is left
alone. What belongs to a context goes back to the driver when it is dropped, in any thread; once
the context is detached, no call is made for it.
"""

from __future__ import annotations

import ctypes
import logging
import sys
import threading
import weakref
from collections.abc import Callable
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.devices.cuda import driver
from hetero.imports import load

_api = load("cuda.bindings.driver")
# Until version 13 the driver's function for new contexts has one parameter less.
_NEW_CONTEXT = () if int(version("cuda-bindings").partition(".")[0]) < 13 else (None,)
# CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END, and the most bytes of arguments of a launch
# that every driver takes.
_BUFFER, _SIZE, _END, _MOST_ARGUMENTS = 1, 2, 0, 4096
_NOT_READY = 600  # CUDA_ERROR_NOT_READY, of an event that has not come
log = logging.getLogger("hetero")


class Error(Exception):
    """A call of the driver failed: for want of memory, as it must, in a kernel, or by chance."""


MemoryError, LogicError, LaunchError, RuntimeError = (
    type(name, (Error,), {"__module__": __name__})
    for name in ("MemoryError", "LogicError", "LaunchError", "RuntimeError")
)
_KINDS = {
    2: MemoryError,  # out of memory
    **dict.fromkeys((100, 209, 214, 301, _NOT_READY), RuntimeError),  # no device, code, file; ECC
    **dict.fromkeys((701, 702, 703, 719), LaunchError),  # out of resources, timeout, failed
    999: Error,  # unknown
}


def _error(function: Callable[..., Any], status: int) -> Error:
    kind = _KINDS.get(int(status), LogicError)
    return kind(f"{function.__name__} failed: {driver.error_text(int(status))}")


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
event_flags = _names(_api.CUevent_flags, "CU_EVENT_")


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


def get_driver_version() -> int:
    """Of CUDA, that the driver supports: 13000 for 13.0."""
    return _call(_api.cuDriverGetVersion)


class Device:
    """A device, by its number."""

    def __init__(self, ordinal: int) -> None:
        self._raw = _call(_api.cuDeviceGet, ordinal)

    @staticmethod
    def count() -> int:
        return _call(_api.cuDeviceGetCount)

    def name(self) -> str:
        return _text(_call(_api.cuDeviceGetName, 256, self._raw))

    def pci_bus_id(self) -> str:
        return _text(_call(_api.cuDeviceGetPCIBusId, 32, self._raw))

    def total_memory(self) -> int:
        return _call(_api.cuDeviceTotalMem, self._raw)

    def get_attribute(self, attribute: Any) -> int:
        return _call(_api.cuDeviceGetAttribute, attribute, self._raw)

    def compute_capability(self) -> tuple[int, int]:
        names = "COMPUTE_CAPABILITY_MAJOR", "COMPUTE_CAPABILITY_MINOR"
        major, minor = (self.get_attribute(getattr(device_attribute, name)) for name in names)
        return major, minor

    def can_access_peer(self, peer: Device) -> bool:
        return bool(_call(_api.cuDeviceCanAccessPeer, self._raw, peer._raw))

    def retain_primary_context(self) -> Context:
        return Context(self, _call(_api.cuDevicePrimaryCtxRetain, self._raw), True)

    def make_context(self, flags: int = 0) -> Context:
        """A context of the caller's own, which is current from now on."""
        made = Context(self, _call(_api.cuCtxCreate, *_NEW_CONTEXT, flags, self._raw), False)
        _thread.contexts.append(made)
        return made


def _text(name: bytes) -> str:
    return name.partition(b"\0")[0].decode()


class Context:
    """A context of a device.

    Attributes
    ----------
    handle : int
        The driver's.
    is_alive : bool
        Until it is detached.
    """

    def __init__(self, device: Device, raw: Any, is_primary: bool) -> None:
        self.handle, self.is_alive = int(raw), True
        self._device, self._raw, self._is_primary = device, raw, is_primary

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Context) and self.handle == other.handle

    def __hash__(self) -> int:
        return hash(self.handle)

    def push(self) -> None:
        if not self.is_alive:
            raise LogicError("a context that was detached cannot be pushed")
        _call(_api.cuCtxPushCurrent, self._raw)
        _thread.contexts.append(self)

    def detach(self) -> None:
        """Give it up. The primary one is the driver's, which goes on counting who retained it."""
        self.is_alive = False
        if not self._is_primary:
            _call(_api.cuCtxDestroy, self._raw)  # it leaves the stack where it is current

    @staticmethod
    def pop() -> None:
        if not _thread.contexts:
            raise LogicError("no context is current that could be popped")
        _call(_api.cuCtxPopCurrent)
        _thread.contexts.pop()

    @staticmethod
    def get_current() -> Context | None:
        stack = _thread.contexts
        while stack and not stack[-1].is_alive:  # another thread detached it
            if driver.current_context() == stack.pop().handle:
                driver.pop_context()
        return stack[-1] if stack else None

    @staticmethod
    def get_device() -> Device:
        current = Context.get_current()
        if current is None:
            raise LogicError("no context is current")
        return current._device

    @staticmethod
    def synchronize() -> None:
        _call(_api.cuCtxSynchronize)

    @staticmethod
    def enable_peer_access(peer: Context, flags: int = 0) -> None:
        _call(_api.cuCtxEnablePeerAccess, peer._raw, flags)


def _give_back(context: Context | None, end: Callable[[Any], Any], thing: Any) -> None:
    """Have the driver end what a context holds. Nobody could do anything about a failure."""
    if sys.is_finalizing() or context is None or not context.is_alive:
        return
    is_elsewhere = Context.get_current() is not context
    try:
        if is_elsewhere:
            context.push()
        try:
            _call(end, thing)
        finally:
            if is_elsewhere:
                Context.pop()
    except Error as error:
        log.debug("a clean-up failed: %s", error)


class _Owned:
    """What belongs to the context that it was made in, until it is dropped.

    An array of NumPy's tells when, because the collector of cycles ends objects of Python's, and
    their weak references, while they can still come back: a stream does by the
    `hetero.devices.cuda.context.Lent` of the same cycle, which puts it in a list.
    """

    _make: Callable[..., Any]
    _end: Callable[[Any], Any]

    def __init__(self, *given: Any) -> None:
        self.handle, self._life = int(_call(self._make, *given)), np.empty(0)
        self.free = _when_dropped(self._life, self._end, self.handle)


def _when_dropped(holder: Any, end: Callable[[Any], Any], handle: int) -> Callable[[], Any]:
    """Give something back to the present context once nobody holds ``holder``, or when called."""
    end = weakref.finalize(holder, _give_back, Context.get_current(), end, handle)
    end.atexit = False
    return end


# -- Memory


class PointerHolderBase:
    """What has an address on the device."""


class DeviceAllocation(_Owned):
    """Memory of a device."""

    _make, _end = staticmethod(_api.cuMemAlloc), staticmethod(_api.cuMemFree)

    def __int__(self) -> int:
        return self.handle

    __index__ = __int__


def mem_get_info() -> tuple[int, int]:
    """Bytes of the device's memory that are free, and all of them."""
    return tuple(_call(_api.cuMemGetInfo))


mem_alloc = DeviceAllocation  # by a number of bytes


def pagelocked_empty(nbytes: int, dtype: Any) -> np.ndarray:
    """Host memory that is pinned in the current context."""
    address = _call(_api.cuMemHostAlloc, nbytes, 0)
    owner = (ctypes.c_char * nbytes).from_address(address)
    _when_dropped(owner, _api.cuMemFreeHost, address)
    return np.frombuffer(owner, dtype)


def memset_d8_async(target: int, value: int, nbytes: int, stream: Stream | None = None) -> None:
    """Set bytes, in the order of a stream."""
    _call(_api.cuMemsetD8Async, target, value, nbytes, _queue(stream))


def _buffer(array: np.ndarray) -> np.ndarray:
    """An array without axes as one element: the driver would take its value for an address."""
    return array if array.ndim else array.reshape(1)


def memcpy_htod(target: int, source: np.ndarray) -> None:
    """Copy an array to a device, and wait."""
    _call(_api.cuMemcpyHtoD, target, _buffer(source), source.nbytes)


def memcpy_dtoh(target: np.ndarray, source: int) -> None:
    """Copy from a device into an array, and wait."""
    _call(_api.cuMemcpyDtoH, _buffer(target), source, target.nbytes)


def memcpy_htod_async(target: int, source: np.ndarray, stream: Stream | None = None) -> None:
    """Copy an array to a device, in the order of a stream."""
    _call(_api.cuMemcpyHtoDAsync, target, _buffer(source), source.nbytes, _queue(stream))


def memcpy_dtoh_async(target: np.ndarray, source: int, stream: Stream | None = None) -> None:
    """Copy from a device into an array, in the order of a stream."""
    _call(_api.cuMemcpyDtoHAsync, _buffer(target), source, target.nbytes, _queue(stream))


def memcpy_dtod_async(target: int, source: int, nbytes: int, stream: Stream | None = None) -> None:
    """Copy within a device, in the order of a stream."""
    _call(_api.cuMemcpyDtoDAsync, target, source, nbytes, _queue(stream))


# -- Streams, events, kernels


class Stream(_Owned):
    """A queue of the device's work."""

    _make, _end = staticmethod(_api.cuStreamCreate), staticmethod(_api.cuStreamDestroy)

    def __init__(self, flags: int = 0) -> None:
        super().__init__(flags)

    def synchronize(self) -> None:
        _call(_api.cuStreamSynchronize, self.handle)

    def wait_for_event(self, event: Event) -> None:
        _call(_api.cuStreamWaitEvent, self.handle, event.handle, 0)


def _queue(stream: Stream | None) -> int:
    return driver.LEGACY if stream is None else stream.handle


class Event(_Owned):
    """A mark in a queue of work."""

    _make, _end = staticmethod(_api.cuEventCreate), staticmethod(_api.cuEventDestroy)

    def __init__(self, flags: int = 0) -> None:
        super().__init__(flags)

    def record(self, stream: Stream | None = None) -> None:
        _call(_api.cuEventRecord, self.handle, _queue(stream))

    def synchronize(self) -> None:
        _call(_api.cuEventSynchronize, self.handle)

    def query(self) -> bool:
        (status,) = _api.cuEventQuery(self.handle)
        if status and int(status) != _NOT_READY:
            raise _error(_api.cuEventQuery, status)
        return not status

    def time_since(self, start: Event) -> float:
        """Milliseconds."""
        return _call(_api.cuEventElapsedTime, start.handle, self.handle)


class Module(_Owned):
    """Machine code that is loaded."""

    _make, _end = staticmethod(_api.cuModuleLoadData), staticmethod(_api.cuModuleUnload)

    def get_function(self, name: str) -> Function:
        return Function(self, _call(_api.cuModuleGetFunction, self.handle, name.encode()))

    def get_global(self, name: str) -> tuple[int, int]:
        """The address of a variable, and its bytes."""
        address, nbytes = _call(_api.cuModuleGetGlobal, self.handle, name.encode())
        return int(address), nbytes


module_from_buffer = Module  # from compiled code


class Function:
    """A kernel, which keeps its module loaded."""

    def __init__(self, module: Module, raw: Any) -> None:
        self._module, self._raw = module, raw

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
        (status,) = _api.cuLaunchKernel(
            self._raw, *grid, *block, shared_bytes, _queue(stream), 0, here.extra
        )
        if status:
            raise _error(_api.cuLaunchKernel, status)
