"""PyOpenCL's arrays in the contexts of our OpenCL devices.

A buffer belongs to one context, so arrays of others cannot be used as they are.
"""

from __future__ import annotations

from typing import Any

from hetero.arrays.library import Library
from hetero.arrays.operand import Operand

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
