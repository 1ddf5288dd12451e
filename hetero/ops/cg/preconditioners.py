"""Preconditioners of conjugate gradients: "jacobi", "multigrid", and anybody's M."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import is_device_array
from hetero.host import loops
from hetero.imports import load
from hetero.ops.linear_systems.loops import CYCLES
from hetero.ops.linear_systems.systems import Stencil, on_host, real_view


def preconditioner_of(A: Any, M: Any, dtype: np.dtype, used: tuple[Any, ...]) -> Any:
    """What multiplies by M in the solve's dtype, on those devices; none: the CPU.

    None, the diagonal of an approximate inverse of A, ``apply(r, z)`` on the CPU, or a
    `DeviceHierarchy`.
    """
    if M is None:
        return None
    if isinstance(M, str):
        return _jacobi(A, dtype) if M == "jacobi" else _multigrid(A.stencil, dtype, used)
    into = load("hetero.ops.krylov.matrices").into
    if np.ndim(M) == 1:
        inverse = np.ascontiguousarray(M, dtype)
        if dtype.kind != "c":
            return inverse
        return into("M times a vector", lambda r: inverse * r, dtype)
    return into("M times a vector", load("scipy.sparse.linalg").aslinearoperator(M).matvec, dtype)


def _jacobi(A: Any, dtype: np.dtype) -> np.ndarray | None:
    """The inverse of A's diagonal."""
    if hasattr(A, "stencil"):  # a constant diagonal changes no iterate
        return None
    if is_device_array(A):
        A = on_host(A, dtype)
    with np.errstate(all="ignore"):
        inverse = 1.0 / A.diagonal().real.astype(dtype.type(0).real.dtype)
    return np.repeat(inverse, 2) if dtype.kind == "c" else inverse


def _multigrid(stencil: Stencil, dtype: np.dtype, used: tuple[Any, ...]) -> Any:
    """One cycle; on the CPU, where its loops are not compiled, the inverse itself."""
    real = dtype.type(0).real.dtype
    if used:
        multigrid_device = load("hetero.ops.multigrid.multigrid_device")
        with used[0].active():
            return multigrid_device.DeviceHierarchy(used[:1], stencil, real)
    if loops.is_ready(CYCLES.of(real)):
        apply = load("hetero.ops.multigrid.multigrid_cpu").CpuHierarchy(stencil, real).apply
    else:
        inverse = load("hetero.ops.poisson.dst").applied(stencil, real)

        def apply(r: np.ndarray, z: np.ndarray) -> None:
            inverse(r.reshape(stencil.shape), z.reshape(stencil.shape))

    if dtype.kind != "c":
        return apply

    def by_parts(r: np.ndarray, z: np.ndarray) -> None:
        for part in (0, 1):
            of_z = np.empty(r.size // 2, r.dtype)
            apply(np.ascontiguousarray(r[part::2]), of_z)
            z[part::2] = of_z

    return by_parts


def times(M: Any, b: np.ndarray) -> np.ndarray:
    """The product M b of a preconditioner on the CPU."""
    z = b.copy()
    if callable(M):
        M(real_view(b), real_view(z))
    elif M is not None:
        real_view(z)[...] *= M
    return z
