"""What solvers are given and what they give back; solves at another scale."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.host.loops import Family, Serving, register

CONVERGED = "converged"
LIMIT = "iteration limit"
ROUNDING = "rounding"  # it keeps the residual above the tolerance
INDEFINITE = "not positive definite"
NOT_FINITE = "not finite"

_VECTORS = register(Family("vectors", "hetero.ops.linear_systems.loops:vectors"))
# ``on_vectors(dtype)`` for float32 or float64: compiled, or NumPy's where they are not.
on_vectors = Serving(_VECTORS, "hetero.kernels.cpu.vectors", "hetero.kernels.cpu.vectors_numpy")
# Norms of b that need no scaling: a residual may fall by many orders, and its square counts.
_SAFE = {4: 2.0**50, 8: 2.0**300}


class Stencil(NamedTuple):
    """-div grad on a box of interior points, Dirichlet: 5 points in 2-D, 7 in 3-D.

    (A u)_i = sum over axes of (2 u_i - u_before - u_after) / spacing**2, with zero outside. Arrays
    are C-contiguous.
    """

    shape: tuple[int, ...]  # points of each axis, (ny, nx) or (nz, ny, nx)
    spacing: tuple[float, ...]  # distance of neighbours, per axis

    @property
    def box(self) -> tuple[tuple[int, int, int], tuple[float, float, float]]:
        """Extents and 1 / spacing^2 of rows, lines and columns; 2-D has one line, of weight 0."""
        weights = [1.0 / h**2 for h in self.spacing]
        flat = 3 - len(weights)
        return (
            (self.shape[0], *(1,) * flat, *self.shape[1:]),
            (weights[0], *(0.0,) * flat, *weights[1:]),
        )


def checked_spacing(spacing: Any, ndim: int) -> tuple[float, ...]:
    """Distances of neighbouring points, one per axis; ValueError where they are none."""
    if isinstance(spacing, float):
        distances = (float(spacing),) * ndim
    else:
        try:
            numbers = np.asarray(spacing, float)
        except (TypeError, ValueError):
            numbers = None
        if numbers is None or numbers.shape not in ((), (ndim,)):
            raise ValueError(f"spacing must be one number or {ndim}, got {spacing!r}")
        distances = tuple(map(float, np.broadcast_to(numbers, (ndim,))))
    if not all(0.0 < h < math.inf for h in distances):
        raise ValueError(f"spacing must be positive, got {spacing!r}")
    return distances


class Csr(NamedTuple):
    """A square sparse matrix in compressed rows; index arrays are int32, or int64 if they must."""

    indptr: np.ndarray
    indices: np.ndarray
    data: np.ndarray


class Dense(NamedTuple):
    """A dense n x n matrix."""

    array: Any  # numpy.ndarray or device buffer
    n: int
    strides: tuple[int, int]  # of rows and of columns, in elements
    owner: Any = None  # of a buffer that lives no longer than this


def unknowns(system: Stencil | Csr | Dense) -> int:
    """How many unknowns a system has."""
    if isinstance(system, Stencil):
        return math.prod(system.shape)
    return system.n if isinstance(system, Dense) else len(system.indptr) - 1


class Outcome(NamedTuple):
    """How a solve ended."""

    status: str  # CONVERGED, LIMIT, ROUNDING, INDEFINITE or NOT_FINITE
    iterations: int  # iterations, sweeps or cycles done
    residual: float  # 2-norm of the true residual b - A x of the x that is returned
    right_side: float | None = None  # 2-norm of b; None from a solver that did not need it


def least_tolerance(dtype: Any) -> float:
    """What stands for a relative tolerance of 0: a thousandth of rounding."""
    return float(np.finfo(dtype).eps) / 1024.0


def real_dtype(**dtypes: Any) -> np.dtype:
    """float32 if all dtypes fit in it, else float64; ValueError for what is not real."""
    for name, dtype in dtypes.items():
        if np.dtype(dtype).kind not in "fiub":
            raise ValueError(f"{name} must be real, got dtype {np.dtype(dtype)}")
    return number_dtype(**dtypes)


def number_dtype(**dtypes: Any) -> np.dtype:
    """`real_dtype`, or complex64 or complex128 where one of them is complex."""
    for name, dtype in dtypes.items():
        if np.dtype(dtype).kind not in "fiubc":
            raise ValueError(f"{name} must be real or complex, got dtype {np.dtype(dtype)}")
    given = [np.dtype(dtype) for dtype in dtypes.values()]
    small = all(dtype.char in "efF" for dtype in given)
    is_complex = any(dtype.kind == "c" for dtype in given)
    return np.dtype(("fd", "FD")[is_complex][not small])


def is_safe(norm: float, itemsize: int) -> bool:
    """Whether a solve may begin with a right-hand side of this norm as it is.

    The norm may be 0 or inf, where the sum of squares vanished or overflowed, or NaN; a real number
    has ``itemsize`` bytes.
    """
    most = _SAFE[itemsize]
    return 1.0 / most <= norm <= most


def scaled(
    run: Callable[..., Outcome],
    b: np.ndarray,
    x: np.ndarray,
    *,
    atol: float,
    maxiter: int,
    callback: Callable[[np.ndarray], object] | None = None,
    most: Callable[[float], float] = float,
) -> Outcome:
    """Solve A x = b with the largest element of b brought to about 1 by a power of two.

    A x = b and A (s x) = s b have the same iterates but for the factor s, and a power of two costs
    no digits. The norms and scalar products of a solve then stay in the middle of the range.

    ``run(b, x, atol, maxiter, callback)`` solves from x, which it overwrites, and gives an
    `Outcome`. A start next to which b vanishes is taken for zero. ``callback`` gets x at its own
    scale; CONVERGED only where x itself, rounded to that, meets the tolerance. ``most`` gives the
    largest number of all processes that hold parts of b and x.
    """
    with np.errstate(all="ignore"):
        largest = most(np.abs(real_view(b)).max(initial=0.0))
        if largest == 0.0:
            x[...] = 0.0
            return Outcome(CONVERGED, 0, 0.0)
        if not math.isfinite(largest):
            return Outcome(NOT_FINITE, 0, math.nan)
        exponent = math.frexp(largest)[1]
        rhs, y = times_power(b, -exponent), times_power(x, -exponent)
        if not most(np.abs(real_view(y)).max(initial=0.0)) <= _SAFE[real_view(y).itemsize]:
            y[...] = 0.0
        tolerance = float(np.ldexp(atol, -exponent))
        report = None if callback is None else lambda y: callback(times_power(y, exponent))
        start = y.copy()
        outcome = run(rhs, y, tolerance, maxiter, report)
        result = times_power(y, exponent)
        if most(not np.isfinite(result).all()):
            outcome = run(rhs, start, tolerance, 0, None)._replace(
                status=NOT_FINITE, iterations=outcome.iterations
            )
        elif outcome.iterations or outcome.status == CONVERGED:
            x[...] = result
            rounded = times_power(result, -exponent)
            if most((rounded != y).any()):
                again = run(rhs, rounded, tolerance, 0, None)
                status = LIMIT if outcome.status == CONVERGED != again.status else outcome.status
                outcome = outcome._replace(status=status, residual=again.residual)
        residual = float(np.ldexp(outcome.residual, exponent))
        whole = outcome.right_side and float(np.ldexp(outcome.right_side, exponent))
        return outcome._replace(residual=residual, right_side=whole)


def real_view(x: np.ndarray) -> np.ndarray:
    """The real and imaginary parts of a contiguous complex vector in turn; a real one itself."""
    return x.view(x.real.dtype) if x.dtype.kind == "c" else x


def times_power(x: np.ndarray, exponent: int) -> np.ndarray:
    """A copy of x times 2**exponent."""
    return np.ldexp(real_view(x), exponent).view(x.dtype)
