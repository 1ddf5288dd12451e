"""Right-hand sides whose squares no floating-point number holds, solved at another scale.

A x = b and A (s x) = s b have the same iterates but for the factor s, and a power of two costs no
digits. The norms and scalar products of a solve then stay in the middle of the range.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from hetero.ops.linear_systems.types import CONVERGED, LIMIT, NOT_FINITE, Outcome

# Norms of b that need no scaling: a residual may fall by many orders, and its square counts.
_SAFE = {4: 2.0**50, 8: 2.0**300}


def is_safe(norm: float, itemsize: int) -> bool:
    """Whether a solve may begin with a right-hand side of this norm as it is.

    The norm may be 0 or inf, where the sum of squares vanished or overflowed, or NaN; a real number
    has ``itemsize`` bytes.
    """
    most = _SAFE[itemsize]
    return 1.0 / most <= norm <= most


def solve(
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
