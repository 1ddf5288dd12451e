"""Conjugate gradients on the CPU, for every kind of system.

After M. R. Hestenes and E. Stiefel, "Methods of conjugate gradients for solving linear systems",
J. Res. Nat. Bur. Stand. 49 (1952). CSR matrices and stencils run as whole compiled loops
(`hetero.kernels.cpu.cg`); dense matrices through BLAS, operators and preconditioners that are
functions in a loop in Python. All sums are made in float64.

For a Hermitian A, p^H A p and r^H M r are real, and so are alpha and beta. The vectors of a complex
solve are therefore updated as real ones of twice the length; only A and M see them as complex.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.host.loops import as_loops_take
from hetero.ops.krylov import cg_products
from hetero.ops.krylov.cg_products import Product
from hetero.ops.linear_systems import scaling, types
from hetero.ops.linear_systems.types import Outcome
from hetero.ops.linear_systems.vectors import on_vectors

# What iterations work on: product, loops of vectors, preconditioner, callback, the norm of r at
# which they end, and x, r and room for a product, all real.
_Iteration = tuple[Product, Any, Any, Any, float, Any, Any, Any]
_CHECK = 100_000  # iterations between looks at Ctrl-C, divided by thousands of unknowns


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
    plain: bool = False,
    product: Product | None = None,
    moves: Callable[..., object] | None = None,
) -> Outcome:
    """Solve A x = b, until norm(b - A x) <= max(rtol norm(b), atol).

    Parameters
    ----------
    system : Stencil, Csr, Dense, LinearOperator or None
        A LinearOperator if b is complex; None with a ``product``.
    b, x : (n,) ndarray of float32, float64, complex64 or complex128
        Right-hand side; start in, result out.
    preconditioner : None, (n,) ndarray or callable
        The diagonal of an approximate inverse of A, or ``apply(r, z)`` that writes z = M r. If b
        is complex, the callable takes what `cg_products.into` makes.
    plain : bool
        Use nothing that has to be compiled.
    product : Product, optional
        A times a vector in place of the system's own.
    moves : callable, optional
        ``moves(square, bound, r, z, p, rho)`` is called after each iteration in Python, with r.r,
        the norm at which they end, and what the next direction is made of. It may raise.

    Returns
    -------
    Outcome
        CONVERGED only where the true residual meets the tolerance. Where the recurrence meets it
        and the true one does not, the iteration starts anew from there; when that no longer halves
        the true residual, rounding has the last word and the status is LIMIT.
    """
    b = as_loops_take(b)
    if product is None:
        product = (cg_products.plain if plain else cg_products.compiled)(system, b.dtype)
    of_vectors = on_vectors(b.real.dtype, b.size)
    norm_b = of_vectors.norm(scaling.real_view(b))
    true_residual = functools.partial(cg_products.true_residual, system)
    given = product, of_vectors, true_residual, rtol, preconditioner
    if scaling.is_safe(norm_b, b.real.itemsize):
        return iterate(*given, b, x, atol, maxiter, callback, norm_b, moves=moves)
    run = functools.partial(iterate, *given)
    return scaling.solve(run, b, x, atol=atol, maxiter=maxiter, callback=callback)


def iterate(
    product: Product,
    of_vectors: Any,
    true_residual: Callable[..., float],
    rtol: float,
    preconditioner: Any,
    b: Any,
    x: Any,
    atol: float,
    maxiter: int,
    callback: Callable[[Any], object] | None,
    norm_b: float | None = None,
    at_zero: bool | None = None,
    moves: Callable[..., object] | None = None,
) -> Outcome:
    """Iterate, and begin anew from the true residual until that meets the tolerance.

    Parameters
    ----------
    product : Product
    of_vectors : object
        With the functions of `hetero.kernels.cpu.vectors`. b and x may be what else these take, if
        it has ``copy()`` and ``-``.
    true_residual : callable
        ``true_residual(b, x, residual, bound, norm_b)``; see `cg_products.true_residual`.
    at_zero : bool, optional
        Whether x is zero. Default: it is looked at.
    moves : callable, optional
        See `solve`; only where the iterations are made in Python.
    """
    norm = of_vectors.norm
    norm_b = norm(scaling.real_view(b)) if norm_b is None else norm_b
    bound = max(rtol * norm_b, atol)
    # The recurrence's own residual falls without end; products that vanish look like indefinite A.
    lowest = max(bound, types.least_tolerance(b.dtype) * norm_b)
    given = b, x
    if b.dtype.kind == "c":
        whole, notify = x, callback
        b, x = scaling.real_view(b), scaling.real_view(x)
        callback = notify and (lambda _: notify(whole))
    q = b.copy()
    done = 0
    before = math.inf
    compiled = product.run is not None and not callable(preconditioner)
    start = x.copy() if compiled else x
    at_zero = not np.count_nonzero(x) if at_zero is None else at_zero
    with np.errstate(all="ignore"):
        while True:
            if at_zero:
                r, residual, at_zero = b.copy(), norm_b, False
            else:
                product.times(x, q)
                r = b - q
                residual = true_residual(*given, norm(r), bound, norm_b)
            if not math.isfinite(residual):
                return Outcome(types.NOT_FINITE, done, residual)
            if residual <= bound:
                return Outcome(types.CONVERGED, done, residual)
            if done >= maxiter or residual > 0.5 * before:
                return Outcome(types.LIMIT, done, residual)
            before = residual
            on = product, of_vectors, preconditioner, callback, lowest, x, r, q
            if compiled:
                status, iterations = _compiled(on, maxiter - done)
            else:
                status, iterations = _generic(on, maxiter - done, moves)
            done += iterations
            if compiled and of_vectors.times_zero(x) != 0.0:
                # The compiled loops do not look at x; those in Python do, in each iteration.
                compiled, done, before = False, 0, math.inf
                x[...] = start
                continue
            if status in (types.INDEFINITE, types.NOT_FINITE):
                product.times(x, q)
                return Outcome(status, done, norm(b - q))


def _compiled(on: _Iteration, limit: int) -> tuple[str, int]:
    """Iterations as compiled loops, with a way back to Python now and then for Ctrl-C."""
    cpu_cg, _ = cg_products.kernels()
    product, of_vectors, inverse, callback, bound, x, r, q = on
    assert product.run is not None
    assert product.sums is not None
    statuses = {
        cpu_cg.CONVERGED: types.CONVERGED,
        cpu_cg.LIMIT: types.LIMIT,
        cpu_cg.INDEFINITE: types.INDEFINITE,
        cpu_cg.NOT_FINITE: types.NOT_FINITE,
    }
    dot, sums = of_vectors.dot, product.sums
    diagonal = np.empty(0, x.dtype) if inverse is None else inverse
    rr = dot(r, r)
    rz = rr if inverse is None else dot(r, inverse * r)
    state = np.array([rr, rz, 0.0])
    p = np.zeros(x.shape, x.dtype)
    sums_z = np.empty_like(sums)
    batch = 1 if callback else max(_CHECK // (x.size // 1000 + 1), 1)
    done = 0
    while True:
        most = min(batch, limit - done)
        code, taken = product.run(diagonal, x, r, p, q, sums, sums_z, state, bound * bound, most)
        done += taken
        if callback and taken:
            callback(x)
        if code != cpu_cg.LIMIT or done >= limit:
            return statuses[code], done


def _generic(
    on: _Iteration, limit: int, moves: Callable[..., object] | None = None
) -> tuple[str, int]:
    """Iterations in Python; see `solve` for ``moves``."""
    product, of_vectors, preconditioner, callback, bound, x, r, q = on
    z = r if preconditioner is None else r.copy()
    p = r.copy()
    times, dot, isfinite = product.times, of_vectors.dot, math.isfinite
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
        # (2) p = z + beta p, which is r at first
        if k or preconditioner is not None:
            of_vectors.scale_and_add(p, rho / previous if k else 0.0, z)
        # (3) alpha = rho / p.Ap
        times(p, q)
        curvature = dot(p, q)
        if not (isfinite(curvature) and isfinite(rho)):
            return types.NOT_FINITE, k
        if curvature <= 0.0 or rho <= 0.0:  # A, or the preconditioner
            return types.INDEFINITE, k
        # (4) r -= alpha q, x += alpha p
        square = of_vectors.step(x, r, p, q, rho / curvature)
        if not isfinite(square):
            return types.NOT_FINITE, k
        if callback:
            callback(x)
        if moves:
            moves(square, bound, r, z, p, rho)
        if math.sqrt(square) <= bound:
            return types.CONVERGED, k + 1
    return types.LIMIT, limit
