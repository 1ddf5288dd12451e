"""What hetero asks of a library of arrays, and the adapters of those that are known.

Any library with the CUDA array interface is taken:
https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

import abc
import ctypes
import functools
import logging
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays.operand import Operand, dense
from hetero.imports import load

NewArray = Callable[[tuple[int, ...], np.dtype], tuple[Any, int]]


class Access(NamedTuple):
    """How a remembered call reads and makes arrays, without a look at their interface.

    Attributes
    ----------
    facts : callable
        ``facts(A, B, out)``: all that a plan depends on, hashable; out may be None.
    address : callable
        Of an array, a number.
    usable : callable or None
        Whether an array may be read this way; None: every one may.
    maker : callable
        ``maker(device)(shape, dtype, like)`` gives a new array on the device of ``like``.
    ordered : callable
        Whether work on the library's current stream is ordered by the legacy default stream.
    context : callable or None
        Handle of the context that is current in this thread, None or 0 if there is none; None
        where the library has no function for it.
    """

    facts: Callable[..., tuple[Any, ...]]
    address: Callable[[Any], int]
    usable: Callable[[Any], bool] | None
    maker: Callable[[Any], Callable[[tuple[int, ...], Any, Any], Any]]
    ordered: Callable[[], bool]
    context: Callable[[], int | None] | None


class Library(abc.ABC):
    """Everything that hetero asks of one library's arrays.

    Attributes
    ----------
    modules : frozenset of str
        Top-level modules that define the library's array types.
    pickles : bool
        Whether its arrays can be pickled.
    """

    modules: frozenset[str] = frozenset()
    pickles: bool = False

    def defines(self, kind: type) -> bool:
        """Whether a type, or what it inherits from, is this library's own."""
        return any(base.__module__.partition(".")[0] in self.modules for base in kind.__mro__)

    def recognises(self, kind: type) -> bool:
        """Whether arrays of a type are this library's."""
        return self.defines(kind)

    def on_device(self, array: Any) -> bool:
        """Whether an array of this library lies on a device."""
        return True

    @abc.abstractmethod
    def describe(self, array: Any) -> Operand:
        """The operand; TypeError where the array has no usable description."""

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        """A new C-contiguous array on the device of ``like``, and its address.

        ``new_array(shape, dtype)`` gives a PyCUDA array on the same device, for libraries that
        cannot make one.
        """
        return new_array(shape, dtype)

    def access(self, kind: type, several: bool) -> Access | None:
        """How remembered calls use arrays of a type; None where their calls go the general way.

        Parameters
        ----------
        kind : type
        several : bool
            Whether there are several CUDA devices, so that the facts must name the array's.
        """
        return None


def layouts(A: Any, B: Any, out: Any) -> tuple[Any, ...]:
    """Shape, strides and dtype of arrays that have these as NumPy's do."""
    if out is None:
        return A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype
    return (
        *(A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype),
        *(out.shape, out.strides, out.dtype),
    )


