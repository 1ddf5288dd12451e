"""Conjugate gradients on the CPU, for every kind of system.

After M. R. Hestenes and E. Stiefel, "Methods of conjugate gradients for solving linear systems",
J. Res. Nat. Bur. Stand. 49 (1952). CSR matrices and stencils run as whole compiled loops
(`hetero.kernels.cpu.cg`); dense matrices through BLAS, operators and preconditioners that are
functions in a loop in Python. All sums are made in float64.

For a Hermitian A, p^H A p and r^H M r are real, and so are alpha and beta. The vectors of a complex
solve are therefore updated as real ones of twice the length; only A and M see them as complex.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.kernels.cpu import cg as cpu_cg
from hetero.kernels.cpu import csr as cpu_csr
from hetero.kernels.cpu.vectors import dot, norm, scale_and_add, step, times_zero
from hetero.ops.linear_systems import scaling, types
from hetero.ops.linear_systems.types import Csr, Dense, Outcome, Stencil

_STATUS = {
    cpu_cg.CONVERGED: types.CONVERGED,
    cpu_cg.LIMIT: types.LIMIT,
    cpu_cg.INDEFINITE: types.INDEFINITE,
    cpu_cg.NOT_FINITE: types.NOT_FINITE,
}
_CHECK = 100_000  # iterations between looks at Ctrl-C, divided by thousands of unknowns


class _Loop(NamedTuple):
    """A system's parts.

    Attributes
    ----------
    times : callable
        ``times(p, q)`` writes q = A p.
    run : callable or None
        Compiled: ``run(inverse, x, r, p, q, sums, sums_z, state, bound, limit)``.
    """

    times: Callable[[np.ndarray, np.ndarray], object]
    run: Callable[..., tuple[int, int]] | None = None


def _box(stencil: Stencil, dtype: np.dtype) -> tuple[int, int, int, np.ndarray]:
    flat = 3 - len(stencil.shape)
    weights = [0.0] * flat + [1.0 / h**2 for h in stencil.spacing]
    return (*(1,) * flat, *stencil.shape, np.array(weights, dtype))


def apply_stencil(stencil: Stencil, p: np.ndarray) -> np.ndarray:
    """A p for a vector of the stencil's points."""
    q = np.empty_like(p)
    rows = math.prod(stencil.shape[:-1])
    cpu_cg.stencil_times(*_box(stencil, p.dtype), p, q, np.empty(rows))
    return q


def _loop(system: Any, dtype: np.dtype, sums: np.ndarray) -> _Loop:
    if isinstance(system, Stencil):
        box = _box(system, dtype)
        return _Loop(
            lambda p, q: cpu_cg.stencil_times(*box, p, q, sums),
            lambda *rest: cpu_cg.cg_stencil(*box, *rest),
        )
    if isinstance(system, Csr):
        parts = (system.indptr, system.indices, system.data)
        matrix = (*parts, *cpu_csr.runs(*parts))
        return _Loop(
            lambda p, q: cpu_cg.csr_times(*matrix, p, q, sums),
            lambda *rest: cpu_cg.cg_csr(*matrix, *rest),
        )
    if isinstance(system, Dense):
        return _Loop(lambda p, q: np.dot(system.array, p, q))
    return _Loop(into("A times a vector", system.matvec, dtype))


def into(
    name: str, function: Callable[[np.ndarray], Any], dtype: np.dtype
) -> Callable[[np.ndarray, np.ndarray], None]:
    """``f(p, q)`` that writes ``function(p)`` to q; TypeError where q cannot hold it.

    p and q are vectors of ``dtype``. If that is complex, they may be passed as real ones of twice
    the length.
    """
    is_complex = dtype.kind == "c"

    def write(p: np.ndarray, q: np.ndarray) -> None:
        if is_complex:
            p, q = p.view(dtype), q.view(dtype)
        result = function(p)
        if not is_complex and result.dtype.kind == "c":
            raise TypeError(f"{name} must be real, got dtype {result.dtype}")
        q[...] = result

    return write


def solve(
    system: Any,
    b: np.ndarray,
    x: np.ndarray,
    *,
    rtol: float,
    atol: float,
    maxiter: int,
    preconditioner: Any = None,
    callback: Callable[[np.ndarray], object] | None = None,
) -> Outcome:
    """Solve A x = b.

    Parameters
    ----------
    system : Stencil, Csr, Dense or LinearOperator
        A LinearOperator if b is complex.
    b : (n,) ndarray of float32, float64, complex64 or complex128
    x : (n,) ndarray of b's dtype
        Start in, result out.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol norm(b), atol).
    maxiter : int
    preconditioner : None, (n,) ndarray or callable
        The diagonal of an approximate inverse of A, or ``apply(r, z)`` that writes z = M r. If b
        is complex, the callable takes what `into` makes.
    callback : callable, optional
        Called with x after each iteration.

    Returns
    -------
    Outcome
        CONVERGED only where the true residual meets the tolerance. Where the recurrence meets it
        and the true one does not, the iteration starts anew from there; when that no longer halves
        the true residual, rounding has the last word and the status is LIMIT.
    """

    def run(
        b: np.ndarray, x: np.ndarray, atol: float, maxiter: int, callback: Any, norm_b: float = -1.0
    ) -> Outcome:
        norm_b = norm(scaling.real_view(b)) if norm_b < 0.0 else norm_b
        return _solve(system, b, x, norm_b, rtol, atol, maxiter, preconditioner, callback)

    norm_b = norm(scaling.real_view(b))
    if scaling.is_safe(norm_b, b.real.itemsize):
        return run(b, x, atol, maxiter, callback, norm_b)
    return scaling.solve(run, b, x, atol=atol, maxiter=maxiter, callback=callback)


