"""The system of a call of solve_cg, in the solve's dtype, where it is to be solved."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero.arrays import HOST, describe, is_device_array
from hetero.host import loops
from hetero.imports import load
from hetero.moving import transfer
from hetero.ops.cg import operands
from hetero.ops.linear_systems.loops import CYCLES
from hetero.ops.linear_systems.types import Csr, Dense, Stencil
from hetero.ops.linear_systems.vectors import on_host
from hetero.ops.multigrid import grids


class System:
    """A's own arrays in the solve's dtype, and the preconditioner for the CPU or a device."""

    def __init__(self, A: Any, dtype: np.dtype, M: Any) -> None:
        self._matrix = A
        self._dtype = dtype
        self._M = M

    def on(self, used: tuple[Any, ...]) -> tuple[Any, Any]:
        """System and preconditioner as those devices want them; none: the CPU."""
        return self._system(used), self._preconditioner(used)

    def times_preconditioner(self, b: np.ndarray) -> np.ndarray:
        """The product M b on the host."""
        real_view = load("hetero.ops.linear_systems.scaling").real_view
        M = self._preconditioner(())
        if M is None:
            return b.copy()
        real, z = real_view(b), np.empty_like(b)
        if callable(M):
            M(real, real_view(z))
        else:
            np.multiply(M, real, out=real_view(z))
        return z

    def _system(self, used: tuple[Any, ...]) -> Any:
        A, dtype = self._matrix, self._dtype
        if dtype.kind == "c":
            return self._complex()
        if hasattr(A, "stencil"):
            return A.stencil
        if hasattr(A, "indptr"):
            return Csr(A.indptr, A.indices, A.data.astype(dtype, copy=False))
        if not isinstance(A, np.ndarray) and not is_device_array(A):
            return A
        operand = describe(A)
        strides = operand.staged_strides()
        here = len(used) == 1 and operand.location == used[0].name
        if here and operand.dtype == dtype and strides is not None:
            return Dense(operand.pointer, A.shape[0], strides)
        if len(used) == 1 and operand.kept is not None and operand.dtype == dtype and strides:
            with used[0].active():
                copy = transfer.staged_copy(used[0], A, operand)
            if copy is not None:
                buffer, owner = copy
                return Dense(buffer, A.shape[0], strides, owner)
        if operand.location != HOST:
            A = on_host(A, operand, dtype)
        A = np.asarray(A, dtype)
        if not (A.flags.c_contiguous or A.flags.f_contiguous):
            A = np.ascontiguousarray(A)
        return Dense(A, A.shape[0], tuple(s // A.itemsize for s in A.strides))

    def _complex(self) -> Any:
        A = self._matrix
        if is_device_array(A):
            A = on_host(A, describe(A), self._dtype)
        elif isinstance(A, np.ndarray):
            A = np.asarray(A, self._dtype)
        return operands.scipy()[2](A)

    def _preconditioner(self, used: tuple[Any, ...]) -> Any:
        M, dtype = self._M, self._dtype
        if M is None:
            return None
        if isinstance(M, str) and M == "jacobi":
            inverse = self._inverse_diagonal()
            return np.repeat(inverse, 2) if dtype.kind == "c" and inverse is not None else inverse
        if isinstance(M, str):
            return self._multigrid(used)
        into = load("hetero.ops.krylov.cg_products").into
        if np.ndim(M) == 1:
            inverse = np.ascontiguousarray(M, dtype)
            if dtype.kind != "c":
                return inverse
            return into("M times a vector", lambda r: inverse * r, dtype)
        return into("M times a vector", operands.scipy()[2](M).matvec, dtype)

    def _inverse_diagonal(self) -> np.ndarray | None:
        A = self._matrix
        if hasattr(A, "stencil"):  # a constant diagonal changes no iterate
            return None
        if is_device_array(A):
            A = on_host(A, describe(A), self._dtype)
        with np.errstate(all="ignore"):
            return 1.0 / A.diagonal().real.astype(self._dtype.type(0).real.dtype)

    def _multigrid(self, used: tuple[Any, ...]) -> Any:
        stencil, dtype = self._matrix.stencil, self._dtype
        if used:
            multigrid_device = load("hetero.ops.multigrid.multigrid_device")
            if len(used) > 1 and grids.is_shared(stencil.shape):
                return partial(multigrid_device.held, stencil=stencil, dtype=dtype)
            with used[0].active():
                return multigrid_device.DeviceHierarchy(used[0], stencil, dtype)
        apply = _approximate_inverse(stencil, dtype.type(0).real.dtype)
        if dtype.kind != "c":
            return apply

        def by_parts(r: np.ndarray, z: np.ndarray) -> None:
            for part in (0, 1):
                of_z = np.empty(r.size // 2, r.dtype)
                apply(np.ascontiguousarray(r[part::2]), of_z)
                z[part::2] = of_z

        return by_parts


def _approximate_inverse(stencil: Stencil, dtype: np.dtype) -> Callable[..., None]:
    """One multigrid cycle on the CPU; where its loops are not compiled, the inverse itself."""
    if loops.is_ready(CYCLES.of(dtype)):
        multigrid_cpu = load("hetero.ops.multigrid.multigrid_cpu")
        return multigrid_cpu.CpuHierarchy(stencil, dtype).apply
    direct = load("hetero.ops.poisson.dst")

    def apply(r: np.ndarray, z: np.ndarray) -> None:
        z[...] = direct.apply(stencil, r.reshape(stencil.shape)).reshape(z.shape)

    return apply
