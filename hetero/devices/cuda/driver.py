"""The CUDA driver: its own functions, by ctypes, and the names of ``pycuda.driver`` that hetero
uses, and an array type, for where PyCUDA is not installed.

Contexts, launches and copies that wait go by PyCUDA's names (`hetero.devices.cuda.chosen`), since
PyCUDA has to know which context is current. Those here take the same arguments and keep to PyCUDA's
rules of contexts: each thread has a stack of those that were pushed here, and what another library
makes current is left alone. Streams and modules last as long as their context. Launches and copies
are by NVIDIA's ``cuda.bindings.driver``, which is faster than ctypes.
"""

from __future__ import annotations

import contextlib
import copy
import ctypes
import dataclasses
import functools
import math
import threading
from collections.abc import Callable, Iterator
from ctypes import byref
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.arrays.operand import dense
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.imports import load

PYCUDA = "pycuda.driver"  # the module
LEGACY = 0  # the default stream of the current context, where our work goes
TIMED, UNTIMED = 0, 2  # events; who waits for one stays awake, since waking takes 75 us
# CU_LAUNCH_PARAM_BUFFER_POINTER, _BUFFER_SIZE and _END, and the most bytes of arguments of a launch
# that every driver takes.
_BUFFER, _SIZE, _END, _MOST_ARGUMENTS = 1, 2, 0, 4096
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


# -- The names of PyCUDA ---------------------------------------------------------------------------

Error = DeviceError  # of a call that failed
function_attribute = SimpleNamespace(MAX_DYNAMIC_SHARED_SIZE_BYTES=8)


@functools.cache
def _bindings() -> Any:
    return load("cuda.bindings.driver")


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


class Device:
    """A device, by its number."""

    def __init__(self, ordinal: int) -> None:
        self._number = given("cuDeviceGet", ordinal)

    def retain_primary_context(self) -> Context:
        return Context(given("cuDevicePrimaryCtxRetain", self._number))


@dataclasses.dataclass(unsafe_hash=True)
class Context:
    """The primary context of a device.

    Attributes
    ----------
    handle : int
        The driver's.
    is_alive : bool
        Until it is detached.
    """

    handle: int
    is_alive: bool = dataclasses.field(default=True, compare=False)

    def push(self) -> None:
        if not self.is_alive:
            raise Error("a context that was detached cannot be pushed")
        call("cuCtxPushCurrent_v2", self.handle)
        _thread.contexts.append(self)

    def detach(self) -> None:
        """Give it up; the driver goes on counting who retained it."""
        self.is_alive = False

    @staticmethod
    def pop() -> None:
        if not _thread.contexts:
            raise Error("no context is current that could be popped")
        given("cuCtxPopCurrent_v2")
        _thread.contexts.pop()

    @staticmethod
    def get_current() -> Context | None:
        stack = _thread.contexts
        while stack and not stack[-1].is_alive:  # another thread detached it
            if current_context() == stack.pop().handle:
                pop()
        return stack[-1] if stack else None


def _checked(given: tuple[Any], function: str) -> None:
    if given[0]:
        raise error_of(function, int(given[0]))


def _buffer(array: np.ndarray) -> np.ndarray:
    """An array without axes as one element: the driver would take its value for an address."""
    return array if array.ndim else array.reshape(1)


def memcpy_htod(target: int, source: np.ndarray) -> None:
    """Copy an array to a device, and wait."""
    _checked(_bindings().cuMemcpyHtoD(target, _buffer(source), source.nbytes), "cuMemcpyHtoD")


def memcpy_dtoh(target: np.ndarray, source: int) -> None:
    """Copy from a device into an array, and wait."""
    _checked(_bindings().cuMemcpyDtoH(_buffer(target), source, target.nbytes), "cuMemcpyDtoH")


class Stream:
    """A queue of the device's work, which lasts as long as its context."""

    def __init__(self, flags: int = 0) -> None:
        self.handle = given("cuStreamCreate", flags)