def _solve(
    system: Any,
    b: np.ndarray,
    x: np.ndarray,
    norm_b: float,
    rtol: float,
    atol: float,
    maxiter: int,
    preconditioner: Any,
    callback: Callable[[np.ndarray], object] | None,
) -> Outcome:
    bound = max(rtol * norm_b, atol)
    # The recurrence's own residual falls without end; products that vanish look like indefinite A.
    lowest = max(bound, types.least_tolerance(b.dtype) * norm_b)
    rows = b.size // max(system.shape[-1], 1) if isinstance(system, Stencil) else 0
    sums = np.empty(max(rows, -(-b.size // cpu_cg.CHUNK)))
    loop = _loop(system, b.dtype, sums)
    if b.dtype.kind == "c":
        whole, notify = x, callback
        b, x = scaling.real_view(b), scaling.real_view(x)
        callback = notify and (lambda _: notify(whole))
    q = np.empty_like(b)
    done = 0
    before = math.inf
    compiled = loop.run is not None and not callable(preconditioner)
    start = x.copy() if compiled else x
    at_zero = not np.count_nonzero(x)
    with np.errstate(all="ignore"):
        while True:
            if at_zero:
                r, residual, at_zero = b.copy(), norm_b, False
            else:
                loop.times(x, q)
                r = b - q
                residual = norm(r)
            if not math.isfinite(residual):
                return Outcome(types.NOT_FINITE, done, residual)
            if residual <= bound:
                return Outcome(types.CONVERGED, done, residual)
            if done >= maxiter or residual > 0.5 * before:
                return Outcome(types.LIMIT, done, residual)
            before = residual
            run = _compiled if compiled else _generic
            status, iterations = run(
                loop, x, r, q, sums, preconditioner, lowest, maxiter - done, callback
            )
            done += iterations
            if compiled and times_zero(x) != 0.0:
                # The compiled loops do not look at x; those in Python do, in each iteration.
                compiled, done, before = False, 0, math.inf
                x[...] = start
                continue
            if status in (types.INDEFINITE, types.NOT_FINITE):
                loop.times(x, q)
                return Outcome(status, done, norm(b - q))


def _compiled(
    loop: _Loop,
    x: np.ndarray,
    r: np.ndarray,
    q: np.ndarray,
    sums: np.ndarray,
    inverse: np.ndarray | None,
    bound: float,
    limit: int,
    callback: Callable[[np.ndarray], object] | None,
) -> tuple[str, int]:
    """Iterations as compiled loops, with a way back to Python now and then for Ctrl-C."""
    assert loop.run is not None
    diagonal = np.empty(0, x.dtype) if inverse is None else inverse
    rr = dot(r, r)
    rz = rr if inverse is None else dot(r, inverse * r)
    state = np.array([rr, rz, 0.0])
    p = np.zeros_like(x)
    sums_z = np.empty_like(sums)
    batch = 1 if callback else max(_CHECK // (x.size // 1000 + 1), 1)
    done = 0
    while True:
        most = min(batch, limit - done)
        code, taken = loop.run(diagonal, x, r, p, q, sums, sums_z, state, bound * bound, most)
        done += taken
        if callback and taken:
            callback(x)
        if code != cpu_cg.LIMIT or done >= limit:
            return _STATUS[code], done


def _generic(
    loop: _Loop,
    x: np.ndarray,
    r: np.ndarray,
    q: np.ndarray,
    sums: np.ndarray,
    preconditioner: Any,
    bound: float,
    limit: int,
    callback: Callable[[np.ndarray], object] | None,
) -> tuple[str, int]:
    """Iterations in Python."""
    z = r if preconditioner is None else np.empty_like(r)
    p = np.zeros_like(x)
    times, isfinite = loop.times, math.isfinite
    square = dot(r, r)
    rho = 1.0
    for k in range(limit):
        # (1) z = M r, rho = r.z
        previous = rho
        if preconditioner is None:
            rho = square
        else:
            if callable(preconditioner):
                preconditioner(r, z)
            else:
                np.multiply(preconditioner, r, out=z)
            rho = dot(r, z)
        # (2) p = z + beta p
        scale_and_add(p, 0.0 if k == 0 else rho / previous, z)
        # (3) alpha = rho / p.Ap
        times(p, q)
        curvature = dot(p, q)
        if not (isfinite(curvature) and isfinite(rho)):
            return types.NOT_FINITE, k
        if curvature <= 0.0 or rho <= 0.0:  # A, or the preconditioner
            return types.INDEFINITE, k
        # (4) r -= alpha q, x += alpha p
        square = step(x, r, p, q, rho / curvature)
        if not isfinite(square):
            return types.NOT_FINITE, k
        if callback:
            callback(x)
        if math.sqrt(square) <= bound:
            return types.CONVERGED, k + 1
    return types.LIMIT, limit
