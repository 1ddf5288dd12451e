"""The CUDA driver: which package calls it, the devices it finds, calls that PyCUDA does not make.

PyCUDA is taken wherever it is installed; it is built from source, with a compiler and the CUDA
toolkit. Without it `bindings` is used, NVIDIA's ``cuda-bindings`` by the same names, which needs
wheels alone. The choice holds for the process.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import warnings
from collections.abc import Iterator
from importlib.metadata import version
from typing import Any, NamedTuple

from hetero.arrays.pycuda import DeviceArray
from hetero.errors import DeviceError
from hetero.imports import INSTALL, load

PYCUDA, BINDINGS = CHOICES = ("pycuda", "bindings")
LEGACY = 0  # the default stream of the current context, where our work goes
_NO_TIMING = 2  # the driver's CU_EVENT_DISABLE_TIMING


class Chosen(NamedTuple):
    """What calls the driver.

    Attributes
    ----------
    driver : module
        ``pycuda.driver``, or `bindings`, which has the same names.
    name : str
        With its version, such as "PyCUDA 2026.1".
    refused : str or None
        Why PyCUDA, which is installed, cannot be used.
    """

    driver: Any
    name: str
    refused: str | None = None


@functools.cache
def chosen() -> Chosen:
    """What calls the driver in this process; HETERO_DRIVER, "pycuda" or "bindings", forces one.

    Raises
    ------
    ValueError
        If HETERO_DRIVER is something else.
    ImportError, OSError
        If neither package, or no driver, is here.
    """
    wish, refused = os.environ.get("HETERO_DRIVER"), None
    if wish and wish not in CHOICES:
        raise ValueError(f"HETERO_DRIVER must be one of {', '.join(CHOICES)}, got {wish!r}")
    if wish != BINDINGS:
        try:
            with warnings.catch_warnings():  # it warns before it raises
                warnings.simplefilter("ignore")
                return Chosen(load("pycuda.driver"), f"PyCUDA {version('pycuda')}")
        except Exception as error:
            if wish:
                raise
            missing = isinstance(error, ModuleNotFoundError) and error.name == "pycuda"
            refused = None if missing else str(error)
    libcuda()  # OSError without one; the bindings would say so at their first call
    driver = load("hetero.devices.cuda.bindings")
    return Chosen(driver, f"cuda-bindings {version('cuda-bindings')}", refused)


def array_type() -> Any:
    """What arrays on devices are made of, ``type(shape, dtype, allocator=allocate)``."""
    if chosen().driver.__name__ == "pycuda.driver":
        return load("pycuda.gpuarray").GPUArray
    return DeviceArray


def find() -> tuple[list[Any], list[str]]:
    """The CUDA devices here, and a sentence for each thing that is missing."""
    try:
        api, name, refused = chosen()
    except ValueError as error:
        return [], [f"cuda: {error}"]
    except ModuleNotFoundError as error:
        return [], [f"cuda: cuda-bindings is not installed; {INSTALL['cuda']} ({error})"]
    except Exception as error:
        return [], [f"cuda: there is no NVIDIA driver; for an NVIDIA GPU install it ({error})"]
    try:
        api.init()
        count = api.Device.count()
    except api.Error as error:
        return [], [f"cuda: the driver finds no device ({error})"]
    if not count:
        return [], ["cuda: the driver finds no device"]
    missing = [f"cuda: PyCUDA does not load; {name} is used ({refused})"] if refused else []
    if load("hetero.devices.cuda.compiler").version() is None:
        missing.append(f"cuda: neither NVRTC nor nvcc to compile kernels with; {INSTALL['cuda']}")
    try:
        load("nvmath.bindings.cublas")
    except Exception:
        missing.append(f"cuda: nvmath-python or cuBLAS for method='library'; {INSTALL['library']}")
    device = load("hetero.devices.cuda.device")
    found: list[Any] = []
    for ordinal in range(count):
        try:
            found.append(device.CudaDevice(ordinal))
        except api.Error as error:
            missing.append(f"cuda:{ordinal}: the driver does not describe it ({error})")
    return found, missing


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
        _call("cuEventCreate", ctypes.byref(event), ctypes.c_uint(_NO_TIMING))
    try:
        _call("cuEventRecord", event, ctypes.c_void_p(first))
        _call("cuStreamWaitEvent", ctypes.c_void_p(then), event, ctypes.c_uint(0))
    finally:  # the driver keeps it until the wait is over
        libcuda().cuEventDestroy_v2(event)


@contextlib.contextmanager
def _context_of(stream: int) -> Iterator[None]:
    """The context of a stream made current: a library's current stream may be another device's."""
    here, there = ctypes.c_void_p(), ctypes.c_void_p()
    if stream != LEGACY:
        _call("cuCtxGetCurrent", ctypes.byref(here))
        _call("cuStreamGetCtx", ctypes.c_void_p(stream), ctypes.byref(there))
    if here.value == there.value:
        yield
        return
    _call("cuCtxPushCurrent_v2", there)
    try:
        yield
    finally:
        _call("cuCtxPopCurrent_v2", ctypes.byref(there))


def _call(function: str, *arguments: Any) -> None:
    status = getattr(libcuda(), function)(*arguments)
    if status:
        raise DeviceError(f"{function} failed: {error_text(status)}")