def each(facts: Callable[[Any], tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The facts of all arrays from those of one."""
    return lambda A, B, out: (facts(A), facts(B), out is not None and facts(out))


_DEVICE_ORDINAL = 9  # CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL; PyCUDA has no call for it
INTERFACE = "__cuda_array_interface__"


class Interface(Library):
    """Arrays of any library that have ``__cuda_array_interface__``."""

    def recognises(self, kind: type) -> bool:
        # The type is asked: an instance would build its whole interface to answer.
        return hasattr(kind, INTERFACE) and (not self.modules or self.defines(kind))

    def on_device(self, array: Any) -> bool:
        # A type may have the property, and only its arrays on devices a value for it.
        return hasattr(array, INTERFACE)

    def describe(self, array: Any) -> Operand:
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
        strides = interface.get("strides")
        if strides is None:
            strides = dense(shape, dtype).strides
        pointer = int(pointer or 0)
        return Operand(
            shape,
            tuple(strides),
            dtype,
            f"cuda:{self.ordinal(array, pointer) or 0}",
            pointer,
            bool(readonly),
            self.stream(array, interface),
        )

    def ordinal(self, array: Any, pointer: int) -> int | None:
        """Which CUDA device an array lies on; the interface itself does not report that."""
        device = getattr(array, "device", None)
        for attribute in ("id", "index"):  # CuPy, torch, and those that follow them
            ordinal = getattr(device, attribute, None)
            if isinstance(ordinal, int):
                return ordinal
        return ordinal_of_address(pointer)

    def stream(self, array: Any, interface: dict[str, Any]) -> int | None:
        """The stream to synchronise with before the data is read."""
        return interface.get("stream")


@functools.cache
def _pointer_attribute() -> Any:
    """The driver's function, None without a driver. Opening the library takes 10 us each time."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuPointerGetAttribute
    except (OSError, AttributeError):
        return None


def ordinal_of_address(pointer: int) -> int | None:
    """What the driver says; None without a driver, or for an address that it does not know."""
    ask = _pointer_attribute() if pointer else None
    if ask is None:
        return None
    ordinal = ctypes.c_int(-1)
    status = ask(ctypes.byref(ordinal), _DEVICE_ORDINAL, ctypes.c_uint64(pointer))
    return ordinal.value if status == 0 and ordinal.value >= 0 else None


class Numba(Interface):
    """Numba's device arrays."""

    modules = frozenset({"numba", "numba_cuda"})

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        cuda = load("numba.cuda")
        made = cuda.device_array(shape, dtype)
        return made, self.describe(made).pointer


log = logging.getLogger("hetero")


def _cupy() -> Any:
    """The module, None where it is not installed or does not load here."""
    return sys.modules["cupy"] if "cupy" in sys.modules else _imported()


@functools.cache
def _imported() -> Any:
    try:
        return load("cupy")
    except Exception as error:  # of a CUDA that is not here, say
        log.debug("CuPy is not used: %s", error)
        return None


class Cupy(Interface):
    """CuPy's arrays."""

    modules = frozenset({"cupy"})
    pickles = True

    def on_device(self, array: Any) -> bool:
        return True

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        cupy = load("cupy")
        with like.device:
            made = cupy.empty(shape, dtype)
        return made, made.data.ptr

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "ndarray":
            return None
        cupy = load("cupy")
        empty, current = cupy.empty, cupy.cuda.get_current_stream

        def facts(array: Any) -> tuple[Any, ...]:
            return array.shape, array.strides, array.dtype, array.data.device_id

        return Access(
            each(facts) if several else layouts,
            lambda array: array.data.ptr,
            None,
            lambda device: lambda shape, dtype, like: empty(shape, dtype),
            lambda: current().ptr <= 2,
            getattr(cupy.cuda.driver, "ctxGetCurrent", None),
        )


def maker_for(kind: str) -> Callable[[Any, tuple[int, ...], np.dtype], Any] | None:
    """``make(device, shape, dtype)`` of the library that results on a kind of device belong to,
    which is CuPy on CUDA; None where the device's own library is to make them."""
    cupy = _cupy() if kind == "cuda" else None
    if cupy is None:
        return None

    def make(device: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
        with cupy.cuda.Device(device.ordinal):
            return cupy.empty(shape, dtype)

    return make


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


class Torch(Interface):
    """PyTorch's tensors, on the host or on a CUDA device."""

    modules = frozenset({"torch"})
    pickles = True

    def on_device(self, array: Any) -> bool:
        return bool(getattr(array, "is_cuda", True))

    def stream(self, array: Any, interface: dict[str, Any]) -> int | None:
        stream = interface.get("stream")
        if stream is not None:
            return stream
        torch = load("torch")  # which exports version 2 of the interface, without a stream
        return int(torch.cuda.current_stream(array.device).cuda_stream) or None

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        torch = load("torch")
        made = torch.empty(shape, dtype=getattr(torch, dtype.name), device=like.device)
        return made, made.data_ptr()

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "Tensor":
            return None
        torch = load("torch")
        stream, strided = torch.cuda.current_stream, torch.strided
        return Access(
            each(lambda array: (array.shape, array.stride(), array.dtype, array.get_device())),
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


_names: dict[int, str] = {}


def set_name(context: Any, name: str | None) -> None:
    """Tell the device that a context belongs to; None: no longer any."""
    if name is None:
        _names.pop(context.int_ptr, None)
    else:
        _names[context.int_ptr] = name


class OpenCL(Library):
    """PyOpenCL's arrays; an operand's pointer is the buffer."""

    modules = frozenset({"pyopencl"})

    def recognises(self, kind: type) -> bool:
        return self.defines(kind) and any(base.__name__ == "Array" for base in kind.__mro__)

    def describe(self, array: Any) -> Operand:
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
