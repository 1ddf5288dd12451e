"""Any library with the CUDA array interface, and what the known ones share.

https://numba.readthedocs.io/en/stable/cuda/cuda_array_interface.html
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import numpy as np

from hetero.arrays.library import Library, NewArray
from hetero.arrays.operand import Operand, dense
from hetero.imports import load

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