class Module:
    """Machine code that is loaded, as long as its context lasts."""

    def __init__(self, code: bytes) -> None:
        self._handle = given("cuModuleLoadData", code)

    def get_function(self, name: str) -> Function:
        return Function(given("cuModuleGetFunction", self._handle, name.encode()))

    def get_global(self, name: str) -> tuple[int, int]:
        """The address of a variable, and its bytes."""
        nbytes = ctypes.c_size_t()
        rest = ctypes.byref(nbytes), self._handle, name.encode()
        return given("cuModuleGetGlobal_v2", *rest), nbytes.value


module_from_buffer = Module  # from compiled code


class Function:
    """A kernel."""

    def __init__(self, handle: int) -> None:
        self._handle, self._launch = handle, _bindings().cuLaunchKernel
        self._raw = _bindings().CUfunction(handle)

    def set_attribute(self, attribute: int, value: int) -> None:
        call("cuFuncSetAttribute", self._handle, attribute, value)

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
        queue = LEGACY if stream is None else stream.handle
        (status,) = self._launch(self._raw, *grid, *block, shared_bytes, queue, 0, here.extra)
        if status:
            raise error_of("cuLaunchKernel", int(status))


# -- Arrays ----------------------------------------------------------------------------------------


class DeviceArray:
    """An array on a CUDA device, which hetero makes where PyCUDA is not installed.

    It holds memory and describes it: hetero's functions take it, `hetero.to_host` brings it to the
    host, and libraries with the CUDA array interface wrap it (``cupy.asarray``,
    ``torch.as_tensor``). Integers, slices and ``T`` give views of it; it has no arithmetic.

    Attributes
    ----------
    shape, dtype, strides, ndim, size, nbytes
        As NumPy's.
    gpudata : object or None
        Its memory; None where it has no elements.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        allocator: Callable[[int], Any],
        order: str = "C",
    ) -> None:
        self.dtype = np.dtype(dtype)
        self._lay_out(tuple(shape), dense(tuple(shape), self.dtype, order=order).strides)
        self.gpudata = allocator(self.nbytes) if self.size else None

    def _lay_out(self, shape: tuple[int, ...], strides: tuple[int, ...]) -> None:
        self.shape, self.strides = shape, strides
        self.ndim, self.size = len(shape), math.prod(shape)
        self.nbytes = self.size * self.dtype.itemsize

    def __getitem__(self, index: Any) -> DeviceArray:
        parts = index if isinstance(index, tuple) else (index,)
        for part in parts:
            if not (part is None or part is ... or isinstance(part, int | np.integer | slice)):
                raise TypeError(f"indices must be integers or slices, got {part!r}")
        whole = () if any(part is ... for part in parts) else (...,)  # a view, also of one element
        # NumPy computes the view of an array that stands for this one, and reads neither.
        proxy = np.lib.stride_tricks.as_strided(np.empty(1, self.dtype), self.shape, self.strides)
        view, made = proxy[(*parts, *whole)], copy.copy(self)
        begin, first = (a.__array_interface__["data"][0] for a in (proxy, view))
        made._lay_out(view.shape, view.strides)
        made.gpudata = _Part(self.gpudata, first - begin) if view.size else None
        return made

    @property
    def T(self) -> DeviceArray:  # as NumPy's
        """The view with the axes in the other order."""
        made = copy.copy(self)
        made._lay_out(self.shape[::-1], self.strides[::-1])
        return made

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "data": (int(self.gpudata or 0), False),
            "strides": self.strides,
            "stream": 1,  # CUDA's legacy default stream, where hetero's work goes
            "version": 3,
        }

    def __array__(self, *asked: Any, **how: Any) -> np.ndarray:
        raise TypeError("this array lies on a CUDA device; hetero.to_host(x) gives it as NumPy's")

    def __repr__(self) -> str:
        return f"<DeviceArray of shape {self.shape}, {self.dtype}, on a CUDA device>"


class _Part:
    """Memory from some byte of other memory on."""

    def __init__(self, whole: Any, offset: int) -> None:
        self._whole, self._address, self.ordinal = whole, int(whole) + offset, whole.ordinal

    def __int__(self) -> int:
        return self._address
