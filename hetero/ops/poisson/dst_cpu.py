"""-div grad u = f on the CPU, directly: SciPy's sine transforms, divided by eigenvalues.

After B. Buzbee, G. Golub, C. Nielson, "On direct methods for solving Poisson's equations", SIAM J.
Numer. Anal. 7 (1970), 627-656.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Iterator

import numpy as np
from scipy.fft import dstn, idstn

from hetero.devices import cpu
from hetero.host.compiled import loop_compiler, loops
from hetero.ops.linear_systems.loops import CYCLES
from hetero.ops.linear_systems.types import CONVERGED, NOT_FINITE, ROUNDING, Outcome, Stencil

_SERIAL = 1 << 14  # points below which SciPy's threads cost more than they save
_BLOCK = 1 << 15  # points that NumPy's passes take at a time: their temporaries stay in the cache
_REACH = 0.25  # of a residual that rounding makes: a refinement seldom leaves less of it
_WORTH_LOADING = 1 << 23  # points solved for: loading Numba takes no longer than they did
_COMPILED = "hetero.ops.multigrid.multigrid_cpu"  # its `norms` takes a seventh of NumPy's time
_serving = loop_compiler.Serving(CYCLES, _COMPILED, __name__)
_state = {"points": 0}


def eigenvalues(stencil: Stencil) -> list[np.ndarray]:
    """Eigenvalues of -d^2/dx^2 along each axis: 4 / h^2 sin^2(pi k / (2 (n + 1))), float64."""
    found = []
    for n, h in zip(stencil.shape, stencil.spacing, strict=True):
        values = np.arange(1, n + 1, dtype=np.float64)  # in place: an axis may be all there is
        values *= np.pi / (2 * (n + 1))
        np.sin(values, out=values)
        values *= values
        values *= 4.0 / h**2
        found.append(values)
    return found


def apply(stencil: Stencil, f: np.ndarray, *, overwrite: bool = False) -> np.ndarray:
    """A^-1 f; f has the stencil's shape, float32 or float64, and may be overwritten."""
    workers = 1 if f.size < _SERIAL else cpu.describe()["cores"]
    spectrum = dstn(f, type=1, workers=workers, overwrite_x=overwrite)
    along, *across = (values.astype(f.dtype) for values in eigenvalues(stencil))
    plane = functools.reduce(np.add.outer, across)
    for part in _blocks(f.shape):
        spectrum[part] /= np.add.outer(along[part], plane)
    return idstn(spectrum, type=1, workers=workers, overwrite_x=True)


def _blocks(shape: tuple[int, ...]) -> Iterator[slice]:
    """The first axis in pieces."""
    planes = max(_BLOCK // math.prod(shape[1:]), 1)
    for first in range(0, shape[0], planes):
        yield slice(first, min(first + planes, shape[0]))


def residual(stencil: Stencil, f: np.ndarray, u: np.ndarray, part: slice) -> np.ndarray:
    """f - A u in a piece of the first axis."""
    here = u[part]
    weights = [f.dtype.type(1.0 / h**2) for h in stencil.spacing]
    r = f[part] - 2 * sum(weights) * here
    first, end = part.start, part.stop
    before = max(first, 1)
    r[before - first :] += weights[0] * u[before - 1 : end - 1]
    after = min(end, len(u) - 1)
    r[: after - first] += weights[0] * u[first + 1 : after + 1]
    for axis in range(1, f.ndim):
        low, high = [slice(None)] * f.ndim, [slice(None)] * f.ndim
        low[axis], high[axis] = slice(None, -1), slice(1, None)
        r[tuple(low)] += weights[axis] * here[tuple(high)]
        r[tuple(high)] += weights[axis] * here[tuple(low)]
    return r


def _norm(pieces: Iterator[np.ndarray]) -> float:
    return math.sqrt(sum(float(np.sum(np.square(p, dtype=np.float64))) for p in pieces))


def norms(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """2-norms of f - A u and of f."""
    size = _norm(residual(stencil, f, u, part) for part in _blocks(f.shape))
    return size, _norm(f[part] for part in _blocks(f.shape))


def solve(
    stencil: Stencil, f: np.ndarray, u: np.ndarray, *, rtol: float = 0.0, refinements: int = 1
) -> Outcome:
    """Solve A u = f directly, with at most that many steps of iterative refinement.

    A solve is refined that misses ``rtol``, asked of norm(f - A u) / norm(f); not where it is eps
    or more and far below what rounding u makes of the residual. ROUNDING where the residual stays
    above it. f and u are float32 or float64.
    """
    eps = float(np.finfo(f.dtype).eps)
    with np.errstate(all="ignore"):
        u[...] = f
        solved = apply(stencil, u, overwrite=True)
        if not np.may_share_memory(solved, u):
            u[...] = solved
        _state["points"] += f.size
        loads = _state["points"] > _WORTH_LOADING and loops.can_be_made()
        found = _serving(f.dtype).norms if loads or _COMPILED in sys.modules else norms
        size, whole = found(stencil, f, u)
        bound, done = rtol * whole, 1
        if rtol >= eps and bound < _REACH * size:
            whole_u = math.sqrt(np.einsum("i,i", u.reshape(-1), u.reshape(-1)))
            if size <= eps * sum(4.0 / h**2 for h in stencil.spacing) * whole_u < math.inf:
                refinements = 0
        while size > bound and done <= refinements:
            better = apply(stencil, residual(stencil, f, u, slice(0, len(f))), overwrite=True)
            better += u
            refined, _ = found(stencil, f, better)
            done += 1
            if not refined < size:
                break
            u[...] = better
            size = refined
    if not math.isfinite(size):
        return Outcome(NOT_FINITE, done, size, whole)
    return Outcome(CONVERGED if size <= bound else ROUNDING, done, size, whole)
