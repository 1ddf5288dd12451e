"""cuBLAS and cuFFT by their C interface, and batched real Fourier transforms by cuFFT.

NVIDIA's `cuda.pathfinder` finds them. Python bindings of all libraries together take 0.6 s to
import.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
from collections.abc import Callable
from ctypes import byref, c_int, c_longlong, c_size_t, c_void_p
from types import SimpleNamespace
from typing import Any

from hetero import locks
from hetero.devices.storage import Workspace
from hetero.errors import DeviceError, DeviceMemoryError
from hetero.imports import INSTALL, load

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
_KINDS = {  # dtype: the functions there and back, and their cufftType
    "float32": ((0x2A, "exec_r2c"), (0x2C, "exec_c2r")),
    "float64": ((0x6A, "exec_d2z"), (0x6C, "exec_z2d")),
}


def _library(name: str, functions: dict[str, tuple[str, str]]) -> SimpleNamespace:
    """A library's functions by our names. The statuses that they return raise what they mean."""
    library = ctypes.CDLL(load("cuda.pathfinder").load_nvidia_dynamic_lib(name).abs_path)

    def check(status: int, function: Any, arguments: tuple[Any, ...]) -> None:
        if status:
            kind = DeviceMemoryError if status == _NO_MEMORY[name] else DeviceError
            raise kind(f"{function.__name__} failed with status {status}")

    found = {}
    for ours, (called, types) in functions.items():
        function = found[ours] = getattr(library, called)
        function.argtypes, function.errcheck = [_TYPES[one] for one in types], check
    return SimpleNamespace(**found)


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


def cufft_obstacle() -> str | None:
    """Why cuFFT cannot be used, None where it can."""
    try:
        cufft()
    except Exception:  # package or library missing, or too old
        return f"cuFFT is not here; {INSTALL['library']}"
    return None


class RealTransform:
    """``batch`` rows of (lx,) or planes of (ly, lx) reals, lx even, one after the other, each row
    in room for lx / 2 + 1 complex numbers; float32 or float64. The device is active in this thread.

    Planes have a way back, which is not scaled: there and back multiplies by ly lx.
    """

    def __init__(self, device: Any, lengths: tuple[int, ...], batch: int, dtype: str) -> None:
        self._device, self._state, self._lock = device, device.state(), locks.new()
        self._cufft = library = cufft()
        self._plans: list[int] = []  # they share a work area
        self._run = [getattr(library, name) for _, name in _KINDS[dtype]]
        rank, (*planes, lx) = len(lengths), lengths
        half, number = lx // 2 + 1, planes[0] if planes else 1
        reals = [*planes, 2 * half], 1, 2 * half * number
        complexes = [*planes, half], 1, half * number
        layouts = (*reals, *complexes), (*complexes, *reals)
        self._area = Workspace(device, "transforms' work areas")
        try:
            needed = 1
            for layout, (kind, _) in [*zip(layouts, _KINDS[dtype], strict=True)][:rank]:
                plan = library.create()
                self._plans.append(plan)
                library.set_auto_allocation(plan, 0)
                size = library.make_plan_many64(plan, rank, [*lengths], *layout, kind, batch)
                needed = max(needed, size)
            area = self._area.allocate(needed)
            for plan in self._plans:
                library.set_work_area(plan, area)
        except MemoryError as error:
            raise DeviceMemoryError(f"cuFFT: {error}") from error

    def __del__(self) -> None:
        if not sys.is_finalizing() and self._device.holds(self._state):
            with contextlib.suppress(Exception), self._device.active():
                for plan in self._plans:
                    self._cufft.destroy(plan)

    def forward(self, buffer: int) -> None:
        """Transform what lies at a device address, on the default stream."""
        with self._lock:  # a transform is several launches that share the work area
            self._run[0](self._plans[0], buffer, buffer)

    def inverse(self, buffer: int) -> None:
        """Transform back."""
        with self._lock:
            self._run[1](self._plans[1], buffer, buffer)
