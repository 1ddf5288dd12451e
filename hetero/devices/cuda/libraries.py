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

_PROPERTIES = 3  # MAJOR_VERSION, MINOR_VERSION, PATCH_LEVEL of libraryPropertyType
_NO_MEMORY = {"cublas": 3, "cufft": 2}  # CUBLAS_STATUS_ALLOC_FAILED, CUFFT_ALLOC_FAILED


def _library(name: str) -> Callable[..., Callable[..., None]]:
    """``function(name, *types)`` of a library gives one of its functions, which return a status, 0
    where all is well: what gives nothing, and raises what the status means."""
    library = ctypes.CDLL(load("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)

    def function(called: str, *types: Any) -> Callable[..., None]:
        made = getattr(library, called)
        made.argtypes = types

        def call(*arguments: Any) -> None:
            status = made(*arguments)
            if status == _NO_MEMORY[name]:
                raise DeviceMemoryError(f"{called} found no memory")
            if status:
                raise DeviceError(f"{called} failed with status {status}")

        return call

    return function


@functools.cache
def cublas() -> Any:
    """cuBLAS: ``version()``, ``create()`` and, with the arguments of the C functions, ``sgemm``,
    ``dgemm``, ``sgemm_strided_batched`` and ``dgemm_strided_batched``.

    Raises
    ------
    Exception
        Where it is not here; of many kinds.
    """
    function = _library("cublas")
    get_property = function("cublasGetProperty", c_int, c_void_p)
    make = function("cublasCreate_v2", c_void_p)

    def version() -> str:
        values = [c_int() for _ in range(_PROPERTIES)]
        for number, value in enumerate(values):
            get_property(number, byref(value))
        return ".".join(str(value.value) for value in values)

    def create() -> int:
        handle = c_void_p()
        make(byref(handle))
        return handle.value or 0

    found = SimpleNamespace(version=version, create=create)
    head, matrix = (c_void_p, *(c_int,) * 5), (c_void_p, c_int)
    matrices = *matrix, c_longlong
    one = *head, c_void_p, *matrix, *matrix, c_void_p, *matrix
    batch = *head, c_void_p, *matrices, *matrices, c_void_p, *matrices, c_int
    for name in "sd":
        gemm = f"cublas{name.upper()}gemm"
        setattr(found, f"{name}gemm", function(f"{gemm}_v2", *one))
        setattr(found, f"{name}gemm_strided_batched", function(f"{gemm}StridedBatched", *batch))
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
    function, many = _library("cufft"), c_longlong
    make = function("cufftCreate", c_void_p)
    layout = c_void_p, many, many
    kinds = c_int, c_int, c_void_p, *layout, *layout, c_int, many, c_void_p
    make_plan = function("cufftMakePlanMany64", *kinds)

    def create() -> int:
        plan = c_int()
        make(byref(plan))
        return plan.value

    def make_plan_many64(plan: int, rank: int, *rest: Any) -> int:
        needed = c_size_t()
        given = [(many * rank)(*x) if isinstance(x, list) else x for x in rest]
        make_plan(plan, rank, *given, byref(needed))
        return needed.value

    found = SimpleNamespace(create=create, make_plan_many64=make_plan_many64)
    found.set_auto_allocation = function("cufftSetAutoAllocation", c_int, c_int)
    found.set_work_area = function("cufftSetWorkArea", c_int, c_void_p)
    found.destroy = function("cufftDestroy", c_int)
    for name in ("r2c", "c2r", "d2z", "z2d"):
        called = function(f"cufftExec{name.upper()}", c_int, c_void_p, c_void_p)
        setattr(found, f"exec_{name}", called)
    return found
