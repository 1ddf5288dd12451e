"""The libraries of arrays: one table, with the few functions that hetero asks of each.

Any library with the CUDA array interface is taken, and any with DLPack:
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

import ctypes
import functools
import logging
import struct
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays.operand import UNKNOWN_STREAM, Operand, dense
from hetero.imports import load

INTERFACE = "__cuda_array_interface__"
_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL; PyCUDA has no call for it
log = logging.getLogger("hetero")


class Access(NamedTuple):
    """How a remembered call reads and makes arrays, without a look at their interface."""

    # (A, B, out or None): all that a plan depends on, hashable
    facts: Callable[..., tuple[Any, ...]]
    address: Callable[[Any], int]
    # Whether an array may be read this way; None: every one may.
    usable: Callable[[Any], bool] | None
    # (device): what gives a new array there, by shape, dtype and an array like it
    maker: Callable[[Any], Callable[[tuple[int, ...], Any, Any], Any]]
    # Whether the legacy default stream orders work on the library's current stream.
    ordered: Callable[[], bool]
    # Handle of the thread's current context, None or 0 if there is none; None: no such function.
    context: Callable[[], int | None] | None


def layouts(A: Any, B: Any, out: Any) -> tuple[Any, ...]:
    """Shape, strides and dtype of arrays that have these as NumPy's do."""
    if out is None:
        return A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype
    return (
        *(A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype),
        *(out.shape, out.strides, out.dtype),
    )


