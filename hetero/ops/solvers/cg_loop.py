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

`_iterations` are these steps, for a `Matrix` with ``times`` and vectors with a scalar product,
of this process or of several ranks. CSR matrices and stencils run them as whole compiled loops
(`hetero.kernels.cpu.cg`); devices run them as launches (`cg_device`). Sums are made in float64.

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
from hetero.ops.solvers.systems import Csr, Dense, Outcome, Solve, Stencil, on_vectors, scaled

_STATUS = (
    systems.CONVERGED,
    systems.LIMIT,
    systems.INDEFINITE,
    systems.NOT_FINITE,
)  # by what compiled loops end with
_CHECK = 100_000  # iterations between looks at Ctrl-C, divided by thousands of unknowns
Times = Callable[[np.ndarray, np.ndarray], object]
_ROUNDINGS = 64.0  # times eps norm(b): for a larger tolerance float32 is exact enough
_LARGEST_CHECKED = 1 << 20  # unknowns; of more, the errors of single ones do not add up to much
_AT_A_TIME = 1 << 20  # elements of a dense matrix that are converted to float64
_EXAMPLE = 64  # unknowns of a system that calls compiled loops


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
        is complex, the callable takes what `into` makes.
    plain : bool
        Use nothing that has to be compiled.
    moves : callable, optional
        ``moves(square, bound, r, p)`` is called before each iteration in Python but the first, with
        r.r, the norm at which they end, the residual and the direction. It may raise.
    """
    b = as_loops_take(b)
    A = (uncompiled if plain else compiled)(system, b.dtype)
    of_vectors = on_vectors(b.real.dtype, b.size)
    norm_b = of_vectors.norm(systems.real_view(b))
    given = A, of_vectors, functools.partial(true_residual, system), M
    if systems.is_safe(norm_b, b.real.itemsize):
        return iterate(*given, b, x, asked, norm_b, moves=moves)
    return scaled(functools.partial(iterate, *given), b, x, asked)


def restarted(
    residual: Callable[[float], float],
    iterate: Callable[[int, float], tuple[str, int]],
    asked: Solve,
    norm_b: float,
    dtype: np.dtype,
    *,
    once_more: bool = False,
) -> Outcome:
    """Iterate, and begin anew from the true residual until that meets the tolerance.

    The recurrence's own residual falls without end, the true one does not: when a new start no
    longer halves that, rounding has the last word, and the status is LIMIT. ``residual(bound)``
    computes r = b - A x, and gives its norm, which is to be no more than ``bound``;
    ``iterate(limit, lowest)`` goes on from there until the recurrence's residual is that low. With
    ``once_more`` the first iterations need not halve anything.
    """
    bound = max(asked.rtol * norm_b, asked.atol)
    # Products that vanish look like an indefinite A.
    lowest = max(bound, systems.least_tolerance(dtype) * norm_b)
    status, done, before = systems.CONVERGED, 0, math.inf
    while True:
        norm = residual(bound)
        if not math.isfinite(norm):
            return Outcome(systems.NOT_FINITE, done, norm)
        if norm <= bound:
            return Outcome(systems.CONVERGED, done, norm)
        if status in (systems.INDEFINITE, systems.NOT_FINITE):
            return Outcome(status, done, norm)
        if done >= asked.maxiter or norm > 0.5 * before:
            return Outcome(systems.LIMIT, done, norm)
        status, count = iterate(asked.maxiter - done, lowest)
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
    norm_b = norm(systems.real_view(b)) if norm_b is None else norm_b
    given = b, x
    if b.dtype.kind == "c":
        whole, notify = x, callback
        b, x = systems.real_view(b), systems.real_view(x)
        callback = notify and (lambda _: notify(whole))
    inverse = M if isinstance(M, np.ndarray) else None
    M = M if inverse is None else lambda r, z: np.multiply(inverse, r, out=z)
    q = r = b.copy()
    at_zero = not np.count_nonzero(x) if at_zero is None else at_zero

    def residual(bound: float) -> float:
        nonlocal r, at_zero
        if at_zero:
            r, at_zero = b.copy(), False
            return norm_b
        A.times(x, q)
        r = b - q
        return true_residual(*given, norm(r), bound, norm_b)

    def steps(limit: int, lowest: float) -> tuple[str, int]:
        nonlocal r
        on = A, of_vectors, lowest, callback
        if A.run is not None and (M is None or inverse is not None):
            start = x.copy()
            ended = _in_loops(on, inverse, x, r, q, limit)
            # The compiled loops do not look at x; those in Python do, in each iteration.
            if of_vectors.times_zero(x) == 0.0:
                return ended
            x[...] = start
            A.times(x, q)
            r = b - q
        return _iterations(on, M, x, r, q, limit, moves)

    with np.errstate(all="ignore"):
        return restarted(residual, steps, asked, norm_b, b.dtype)


def _iterations(
    on: tuple[Any, ...], M: Any, x: Any, r: Any, q: Any, limit: int, moves: Any = None
) -> tuple[str, int]:
    """The steps of the algorithm from r = b - A x, with q = A p; how it ended, and after how many
    iterations."""
    A, of_vectors, bound, callback = on
    dot, isfinite = of_vectors.dot, math.isfinite
    # 1. z = M r, p = z
    z = r if M is None else r.copy()
    if M is not None:
        M(r, z)
    p, rho = z.copy(), dot(r, z)
    # 2. for j = 0, 1, ..., until convergence
    for j in range(limit):
        # 3. alpha = (r, z) / (A p, p)
        A.times(p, q)
        curvature = dot(p, q)
        if not (isfinite(curvature) and isfinite(rho)):
            return systems.NOT_FINITE, j
        if curvature <= 0.0 or rho <= 0.0:  # A, or M
            return systems.INDEFINITE, j
        # 4., 5. x = x + alpha p, r = r - alpha A p
        square = of_vectors.step(x, r, p, q, rho / curvature)
        if not isfinite(square):
            return systems.NOT_FINITE, j
        if callback:
            callback(x)
        if math.sqrt(square) <= bound:
            return systems.CONVERGED, j + 1
        if j + 1 == limit:
            break
        # 6., 7. z = M r, beta = (r, z) / (r, z) of before
        before, rho = rho, square
        if M is not None:
            M(r, z)
            rho = dot(r, z)
        # 8. p = z + beta p
        of_vectors.scale_and_add(p, rho / before, z)
        if moves:
            moves(square, bound, r, p)
    return systems.LIMIT, limit


def _in_loops(
    on: tuple[Any, ...], inverse: Any, x: Any, r: Any, q: Any, limit: int
) -> tuple[str, int]:
    """`_iterations` as compiled loops, with a way back to Python now and then for Ctrl-C."""
    A, of_vectors, bound, callback = on
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
        if _STATUS[code] != systems.LIMIT or done >= limit:
            return _STATUS[code], done


def rows(dtype: np.dtype) -> None:
    """Call the compiled loops on matrices in compressed rows."""
    chunk = load("hetero.kernels.cpu.csr").CHUNK
    for n in (_EXAMPLE, chunk):  # in which runs of rows are looked for
        indptr = np.arange(n + 1, dtype=np.int32)
        _call(Csr(indptr, indptr[:-1].copy(), np.full(n, 2.0, dtype)), n, dtype)


def stencils(dtype: np.dtype) -> None:
    """Call the compiled loops on grids."""
    _call(Stencil((1, _EXAMPLE), (1.0, 1.0)), _EXAMPLE, dtype)


def _call(system: Csr | Stencil, n: int, dtype: np.dtype) -> None:
    for start in (0.0, 1.0):  # from another start than 0 the residual is computed
        solve(system, np.ones(n, dtype), np.full(n, start, dtype), Solve(system, 1e-3, 0.0, 3))
