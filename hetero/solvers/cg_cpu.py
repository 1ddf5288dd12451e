"""Conjugate gradients on the CPU, for every kind of system.

After M. R. Hestenes and E. Stiefel, "Methods of conjugate gradients for solving linear systems",
J. Res. Nat. Bur. Stand. 49 (1952). CSR matrices and stencils run as whole compiled loops
(`hetero.kernels.cpu_cg`); dense matrices through BLAS; operators and preconditioners that are
functions in a loop in Python.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.kernels import cpu_cg, cpu_csr, cpu_vectors
from hetero.kernels.cpu_vectors import norm
from hetero.solvers import words
from hetero.solvers.words import Csr, Dense, Outcome, Stencil

_STATUS = {
    cpu_cg.CONVERGED: words.CONVERGED,
    cpu_cg.LIMIT: words.LIMIT,
    cpu_cg.INDEFINITE: words.INDEFINITE,
    cpu_cg.NOT_FINITE: words.NOT_FINITE,
}
_CHECK = 100_000  # iterations between looks at Ctrl-C, divided by thousands of unknowns


class _Numpy:
    """What `cpu_vectors` does, beside BLAS: its threads and those of compiled loops collide."""

    @staticmethod
    def dot(x: np.ndarray, y: np.ndarray) -> float:
        return float(np.dot(x, y))

    @staticmethod
    def add_scaled(y: np.ndarray, scale: float, x: np.ndarray) -> None:
        y += y.dtype.type(scale) * x

    @staticmethod
    def scale_and_add(y: np.ndarray, scale: float, x: np.ndarray) -> None:
        y *= y.dtype.type(scale)
        y += x

    @staticmethod
    def subtract_scaled(y: np.ndarray, scale: float, x: np.ndarray) -> float:
        y -= y.dtype.type(scale) * x
        return float(np.dot(y, y))


class _Loop(NamedTuple):
    """A system's parts.

    Attributes
    ----------
    times : callable
        ``times(p, q)`` writes q = A p.
    run : callable or None
        Compiled: ``run(inverse, x, r, p, q, sums, sums_z, state, bound, steps)``.
    vectors : module or class
        What works on vectors where there is no such loop.
    """

    times: Callable[[np.ndarray, np.ndarray], object]
    run: Callable[..., tuple[int, int]] | None
    vectors: Any = cpu_vectors


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
        return _Loop(lambda p, q: np.dot(system.array, p, out=q), None, _Numpy)

    def times(p: np.ndarray, q: np.ndarray) -> None:
        q[...] = system.matvec(p)

    return _Loop(times, None)


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
    b : (n,) ndarray of float32 or float64
    x : (n,) ndarray of b's dtype
        Start in, result out.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol norm(b), atol).
    maxiter : int
    preconditioner : None, (n,) ndarray or callable
        The diagonal of an approximate inverse of A, or ``apply(r, z)`` that writes z = M r.
    callback : callable, optional
        Called with x after each iteration.

    Returns
    -------
    Outcome
        CONVERGED only where the true residual meets the tolerance. Where the recurrence meets it
        and the true one does not, the iteration starts anew from there; when that no longer halves
        the true residual, rounding has the last word and the status is LIMIT.
    """
    with np.errstate(all="ignore"):
        size = norm(b)
        if size == 0.0:
            x[...] = 0.0
            return Outcome(words.CONVERGED, 0, 0.0)
        bound = max(rtol * size, atol)
        rows = b.size // max(system.shape[-1], 1) if isinstance(system, Stencil) else 0
        sums = np.empty(max(rows, -(-b.size // cpu_cg.CHUNK)))
        loop = _loop(system, b.dtype, sums)
        q = np.empty_like(b)
        done = 0
        before = math.inf
        while True:
            loop.times(x, q)
            r = b - q
            residual = norm(r)
            if not math.isfinite(residual):
                return Outcome(words.NOT_FINITE, done, residual)
            if residual <= bound:
                return Outcome(words.CONVERGED, done, residual)
            if done >= maxiter or residual > 0.5 * before:
                return Outcome(words.LIMIT, done, residual)
            before = residual
            run = _compiled if loop.run and not callable(preconditioner) else _generic
            status, steps = run(
                loop, x, r, q, sums, preconditioner, bound, maxiter - done, callback
            )
            done += steps
            if status in (words.INDEFINITE, words.NOT_FINITE):
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
    rr = norm(r) ** 2
    rz = rr if inverse is None else float((r * inverse * r).sum())
    state = np.array([rr, rz, 0.0])
    p = np.zeros_like(x)
    sums_z = np.empty_like(sums)
    batch = 1 if callback else max(_CHECK // (x.size // 1000 + 1), 1)
    done = 0
    while True:
        steps = min(batch, limit - done)
        code, taken = loop.run(diagonal, x, r, p, q, sums, sums_z, state, bound * bound, steps)
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
    vectors = loop.vectors
    z = r if preconditioner is None else np.empty_like(r)
    p = np.zeros_like(x)
    rho = 1.0
    for k in range(limit):
        # (1) z = M r, rho = r.z
        if callable(preconditioner):
            preconditioner(r, z)
        elif preconditioner is not None:
            np.multiply(preconditioner, r, out=z)
        rho, previous = vectors.dot(r, z), rho
        # (2) p = z + beta p
        vectors.scale_and_add(p, 0.0 if k == 0 else rho / previous, z)
        # (3) alpha = rho / p.Ap
        loop.times(p, q)
        curvature = vectors.dot(p, q)
        if not (math.isfinite(curvature) and math.isfinite(rho)):
            return words.NOT_FINITE, k
        if curvature <= 0.0:
            return words.INDEFINITE, k
        alpha = rho / curvature
        # (4) r -= alpha q, x += alpha p
        residual = math.sqrt(vectors.subtract_scaled(r, alpha, q))
        if not math.isfinite(residual):
            return words.NOT_FINITE, k
        vectors.add_scaled(x, alpha, p)
        if callback:
            callback(x)
        if residual <= bound:
            return words.CONVERGED, k + 1
    return words.LIMIT, limit
