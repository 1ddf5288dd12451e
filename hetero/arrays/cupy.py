"""CuPy's arrays."""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays.interface import Interface
from hetero.arrays.library import Access, NewArray, each, layouts
from hetero.imports import load

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

    def maker(self, kind: str) -> Callable[[Any, tuple[int, ...], np.dtype], Any] | None:
        cupy = _cupy() if kind == "cuda" else None
        if cupy is None:
            return None

        def make(device: Any, shape: tuple[int, ...], dtype: np.dtype) -> Any:
            with cupy.cuda.Device(device.ordinal):
                return cupy.empty(shape, dtype)

        return make

    def release(self, device: Any) -> bool:
        cupy = sys.modules.get("cupy")
        if device.kind != "cuda" or cupy is None:
            return False
        with cupy.cuda.Device(device.ordinal):
            pool = cupy.get_default_memory_pool()
            kept = pool.free_bytes()
            pool.free_all_blocks()
        return kept > 0

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
