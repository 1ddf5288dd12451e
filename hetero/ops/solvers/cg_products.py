"""A times a vector on the CPU, for every kind of system, and the norm of the true residual."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.ops.solvers.systems import Csr, Dense, Stencil

Times = Callable[[np.ndarray, np.ndarray], object]
_ROUNDINGS = 64.0  # times eps norm(b): for a larger tolerance float32 is exact enough
_LARGEST_CHECKED = 1 << 20  # unknowns; of more, the errors of single ones do not add up to much
_AT_A_TIME = 1 << 20  # elements of a dense matrix that are converted to float64


class Matrix(NamedTuple):
    """A system's product; where whole iterations with it are compiled, also these."""

    times: Times  # ``times(p, q)`` writes q = A p
    # ``run(inverse, x, r, p, q, sums, sums_z, state, bound, limit)``, and room for the sums
    run: Callable[..., tuple[int, int]] | None = None
    sums: np.ndarray | None = None


def compiled(system: Any, dtype: np.dtype) -> Matrix:
    """The product of a system; of CSR matrices and stencils by compiled loops."""
    if not isinstance(system, (Stencil, Csr)):
        return uncompiled(system, dtype)
    loops = load("hetero.kernels.cpu.cg")
    matrix: tuple[Any, ...]
    if isinstance(system, Stencil):
        weights = [1.0 / h**2 for h in system.spacing]
        weights = [0.0] * (3 - len(weights)) + weights
        matrix, size = (*system.shape[-2:], np.array(weights, dtype)), system.shape[-1]
        sums = np.empty(math.prod(system.shape[:-1]))
    else:
        # 64-bit indices only where they must be.
        indptr, indices, data = map(as_loops_take, system)
        if len(indptr) + len(data) <= np.iinfo(np.int32).max:
            indptr, indices = (i.astype(np.int32, copy=False) for i in (indptr, indices))
        parts = indptr, indices, data
        matrix, size = (*parts, *load("hetero.kernels.cpu.csr").runs(*parts)), loops.CHUNK
        sums = np.empty(-(-(len(system.indptr) - 1) // size))
    return Matrix(
        lambda p, q: loops.times(p, matrix, q, sums),
        lambda inverse, x, *rest: loops.solve(x, matrix, size, inverse, *rest),
        sums,
    )


def uncompiled(system: Any, dtype: np.dtype) -> Matrix:
    """The product of a system, with nothing to compile."""
    if isinstance(system, Matrix):
        return system
    if isinstance(system, Stencil):
        return Matrix(_stencil_times(system, dtype))
    if isinstance(system, Csr):
        csr_array = load("scipy.sparse").csr_array
        n = len(system.indptr) - 1
        matrix = csr_array((system.data, system.indices, system.indptr), shape=(n, n))
        return Matrix(into("A times a vector", matrix.__matmul__, dtype))
    if isinstance(system, Dense):
        return Matrix(lambda p, q: np.dot(system.array, p, q))
    return Matrix(into("A times a vector", system.matvec, dtype))


def is_doubtful(dtype: np.dtype, n: int, residual: float, bound: float, norm_b: float) -> bool:
    """Whether rounding to float32 may decide if a residual of n unknowns meets a bound."""
    least = _ROUNDINGS * np.finfo(dtype).eps * norm_b
    return dtype.char in "fF" and residual <= bound < least and n <= _LARGEST_CHECKED


def true_residual(
    system: Any, b: np.ndarray, x: np.ndarray, residual: float, bound: float, norm_b: float
) -> float:
    """norm(b - A x), in float64 where rounding to float32 may hide that it misses a bound.

    That is where the bound is near the rounding error of ``residual`` as computed in b's dtype. Of
    an operator that is not a matrix there is no better value.
    """
    n, matrix = len(b), getattr(system, "A", None)
    if not is_doubtful(b.dtype, n, residual, bound, norm_b):
        return residual
    dtype = np.result_type(b.dtype, np.float64)
    x, product = x.astype(dtype), np.empty(n, dtype)
    if isinstance(system, Dense):
        rows = max(_AT_A_TIME // n, 1)
        for i in range(0, n, rows):
            product[i : i + rows] = system.array[i : i + rows].astype(dtype) @ x
    elif isinstance(system, (Stencil, Csr)):
        uncompiled(system, dtype).times(x, product)
    elif matrix is not None:
        product = matrix @ x
    else:
        return residual
    return float(np.linalg.norm(b - product))


def _stencil_times(stencil: Stencil, dtype: np.dtype) -> Times:
    weights = [dtype.type(1.0 / h**2) for h in stencil.spacing]
    centre = 2 * sum(weights)
    spare = np.empty(stencil.shape, dtype)

    def times(p: np.ndarray, q: np.ndarray) -> None:
        u, result = p.reshape(stencil.shape), q.reshape(stencil.shape)
        np.multiply(u, centre, out=result)
        for axis, weight in enumerate(weights[:-1]):
            np.multiply(u, weight, out=spare)
            low, high = [slice(None)] * u.ndim, [slice(None)] * u.ndim
            low[axis], high[axis] = slice(None, -1), slice(1, None)
            result[tuple(high)] -= spare[tuple(low)]
            result[tuple(low)] -= spare[tuple(high)]
        # Along the last axis as one long line, which is faster; its ends have no neighbour there.
        scaled = np.multiply(u, weights[-1], out=spare).reshape(-1)
        first = result[..., 0].copy()
        q[1:] -= scaled[:-1]
        result[..., 0] = first
        last = result[..., -1].copy()
        q[:-1] -= scaled[1:]
        result[..., -1] = last

    return times


def into(
    name: str, function: Callable[[np.ndarray], Any], dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], None]:
    """``f(p, q)`` that writes ``function(p)`` to q; TypeError where q cannot hold it.

    p and q are vectors of ``dtype``, a complex one's also as real ones of twice the length.
    """
    is_complex = dtype.kind == "c"

    def write(p: np.ndarray, q: np.ndarray) -> None:
        result = function(p.view(dtype) if is_complex else p)
        if not is_complex and result.dtype.kind == "c":
            raise TypeError(f"{name} must be real, got dtype {result.dtype}")
        (q.view(dtype) if is_complex else q)[...] = result

    return write
