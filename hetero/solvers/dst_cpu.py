"""-div grad u = f on the CPU, directly: SciPy's sine transforms, divided by eigenvalues.

After B. Buzbee, G. Golub, C. Nielson, "On direct methods for solving Poisson's equations", SIAM J.
Numer. Anal. 7 (1970), 627-656.
"""

from __future__ import annotations

import functools
import math
import os

import numpy as np
from scipy.fft import dstn, idstn

from hetero.solvers.words import CONVERGED, LIMIT, NOT_FINITE, Outcome, Stencil

_SERIAL = 1 << 14  # points below which SciPy's threads cost more than they save


def axis_eigenvalues(stencil: Stencil) -> list[np.ndarray]:
    """Eigenvalues of -d^2/dx^2 along each axis: 4 / h^2 sin^2(pi k / (2 (n + 1))), float64."""
    return [
        4.0 / h**2 * np.sin(np.pi * np.arange(1, n + 1) / (2 * (n + 1))) ** 2
        for n, h in zip(stencil.shape, stencil.spacing, strict=True)
    ]


@functools.lru_cache(maxsize=8)
def _inverse_eigenvalues(stencil: Stencil, dtype: np.dtype) -> np.ndarray:
    total = functools.reduce(np.add.outer, axis_eigenvalues(stencil))
    return (1.0 / total).astype(dtype)


def apply(stencil: Stencil, f: np.ndarray) -> np.ndarray:
    """A^-1 f; f has the stencil's shape, float32 or float64."""
    workers = 1 if f.size < _SERIAL else len(os.sched_getaffinity(0))
    spectrum = dstn(f, type=1, workers=workers)
    spectrum *= _inverse_eigenvalues(stencil, f.dtype)
    return idstn(spectrum, type=1, workers=workers, overwrite_x=True)


def residual(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> np.ndarray:
    """F - A u."""
    r = f.copy()
    for axis, h in enumerate(stencil.spacing):
        weight = f.dtype.type(1.0 / h**2)
        ahead = [slice(None)] * f.ndim
        back = list(ahead)
        ahead[axis], back[axis] = slice(1, None), slice(None, -1)
        r -= 2 * weight * u
        r[tuple(back)] += weight * u[tuple(ahead)]
        r[tuple(ahead)] += weight * u[tuple(back)]
    return r


def solve(
    stencil: Stencil, f: np.ndarray, u: np.ndarray, *, rtol: float = 0.0, refinements: int = 1
) -> Outcome:
    """Solve A u = f directly.

    Parameters
    ----------
    stencil : Stencil
    f, u : numpy.ndarray
        Right-hand side; the result. float32 or float64.
    rtol : float
        Asked of norm(f - A u) / norm(f); a solve that misses it is refined.
    refinements : int
        Most steps of iterative refinement.

    Returns
    -------
    Outcome
        LIMIT where rounding leaves the residual above the tolerance.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        u[...] = apply(stencil, f)
        r = residual(stencil, f, u)
        size, whole = (float(np.linalg.norm(v.ravel().astype(np.float64))) for v in (r, f))
        done = 1
        while size > rtol * whole and done <= refinements:
            better = u + apply(stencil, r)
            r = residual(stencil, f, better)
            refined = float(np.linalg.norm(r.ravel().astype(np.float64)))
            done += 1
            if not refined < size:
                break
            u[...] = better
            size = refined
    if not math.isfinite(size):
        return Outcome(NOT_FINITE, done, size)
    return Outcome(CONVERGED if size <= rtol * whole else LIMIT, done, size)
