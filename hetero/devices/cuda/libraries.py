"""cuBLAS and cuFFT by their C interface; NVIDIA's `cuda.pathfinder` finds them.

Python bindings of all libraries together take 0.6 s to import.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Callable
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from types import SimpleNamespace
from typing import Any

from hetero.errors import DeviceError, DeviceMemoryError
from hetero.imports import load

_VERSION = range(3)  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of libraryPropertyType
_NO_MEMORY = {"cublas": 3, "cufft": 2}  # CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED
_TYPES = {"i": c_int, "q": c_longlong, "p": c_void_p}
_CUBLAS = {  # our name: the C function's, and the types of its arguments
    "get_property": ("cublasGetProperty", "ip"),
    "make": ("cublasCreate_v2", "p"),
    **{f"{t}gemm": (f"cublas{t.upper()}gemm_v2", "piiiiippipippi") for t in "sd"},
    **{
        f"{t}gemm_strided_batched": (f"cublas{t.upper()}gemmStridedBatched", "piiiiippiqpiqppiqi")
        for t in "sd"
    },
}
_CUFFT = {
    "make": ("cufftCreate", "p"),
    "make_plan": ("cufftMakePlanMany64", "iippqqpqqiqp"),
    "set_auto_allocation": ("cufftSetAutoAllocation", "ii"),
    "set_work_area": ("cufftSetWorkArea", "ip"),
    "destroy": ("cufftDestroy", "i"),
    **{f"exec_{way}": (f"cufftExec{way.upper()}", "ipp") for way in ("r2c", "c2r", "d2z", "z2d")},
}


def _library(name: str, functions: dict[str, tuple[str, str]]) -> SimpleNamespace:
    """A library's functions by our names. They return a status, 0 where all is well; ours give
    nothing, and raise what it means."""
    library = ctypes.CDLL(load("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)

    def function(called: str, types: str) -> Callable[..., None]:
        made = getattr(library, called)
        made.argtypes = [_TYPES[one] for one in types]

        def call(*arguments: Any) -> None:
            status = made(*arguments)
            if status == _NO_MEMORY[name]:
                raise DeviceMemoryError(f"{called} found no memory")
            if status:
                raise DeviceError(f"{called} failed with status {status}")

        return call

    return SimpleNamespace(**{ours: function(*c) for ours, c in functions.items()})


def _given(function: Callable[..., None], kind: Any, *arguments: Any) -> int:
    """What a function writes to where its last argument points."""
    value = kind()
    function(*arguments, byref(value))
    return value.value or 0


@functools.cache
def cublas() -> Any:
    """cuBLAS: ``version()``, ``create()`` and, with the arguments of the C functions, ``sgemm``,
    ``dgemm``, ``sgemm_strided_batched`` and ``dgemm_strided_batched``.

    Raises
    ------
    Exception
        Where it is not here; of many kinds.
    """
    found = _library("cublas", _CUBLAS)
    properties = [functools.partial(_given, found.get_property, c_int, i) for i in _VERSION]
    found.version = lambda: ".".join(str(ask()) for ask in properties)
    found.create = functools.partial(_given, found.make, c_void_p)
    return found


@functools.cache
def cufft() -> Any:
    """cuFFT: ``create()``, ``make_plan_many64`` with the arguments of the C function up to the
    batch, which gives the bytes of its work area, ``set_auto_allocation``, ``set_work_area``,
    ``exec_r2c``, ``exec_c2r``, ``exec_d2z``, ``exec_z2d`` and ``destroy``.

    Raises
    ------
    Exception
        Where it is not here; of many kinds.
    """
    found = _library("cufft", _CUFFT)

    def make_plan_many64(plan: int, rank: int, *rest: Any) -> int:
        given = [(c_longlong * rank)(*x) if isinstance(x, list) else x for x in rest]
        return _given(found.make_plan, c_size_t, plan, rank, *given)

    found.create = functools.partial(_given, found.make, c_int)
    found.make_plan_many64 = make_plan_many64
    return found
