"""CuPy's arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays.interface import Interface
from hetero.arrays.library import Access, NewArray, each, layouts


class Cupy(Interface):
    """CuPy's arrays."""

    modules = frozenset({"cupy"})

    def on_device(self, array: Any) -> bool:
        return True

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        import cupy

        with like.device:
            made = cupy.empty(shape, dtype)
        return made, made.data.ptr

    def access(self, kind: type, several: bool) -> Access | None:
        if kind.__name__ != "ndarray":
            return None
        import cupy

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
