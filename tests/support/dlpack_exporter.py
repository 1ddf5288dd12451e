"""Arrays that DLPack alone exports, on the fake CUDA devices of `fakes`."""

from __future__ import annotations

import ctypes
import types

import fakes
import numpy as np

from hetero.arrays.libraries import _Tensor, _Versioned

CUDA = 2
_new = ctypes.pythonapi.PyCapsule_New
_new.restype = ctypes.py_object
_new.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}


class Exported:
    """An array with ``__dlpack__`` and ``__dlpack_device__`` and nothing else.

    Parameters
    ----------
    array : fakes.Array
    flags : int or None
        Of a capsule of version 1; None: an exporter that knows none yet.
    """

    device_type = CUDA

    def __init__(self, array, flags=None, major=1, lanes=1, code=None, compact=False):
        self.array, self.flags, self.major = array, flags, major
        self.lanes, self.code, self.compact = lanes, code, compact
        self.asked = []

    def __dlpack_device__(self):
        return self.device_type, self.array.owner.ordinal

    def __dlpack__(self, *, stream=None, **options):
        if self.flags is None and options:
            raise TypeError("unexpected keyword")
        self.asked.append((stream, options))
        x, count = self.array, len(self.array.shape)
        shape = (ctypes.c_int64 * count)(*x.shape)
        strides = (ctypes.c_int64 * count)(*(s // x.dtype.itemsize for s in x.strides))
        pointer = ctypes.POINTER(ctypes.c_int64)
        tensor = _Tensor(
            x.pointer - 64,
            *self.__dlpack_device__(),
            count,
            _CODES.get(x.dtype.kind) if self.code is None else self.code,
            8 * x.dtype.itemsize,
            self.lanes,
            ctypes.cast(shape, pointer),
            None if self.compact else ctypes.cast(strides, pointer),
            64,
        )
        made = tensor
        if self.flags is not None:
            made = _Versioned(self.major, 0, None, None, self.flags, tensor)
        self.kept = made, shape, strides
        name = b"dltensor" if self.flags is None else b"dltensor_versioned"
        return _new(ctypes.addressof(made), name, None)


class Standard(Exported):
    """The same of a library that follows the array API standard."""

    shape = property(lambda self: self.array.shape)
    dtype = property(lambda self: f"toy.{self.array.dtype}")
    device = property(lambda self: self.array.owner)

    def __array_namespace__(self):
        def empty(shape, dtype, device):
            return Standard(fakes.Cupy.empty(shape, dtype, device), flags=0)

        return types.SimpleNamespace(empty=empty, float32=np.float32, float64=np.float64)
