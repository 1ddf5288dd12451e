"""The array that hetero makes on a CUDA device where there is neither CuPy nor PyCUDA."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays.operand import dense


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
