"""Conjugate gradients, on the CPU or for whatever vectors can be added and multiplied.

The method is that of Y. Saad, "Iterative methods for sparse linear systems", 2nd edition, algorithm
9.1, after M. R. Hestenes and E. Stiefel, J. Res. Nat. Bur. Stand. 49 (1952). His M^-1 is M here, as
in SciPy: an approximate inverse of A. With M = 1, so that z is r, it is his algorithm 6.18.

    1. r = b - A x,  z = M r,  p = z
    2. for j = 0, 1, ..., until convergence
    3.     alpha = (r, z) / (A p, p)
    4.     x = x + alpha p
    5.     r = r - alpha A p
    6.     z = M r
    7.     beta = (r, z) / (r, z) of the iteration before
    8.     p = z + beta p

In this file, from the outside in: `solve`; `restarted`, which begins anew from the true residual
until that meets the tolerance; `solve_unscaled`, the steps; and the products of every kind of A on
the CPU. `cg._run` chooses what makes the steps, by where a solve runs:

    ==================================  ==================================================
    dense matrices, operators, any M    `solve_unscaled`; of `cg_hybrid` a device makes A p
    ranks                               `solve_unscaled`, with vectors from `hetero.mpi.cg`
    CSR and grids on the CPU, compiled  `hetero.kernels.cpu.cg.solve`: steps 2 to 8 as loops
    devices, one or several             `cg_launches.Loop`: the steps as launches, beta
                                        predicted so that all sums are made at once
    grids with multigrid on a device    `cg_device.Preconditioned`: the steps as they are
    ==================================  ==================================================

`restarted` decides in all of them how a solve ends. Sums are made in float64.

For a Hermitian A, p^H A p and r^H M r are real, and so are alpha and beta. The vectors of a complex
solve are therefore updated as real ones of twice the length; only A and M see them as complex.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.ops.solvers import systems
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil, on_vectors

_CHECK = 100_000  # iterations between looks at Ctrl-C, divided by thousands of unknowns
_EXAMPLE = 256  # unknowns of a system that calls compiled loops; runs of rows are looked for
_ROUNDINGS = 64.0  # times eps norm(b): for a larger tolerance float32 is exact enough
_LARGEST_CHECKED = 1 << 20  # unknowns; of more, the errors of single ones do not add up to much


class Matrix(NamedTuple):
    """A system's product; where whole iterations with it are compiled, also these."""

    times: Callable[[np.ndarray, np.ndarray], object]  # ``times(p, q)`` writes q = A p
    # ``run(inverse, x, r, p, q, state, bound, limit)``
    run: Callable[..., tuple[int, int]] | None = None


def solve(
    system: Any,
    b: np.ndarray,
    x: np.ndarray,
    asked: Solve,
    M: Any = None,
    *,
    plain: bool = False,
    after_step: Callable[..., object] | None = None,
) -> Outcome:
    """Solve A x = b, if the squares of b are in range, until norm(b - A x) <= max(rtol norm(b),
    atol); see `restarted`.

    Parameters
    ----------
    system : Stencil, Csr, Dense, LinearOperator or Matrix
        A LinearOperator if b is complex.
    b, x : (n,) ndarray of float32, float64, complex64 or complex128
        Right-hand side; start in, result out.
    M : None, (n,) ndarray or callable
        The diagonal of an approximate inverse of A, or ``apply(r, z)`` that writes z = M r. If b
        is complex, the callable takes what `into` makes.
    plain : bool
        Use nothing that has to be compiled.
    after_step : callable, optional
        ``after_step(r_r, floor, r, p)`` is called after each iteration in Python but the last, with
        r.r, the norm at which they end, the residual and the next direction. It may raise.
    """
    b = as_loops_take(b)
    of_vectors = on_vectors(b.real.dtype, b.size)
    norm_b = of_vectors.norm(systems.real_view(b))
    if not systems.is_safe(norm_b, b.real.itemsize):
        return Outcome(systems.OUT_OF_RANGE, 0, math.nan)
    A, residual = product(system, b.dtype, plain), functools.partial(true_residual, system)
    return solve_unscaled(A, of_vectors, residual, M, b, x, asked, norm_b, after_step)