def _each(facts: Callable[[Any], tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The facts of all arrays from those of one."""
    return lambda A, B, out: (facts(A), facts(B), out is not None and facts(out))


# -- What the CUDA driver says of an address


@functools.cache
def _pointer_attribute() -> Any:
    """The driver's function, or one that fails. Opening the library takes 10 us each time."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return lambda *asked: -1


def _ordinal(array: Any, pointer: int) -> int:
    """Which CUDA device an array lies on; the interface itself does not report that."""
    memory, device = getattr(array, "gpudata", None), getattr(array, "device", None)
    # Of memory of our own pool; of CuPy, torch, and those that follow them.
    for owner, name in ((memory, "ordinal"), (device, "id"), (device, "index")):
        if isinstance(known := getattr(owner, name, None), int):
            return known
    asked = ctypes.c_int()
    status = _pointer_attribute()(ctypes.byref(asked), _ORDINAL, ctypes.c_uint64(pointer))
    return 0 if status else max(asked.value, 0)


# -- The libraries ---------------------------------------------------------------------------------


class Library:
    """What hetero asks of one library's arrays; as it is, of any with the CUDA array interface."""

    name = "other"
    modules: tuple[str, ...] = ()  # top-level ones that define its array types
    attribute = INTERFACE  # that its array types have
    pickles = False  # whether its arrays can be pickled
    on_devices = False  # whether all of its arrays lie on devices

    def defines(self, kind: type) -> bool:
        """Whether a type, or what it inherits from, is this library's own."""
        return any(base.__module__.partition(".")[0] in self.modules for base in kind.__mro__)

    def on_device(self, array: Any) -> bool:
        """Whether an array lies on a device: the type may have the interface, and only its arrays
        on devices a value for it."""
        return self.on_devices or hasattr(array, INTERFACE)

    def describe(self, array: Any) -> Operand:
        """The operand of a device array; TypeError where it has no usable description."""
        try:
            interface = array.__cuda_array_interface__
        except AttributeError as error:
            raise TypeError(f"an operand has no __cuda_array_interface__: {error}") from None
        try:
            shape, typestr = tuple(interface["shape"]), interface["typestr"]
            pointer, readonly = interface["data"]
        except (KeyError, TypeError, ValueError) as error:
            raise TypeError(
                f"__cuda_array_interface__ must have shape, typestr, data: {error!r}"
            ) from None
        if interface.get("mask") is not None:
            raise TypeError("a device array with a mask is not supported")
        is_record = typestr[1] == "V" and "descr" in interface
        dtype = np.dtype(interface["descr"] if is_record else typestr)
        strides, pointer = interface.get("strides"), int(pointer or 0)
        strides = dense(shape, dtype).strides if strides is None else tuple(strides)
        location, stream = f"cuda:{_ordinal(array, pointer)}", interface.get("stream")
        return Operand(shape, strides, dtype, location, pointer, bool(readonly), stream)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """A new C-contiguous array on the device of ``like``; None where the library makes none."""
        return None

    def access(self, kind: type, several: bool) -> Access | None:
        """How remembered calls use arrays of a type, where there are ``several`` CUDA devices or
        not; None where their calls go the general way."""
        return None


class _Cupy(Library):
    name, modules, pickles, on_devices = "cupy", ("cupy",), True, True

    def empty(self, like: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        with like.device:
            return load("cupy").empty(shape, dtype)

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "ndarray":
            return None
        cupy = load("cupy")
        empty, current = cupy.empty, cupy.cuda.get_current_stream
        facts = _each(lambda x: (x.shape, x.strides, x.dtype, x.data.device_id))
        return Access(
            facts if several else layouts,
            lambda array: array.data.ptr,
            None,
            lambda device: lambda shape, dtype, like: empty(shape, dtype),
            lambda: current().ptr <= 2,
            getattr(cupy.cuda.driver, "ctxGetCurrent", None),
        )


class _Torch(Library):
    name, modules, pickles = "torch", ("torch",), True

    def on_device(self, array: Any) -> bool:
        return bool(getattr(array, "is_cuda", True))

    def describe(self, array: Any) -> Operand:
        found = super().describe(array)
        if found.stream is not None:
            return found
        torch = load("torch")  # which exports version 2 of the interface, without a stream
        stream = int(torch.cuda.current_stream(array.device).cuda_stream)
        return found._replace(stream=stream or None)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        torch = load("torch")
        return torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "Tensor":
            return None
        torch = load("torch")
        stream, strided = torch.cuda.current_stream, torch.strided
        return Access(
            _each(lambda array: (array.shape, array.stride(), array.dtype, array.get_device())),
            lambda array: array.data_ptr(),
            lambda array: (
                array.is_cuda
                and array.layout is strided
                and not (array.requires_grad or array.is_neg())
            ),
            lambda device: lambda shape, dtype, like: like.new_empty(shape),
            lambda: not stream().cuda_stream,  # of the current device
            None,
        )


class _Pool(Library):
    """Arrays of PyCUDA's, and those that hetero makes itself."""

    on_devices = True

    def __init__(self, name: str, kind: str) -> None:
        self.name, self.modules, self.pickles = name, (name,), name == "pycuda"
        self._kind = kind

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != self._kind:
            return None

        def usable(array: Any) -> bool:  # not every pointer of PyCUDA knows its device
            return array.gpudata is not None and hasattr(array.gpudata, "ordinal")

        def maker(device: Any) -> Any:
            allocate = device.state().pool.allocate
            return lambda shape, dtype, like: kind(shape, dtype, allocator=allocate)

        facts = _each(lambda x: (x.shape, x.strides, x.dtype, x.gpudata.ordinal))
        return Access(
            facts if several else layouts,
            lambda array: int(array.gpudata),
            usable if several else None,
            maker,
            lambda: True,
            None,
        )


class _Numba(Library):
    name, modules = "numba", ("numba", "numba_cuda")

    def empty(self, like: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        return load("numba.cuda").device_array(shape, dtype)


class _OpenCL(Library):
    name, modules, attribute, on_devices = "pyopencl", ("pyopencl",), "with_queue", True

    def describe(self, array: Any) -> Operand:
        """An operand's pointer is the buffer."""
        name = _names.get(array.context.int_ptr)
        if name is None:
            raise TypeError(
                "an array of PyOpenCL's must be one that hetero made, or lie in its context; bring "
                "others to the host with get()"
            )
        if array.offset:
            raise TypeError(
                "an array of PyOpenCL's must begin where its buffer does: give a copy()"
            )
        return Operand(array.shape, array.strides, array.dtype, name, array.base_data)


# -- DLPack

_CUDA, _CUDA_MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged
_STREAM = 1  # CUDA's legacy default stream, where our work goes
_VERSION = (1, 0)  # of the capsules that are asked for; older ones are taken too
_READONLY, _COPIED = 1, 2  # flags of such a capsule
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLDataTypeCode
# DLTensor: data, device's type and number, ndim, code, bits and lanes, shape, strides, byte offset
_TENSOR = struct.Struct("PiiiBBHPPQ")
# What is before it in a DLManagedTensorVersioned: versions, manager, deleter, flags; an older
# DLManagedTensor begins with it.
_VERSIONED = struct.Struct("IIPPQ")
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


class _Dlpack(Library):
    """Any library with DLPack alone. The array's capsule is read and left to its owner; the memory
    stays the array's own. Its library is asked to let CUDA's default stream wait for the work on
    it. DLPack does not report the stream that uses it next, so the host waits for what a call
    queued. https://dmlc.github.io/dlpack/latest/
    """

    name, attribute = "dlpack", "__dlpack_device__"

    def on_device(self, array: Any) -> bool:
        return array.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED)

    def describe(self, array: Any) -> Operand:
        if not self.on_device(array):
            place = tuple(map(int, array.__dlpack_device__()))
            raise TypeError(f"DLPack arrays must lie on a CUDA device, got device {place}")
        capsule, readonly = _capsule(array), False
        if _is_valid(capsule, b"dltensor_versioned"):
            at = _pointer(capsule, b"dltensor_versioned")
            major, _, _, _, flags = _read(_VERSIONED, at)
            if major > _VERSION[0]:
                raise TypeError(f"DLPack must be of version 1 or older, got {major}")
            if flags & _COPIED:
                raise TypeError(f"{type(array).__name__} exports a copy, not its memory")
            readonly, at = bool(flags & _READONLY), at + _VERSIONED.size
        else:
            at = _pointer(capsule, b"dltensor")
        data, _, number, ndim, code, bits, lanes, extents, steps, offset = _read(_TENSOR, at)
        kind = _KINDS.get(code)
        if kind is None or lanes != 1 or bits % 8:
            raise TypeError(
                "DLPack arrays must be of integers, floats, complex numbers or booleans, got type "
                f"code {code} with {bits} bits and {lanes} lanes"
            )
        dtype, numbers = np.dtype(f"{kind}{bits // 8}"), struct.Struct(f"{ndim}q")
        shape = _read(numbers, extents)
        strides = dense(shape, dtype).strides
        if steps:
            strides = tuple(n * dtype.itemsize for n in _read(numbers, steps))
        location, pointer = f"cuda:{number}", data + offset
        return Operand(shape, strides, dtype, location, pointer, readonly, UNKNOWN_STREAM)

    def empty(self, like: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        """Of the caller's library where it follows the array API standard."""
        if not hasattr(like, "__array_namespace__"):
            return None
        xp = like.__array_namespace__()
        return xp.empty(shape, dtype=getattr(xp, dtype.name), device=like.device)


def _read(what: struct.Struct, address: int) -> tuple[int, ...]:
    return what.unpack(ctypes.string_at(address, what.size))


def _capsule(array: Any) -> Any:
    """The array's capsule; it holds the memory's owner no longer than it lives itself."""
    order = {"stream": _STREAM}
    try:
        try:
            return array.__dlpack__(**order, max_version=_VERSION, copy=False)
        except TypeError:  # an exporter from before version 1
            return array.__dlpack__(**order)
    except BufferError as error:
        raise TypeError(f"{type(array).__name__} cannot be exported by DLPack: {error}") from error


CUPY, TORCH, NUMBA, OPENCL = _Cupy(), _Torch(), _Numba(), _OpenCL()
PYCUDA, OWN = _Pool("pycuda", "GPUArray"), _Pool("hetero", "DeviceArray")
OTHER, DLPACK = Library(), _Dlpack()
LIBRARIES = (CUPY, TORCH, PYCUDA, OWN, NUMBA, OPENCL)


_names: dict[int, str | None] = {}  # of OpenCL devices, by their contexts


def set_name(context: Any, name: str | None) -> None:
    """Tell the device that a context of PyOpenCL's belongs to; None: no longer any."""
    _names[context.int_ptr] = name


@functools.lru_cache(maxsize=1024)
def _of_type(kind: type) -> Library | None:
    # The type is asked: an instance would build its whole interface to answer.
    for library in LIBRARIES:
        if library.defines(kind) and hasattr(kind, library.attribute):
            return library
    return next((library for library in (OTHER, DLPACK) if hasattr(kind, library.attribute)), None)


def library_of(array: Any) -> Library | None:
    """The library of a device array; None for NumPy's arrays, and for what is no array."""
    kind = type(array)
    if issubclass(kind, np.ndarray):
        return None
    found = _of_type(kind)
    if found is None and hasattr(array, INTERFACE):  # of this array, not of its type
        return next((library for library in LIBRARIES if library.defines(kind)), OTHER)
    return found


def cupy() -> Any:
    """The module, None where it is not installed or does not load here."""
    return sys.modules["cupy"] if "cupy" in sys.modules else _imported()


@functools.cache
def _imported() -> Any:
    try:
        return load("cupy")
    except Exception as error:  # of a CUDA that is not here, say
        log.debug("CuPy is not used: %s", error)
        return None


def release(device: Any) -> bool:
    """Have CuPy free the device memory that it caches, among it results that stayed; True if there
    was some."""
    cupy = sys.modules.get("cupy")
    if device.kind != "cuda" or cupy is None:
        return False
    with cupy.cuda.Device(device.ordinal):
        pool = cupy.get_default_memory_pool()
        kept = pool.free_bytes()
        pool.free_all_blocks()
    return kept > 0
