"""Arrays on CUDA devices that are exported by DLPack alone, without the CUDA array interface.

The array's capsule is read and left to its owner; the memory stays the array's own. Its library is
asked to let CUDA's default stream wait for the work on it. DLPack does not report the stream that
uses it next, so the host waits for what a call queued. Results are arrays of the caller's library
where it follows the array API standard (``__array_namespace__``), else PyCUDA's.
https://dmlc.github.io/dlpack/latest/
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from hetero.arrays.operand import UNKNOWN_STREAM, Operand, element_strides

_CUDA, _CUDA_MANAGED = 2, 13  # kDLCUDA, kDLCUDAManaged
_STREAM = 1  # CUDA's legacy default stream, where our work goes
_VERSION = (1, 0)  # of the capsules that are asked for; older ones are taken too
_READONLY, _COPIED = 1, 2  # flags of such a capsule
_KINDS = {0: "i", 1: "u", 2: "f", 5: "c", 6: "b"}  # DLDataTypeCode


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned; the older DLManagedTensor begins with its tensor."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("manager", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.restype, _is_valid.argtypes = ctypes.c_int, (ctypes.py_object, ctypes.c_char_p)


def on_device(array: Any) -> bool:
    """Whether an array lies on a CUDA device."""
    return array.__dlpack_device__()[0] in (_CUDA, _CUDA_MANAGED)


def describe(array: Any) -> Operand:
    """The operand; TypeError where the array is of no use."""
    if not on_device(array):
        place = tuple(map(int, array.__dlpack_device__()))
        raise TypeError(f"DLPack arrays must lie on a CUDA device, got device {place}")
    capsule = _capsule(array)
    readonly = False
    if _is_valid(capsule, b"dltensor_versioned"):
        managed = _Versioned.from_address(_pointer(capsule, b"dltensor_versioned"))
        if managed.major > _VERSION[0]:
            raise TypeError(f"DLPack must be of version 1 or older, got {managed.major}")
        if managed.flags & _COPIED:
            raise TypeError(f"{type(array).__name__} exports a copy, not its memory")
        readonly, tensor = bool(managed.flags & _READONLY), managed.tensor
    else:
        tensor = _Tensor.from_address(_pointer(capsule, b"dltensor"))
    shape, dtype = tuple(tensor.shape[: tensor.ndim]), _dtype(tensor)
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else element_strides(shape)
    in_bytes = tuple(stride * dtype.itemsize for stride in strides)
    pointer, location = (tensor.data or 0) + tensor.byte_offset, f"cuda:{tensor.device_id}"
    return Operand(shape, in_bytes, dtype, location, pointer, readonly, UNKNOWN_STREAM)


def empty(like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: Any) -> tuple[Any, int]:
    """A new array of the library of ``like``, and its address; see `libraries.Library`."""
    if not hasattr(like, "__array_namespace__"):
        return new_array(shape, dtype)
    xp = like.__array_namespace__()
    made = xp.empty(shape, dtype=getattr(xp, dtype.name), device=like.device)
    return made, describe(made).pointer


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


def _dtype(tensor: _Tensor) -> np.dtype:
    kind = _KINDS.get(tensor.code)
    if kind is None or tensor.lanes != 1 or tensor.bits % 8:
        raise TypeError(
            "DLPack arrays must be of integers, floats, complex numbers or booleans, got type code "
            f"{tensor.code} with {tensor.bits} bits and {tensor.lanes} lanes"
        )
    return np.dtype(f"{kind}{tensor.bits // 8}")