def restarted(
    compute_residual: Callable[[float], float],
    run: Callable[[int, float], tuple[str, int]],
    asked: Solve,
    norm_b: float,
    dtype: np.dtype,
    *,
    once_more: bool = False,
) -> Outcome:
    """Iterate, and begin anew from the true residual until that meets the tolerance.

    The recurrence's own residual falls without end, the true one does not: when a new start no
    longer halves that, rounding has the last word, and the status is LIMIT.
    ``compute_residual(tolerance)`` makes r = b - A x, and gives its norm; ``run(limit, floor)``
    iterates from there until the recurrence's residual is no more than ``floor``. With
    ``once_more`` the first iterations need not halve anything.
    """
    tolerance = max(asked.rtol * norm_b, asked.atol)
    # Products that vanish look like an indefinite A.
    floor = max(tolerance, systems.least_tolerance(dtype) * norm_b)
    status, done, before = systems.CONVERGED, 0, math.inf
    while True:
        norm = compute_residual(tolerance)
        if not math.isfinite(norm):
            return Outcome(systems.NOT_FINITE, done, norm)
        if norm <= tolerance:
            return Outcome(systems.CONVERGED, done, norm)
        if status in (systems.INDEFINITE, systems.NOT_FINITE):
            return Outcome(status, done, norm)
        if done >= asked.maxiter or norm > 0.5 * before:
            return Outcome(systems.LIMIT, done, norm)
        status, count = run(asked.maxiter - done, floor)
        done, before, once_more = done + count, math.inf if once_more else norm, False


