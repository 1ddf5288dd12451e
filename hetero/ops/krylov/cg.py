"""Conjugate gradients, on the CPU or for whatever vectors can be added and multiplied.

The method is that of Y. Saad, "Iterative methods for sparse linear systems", 2nd edition, algorithm
9.1, after M. R. Hestenes and E. Stiefel, J. Res. Nat. Bur. Stand. 49 (1952):

    1. r = b - A x,  z = M r,  p = z
    2. for j = 0, 1, ..., until convergence
    3.     alpha = (r, z) / (A p, p)
    4.     x = x + alpha p
    5.     r = r - alpha A p
    6.     z = M r
    7.     beta = (r, z) / (r, z) of before
    8.     p = z + beta p

M is an approximate inverse of A. With M = 1, so that z is r, this is his algorithm 6.18.

`_iterations` are these steps. CSR matrices and stencils run them as whole compiled loops
(`hetero.kernels.cpu.cg`); what a matrix is here, `matrices` tells. All sums are made in float64.

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
from hetero.ops.krylov.matrices import Matrix, compiled, true_residual, uncompiled
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    INDEFINITE,
    LIMIT,
    NOT_FINITE,
    Outcome,
    Solve,
    is_safe,
    least_tolerance,
    on_vectors,
    real_view,
    scaled,
)

_STATUS = (CONVERGED, LIMIT, INDEFINITE, NOT_FINITE)  # by what compiled loops end with
_CHECK = 100_000  # iterations between looks at Ctrl-C, divided by thousands of unknowns


def solve(
    system: Any,
    b: np.ndarray,
    x: np.ndarray,
    asked: Solve,
    M: Any = None,
    *,
    plain: bool = False,
    moves: Callable[..., object] | None = None,
) -> Outcome:
    """Solve A x = b, until norm(b - A x) <= max(rtol norm(b), atol); see `restarted`.

    Parameters
    ----------
    system : Stencil, Csr, Dense, LinearOperator or Matrix
        A LinearOperator if b is complex.
    b, x : (n,) ndarray of float32, float64, complex64 or complex128
        Right-hand side; start in, result out.
    M : None, (n,) ndarray or callable
        The diagonal of an approximate inverse of A, or ``apply(r, z)`` that writes z = M r. If b
        is complex, the callable takes what `matrices.into` makes.
    plain : bool
        Use nothing that has to be compiled.
    moves : callable, optional
        ``moves(square, bound, r, p)`` is called before each iteration in Python but the first, with
        r.r, the norm at which they end, the residual and the direction. It may raise.
    """
    b = as_loops_take(b)
    A = (uncompiled if plain else compiled)(system, b.dtype)
    of_vectors = on_vectors(b.real.dtype, b.size)
    norm_b = of_vectors.norm(real_view(b))
    given = A, of_vectors, functools.partial(true_residual, system), M
    if is_safe(norm_b, b.real.itemsize):
        return iterate(*given, b, x, asked, norm_b, moves=moves)
    return scaled(functools.partial(iterate, *given), b, x, asked)


def restarted(
    residual: Callable[[], float],
    iterate: Callable[[int], tuple[str, int]],
    bound: float,
    maxiter: int,
    *,
    once_more: bool = False,
) -> tuple[str, int, float]:
    """Iterate, and begin anew from the true residual until that meets the bound; how it ended, the
    iterations done, and the norm of the true residual.

    The recurrence's own residual falls without end, the true one does not: when a new start no
    longer halves that, rounding has the last word, and the status is LIMIT. ``residual()`` computes
    r = b - A x, and gives its norm; ``iterate(limit)`` goes on from there until the recurrence's
    residual is small enough. With ``once_more`` the first iterations need not halve anything.
    """
    status, done, before = CONVERGED, 0, math.inf
    while True:
        norm = residual()
        if not math.isfinite(norm):
            return NOT_FINITE, done, norm
        if norm <= bound:
            return CONVERGED, done, norm
        if status in (INDEFINITE, NOT_FINITE):
            return status, done, norm
        if done >= maxiter or norm > 0.5 * before:
            return LIMIT, done, norm
        status, count = iterate(maxiter - done)
        done, before, once_more = done + count, math.inf if once_more else norm, False


def iterate(
    A: Matrix,
    of_vectors: Any,
    true_residual: Callable[..., float],
    M: Any,
    b: Any,
    x: Any,
    asked: Solve,
    norm_b: float | None = None,
    at_zero: bool | None = None,
    moves: Callable[..., object] | None = None,
) -> Outcome:
    """Solve for a right-hand side; its square neither overflows nor vanishes.

    ``of_vectors`` has the functions of `hetero.kernels.cpu.vectors`. b and x may be what else these
    take, if it has ``copy()`` and ``-``. ``true_residual(b, x, residual, bound, norm_b)``: see the
    function of this name. ``at_zero``: whether x is zero; by default it is looked at.
    """
    norm, callback = of_vectors.norm, asked.callback
    norm_b = norm(real_view(b)) if norm_b is None else norm_b
    bound = max(asked.rtol * norm_b, asked.atol)
    # Products that vanish look like an indefinite A.
    lowest = max(bound, least_tolerance(b.dtype) * norm_b)
    given = b, x
    if b.dtype.kind == "c":
        whole, notify = x, callback
        b, x = real_view(b), real_view(x)
        callback = notify and (lambda _: notify(whole))
    on = A, of_vectors, M, lowest, callback
    q = r = b.copy()
    at_zero = not np.count_nonzero(x) if at_zero is None else at_zero

    def residual() -> float:
        nonlocal r, at_zero
        if at_zero:
            r, at_zero = b.copy(), False
            return norm_b
        A.times(x, q)
        r = b - q
        return true_residual(*given, norm(r), bound, norm_b)

    def steps(limit: int) -> tuple[str, int]:
        nonlocal r
        if A.run is not None and not callable(M):
            start = x.copy()
            ended = _in_loops(on, x, r, q, limit)
            # The compiled loops do not look at x; those in Python do, in each iteration.
            if of_vectors.times_zero(x) == 0.0:
                return ended
            x[...] = start
            A.times(x, q)
            r = b - q
        return _iterations(on, x, r, q, limit, moves)

    with np.errstate(all="ignore"):
        return Outcome(*restarted(residual, steps, bound, asked.maxiter))


def _iterations(
    on: tuple[Any, ...], x: Any, r: Any, q: Any, limit: int, moves: Any = None
) -> tuple[str, int]:
    """The steps of the algorithm from r = b - A x, with q = A p; how it ended, and after how many
    iterations."""
    A, of_vectors, M, bound, callback = on
    dot, isfinite = of_vectors.dot, math.isfinite
    # 1. z = M r, p = z
    z = _times(M, r, r if M is None else r.copy())
    p, rho = z.copy(), dot(r, z)
    # 2. for j = 0, 1, ..., until convergence
    for j in range(limit):
        # 3. alpha = (r, z) / (A p, p)
        A.times(p, q)
        curvature = dot(p, q)
        if not (isfinite(curvature) and isfinite(rho)):
            return NOT_FINITE, j
        if curvature <= 0.0 or rho <= 0.0:  # A, or M
            return INDEFINITE, j
        # 4., 5. x = x + alpha p, r = r - alpha A p
        square = of_vectors.step(x, r, p, q, rho / curvature)
        if not isfinite(square):
            return NOT_FINITE, j
        if callback:
            callback(x)
        if math.sqrt(square) <= bound:
            return CONVERGED, j + 1
        if j + 1 == limit:
            break
        # 6., 7. z = M r, beta = (r, z) / (r, z) of before
        before, rho = rho, square if M is None else dot(r, _times(M, r, z))
        # 8. p = z + beta p
        of_vectors.scale_and_add(p, rho / before, z)
        if moves:
            moves(square, bound, r, p)
    return LIMIT, limit


def _times(M: Any, r: Any, z: Any) -> Any:
    """z = M r."""
    if callable(M):
        M(r, z)
    elif M is not None:
        np.multiply(M, r, out=z)
    return z


def _in_loops(on: tuple[Any, ...], x: Any, r: Any, q: Any, limit: int) -> tuple[str, int]:
    """`_iterations` as compiled loops, with a way back to Python now and then for Ctrl-C."""
    A, of_vectors, inverse, bound, callback = on
    square = of_vectors.dot(r, r)
    rho = square if inverse is None else of_vectors.dot(r, inverse * r)
    state, p, sums_z = np.array([square, rho, 0.0]), np.zeros(x.shape, x.dtype), A.sums.copy()
    diagonal = np.empty(0, x.dtype) if inverse is None else inverse
    batch = 1 if callback else max(_CHECK // (x.size // 1000 + 1), 1)
    done = 0
    while True:
        most = min(batch, limit - done)
        code, taken = A.run(diagonal, x, r, p, q, A.sums, sums_z, state, bound * bound, most)
        done += taken
        if callback and taken:
            callback(x)
        if _STATUS[code] != LIMIT or done >= limit:
            return _STATUS[code], done