def solve_unscaled(
    A: Matrix,
    of_vectors: Any,
    true_residual: Callable[..., float],
    M: Any,
    b: Any,
    x: Any,
    asked: Solve,
    norm_b: float,
    after_step: Callable[..., object] | None = None,
) -> Outcome:
    """Solve for a right-hand side of which the square neither overflows nor vanishes.

    ``of_vectors`` has the functions of `hetero.kernels.cpu.vectors`. b and x may be what else these
    take, if it has ``copy()`` and ``-``. ``true_residual(b, x, residual, tolerance, norm_b)``: see
    the function of this name. x is zero if ``asked.from_zero``.
    """
    norm, dot, callback, isfinite = of_vectors.norm, of_vectors.dot, asked.callback, math.isfinite
    given = b, x
    if b.dtype.kind == "c":
        whole, notify = x, callback
        b, x = systems.real_view(b), systems.real_view(x)
        callback = notify and (lambda _: notify(whole))
    inverse = M if isinstance(M, np.ndarray) else None
    M = M if inverse is None else lambda r, z: np.multiply(inverse, r, out=z)
    q, r, at_zero = b.copy(), b, asked.from_zero

    def compute_residual(tolerance: float) -> float:
        nonlocal r, at_zero
        # 1. r = b - A x
        if at_zero:
            r, at_zero = b.copy(), False
            return norm_b
        A.times(x, q)
        r = b - q
        return true_residual(*given, norm(r), tolerance, norm_b)

    def iterate(limit: int, floor: float) -> tuple[str, int]:
        """How the iterations ended, and after how many."""
        # 1. z = M r, p = z
        z = r if M is None else r.copy()
        if M is not None:
            M(r, z)
        p, r_z = z.copy(), dot(r, z)
        # 2. for j = 0, 1, ..., until convergence
        for j in range(limit):
            # 3. alpha = (r, z) / (A p, p)
            A.times(p, q)
            p_Ap = dot(p, q)
            if not (isfinite(p_Ap) and isfinite(r_z)):
                return systems.NOT_FINITE, j
            if p_Ap <= 0.0 or r_z <= 0.0:  # A, or M, is not positive definite
                return systems.INDEFINITE, j
            alpha = r_z / p_Ap
            # 4., 5. x = x + alpha p, r = r - alpha A p
            r_r = of_vectors.step(x, r, p, q, alpha)
            if not isfinite(r_r):
                return systems.NOT_FINITE, j
            if callback:
                callback(x)
            if math.sqrt(r_r) <= floor:
                return systems.CONVERGED, j + 1
            if j + 1 == limit:
                break
            # 6., 7. z = M r, beta = (r, z) / (r, z) of the iteration before
            r_z_before, r_z = r_z, r_r
            if M is not None:
                M(r, z)
                r_z = dot(r, z)
            beta = r_z / r_z_before
            # 8. p = z + beta p
            of_vectors.scale_and_add(p, beta, z)
            if after_step:
                after_step(r_r, floor, r, p)
        return systems.LIMIT, limit

    def iterate_in_loops(limit: int, floor: float) -> tuple[str, int]:
        """The same as compiled loops, with a way back to Python now and then for Ctrl-C."""
        r_r = dot(r, r)
        r_z = r_r if inverse is None else dot(r, inverse * r)
        state, p = np.array([r_r, r_z, 0.0]), np.zeros(x.shape, x.dtype)
        diagonal = np.empty(0, x.dtype) if inverse is None else inverse
        batch = 1 if callback else max(_CHECK // (x.size // 1000 + 1), 1)
        done = 0
        while True:
            most = min(batch, limit - done)
            code, taken = A.run(diagonal, x, r, p, q, state, floor * floor, most)
            done += taken
            if callback and taken:
                callback(x)
            if code or done >= limit:
                return systems.ENDED[code], done

    def run(limit: int, floor: float) -> tuple[str, int]:
        nonlocal r
        if A.run is not None and (M is None or inverse is not None):
            start = x.copy()
            ended = iterate_in_loops(limit, floor)
            # The compiled loops do not look at x; those in Python do, in each iteration, and end
            # before x is not finite.
            if of_vectors.times_zero(x) == 0.0:
                return ended
            x[...] = start
            A.times(x, q)
            r = b - q
        return iterate(limit, floor)

    with np.errstate(all="ignore"):
        return restarted(compute_residual, run, asked, norm_b, b.dtype)


# -- Products --------------------------------------------------------------------------------------


def product(system: Any, dtype: np.dtype, plain: bool = False) -> Matrix:
    """The product of a system; of CSR matrices and stencils by compiled loops, unless ``plain``."""
    if isinstance(system, Matrix):
        return system
    if isinstance(system, Dense):
        return Matrix(lambda p, q: np.dot(system.array, p, q))
    if not isinstance(system, (Stencil, Csr)):
        return Matrix(into("A times a vector", system.matvec, dtype))
    if not plain:
        return _compiled(system, dtype)
    if isinstance(system, Csr):
        n = len(system.indptr) - 1
        matrix = load("scipy.sparse").csr_array(system[::-1], shape=(n, n))
        return Matrix(into("A times a vector", matrix.__matmul__, dtype))
    weights = [dtype.type(1.0 / h**2) for h in system.spacing]
    centre, scaled_u = 2 * sum(weights), np.empty(system.shape, dtype)

    def times(p: np.ndarray, q: np.ndarray) -> None:
        u, result = p.reshape(system.shape), q.reshape(system.shape)
        np.multiply(u, centre, out=result)
        for axis, weight in enumerate(weights[:-1]):
            np.multiply(u, weight, out=scaled_u)
            before = (slice(None),) * axis
            low, high = (*before, slice(None, -1)), (*before, slice(1, None))
            result[high] -= scaled_u[low]
            result[low] -= scaled_u[high]
        # Along the last axis as one long line, which is faster; its ends have no neighbour there.
        line = np.multiply(u, weights[-1], out=scaled_u).reshape(-1)
        for values, target, end in ((line[:-1], q[1:], 0), (line[1:], q[:-1], -1)):
            kept = result[..., end].copy()
            target -= values
            result[..., end] = kept

    return Matrix(times)


def _compiled(system: Stencil | Csr, dtype: np.dtype) -> Matrix:
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
        matrix, size = (*parts, *loops.runs(*parts)), loops.CHUNK
        sums = np.empty(-(-(len(system.indptr) - 1) // size))
    sums_z = np.empty_like(sums)
    return Matrix(
        lambda p, q: loops.times(p, matrix, q, sums),
        lambda inverse, x, r, p, q, *rest: loops.solve(
            x, matrix, size, inverse, r, p, q, sums, sums_z, *rest
        ),
    )


def rows(dtype: np.dtype) -> None:
    """Call the compiled loops on matrices in compressed rows."""
    indptr = np.arange(_EXAMPLE + 1, dtype=np.int32)
    _call(Csr(indptr, indptr[:-1].copy(), np.full(_EXAMPLE, 2.0, dtype)), dtype)


def stencils(dtype: np.dtype) -> None:
    """Call the compiled loops on grids."""
    _call(Stencil((1, _EXAMPLE), (1.0, 1.0)), dtype)


def _call(system: Csr | Stencil, dtype: np.dtype) -> None:
    b, x = np.ones(_EXAMPLE, dtype), np.zeros(_EXAMPLE, dtype)
    solve(system, b, x, Solve(system, 1e-3, 0.0, 3))


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


# -- The norm of the true residual -----------------------------------------------------------------


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
    x, q = x.astype(dtype), np.empty(n, dtype)
    if isinstance(system, Dense):
        q = np.einsum("ij,j->i", system.array, x, dtype=dtype)  # the matrix is not copied
    elif isinstance(system, (Stencil, Csr)):
        product(system, dtype, plain=True).times(x, q)
    elif matrix is not None:
        q = matrix @ x
    else:
        return residual
    return float(np.linalg.norm(b - q))
