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

from hetero.host import cpu, loops
from hetero.ops.linear_systems.loops import CYCLES
from hetero.ops.linear_systems.types import CONVERGED, NOT_FINITE, ROUNDING, Outcome, Stencil
from hetero.profile.inventory import loop_threads

_SERIAL = 1 << 16  # points below which SciPy's threads cost more than they save
_BLOCK = 1 << 15  # points that NumPy's passes take at a time: their temporaries stay in the cache
_REACH = 0.25  # of a residual that rounding makes: a refinement seldom leaves less of it
_TRANSFORMS = 4.5  # roundings of f, at most, that transforms leave; and less than that of u
_COMPILED = "hetero.ops.multigrid.multigrid_cpu"  # its `norms` takes a seventh of NumPy's time
_serving = loops.Serving(CYCLES, _COMPILED, __name__)


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
    workers = 1 if f.size < _SERIAL else loop_threads(cpu.describe()["cores"])
    spectrum = dstn(f, type=1, workers=workers, overwrite_x=overwrite)
    made = _remembered if f.size <= _BLOCK else _lines
    along, plane = made(stencil, f.dtype)
    for part in _blocks(f.shape):
        spectrum[part] /= np.add.outer(along[part], plane)
    return idstn(spectrum, type=1, workers=workers, overwrite_x=True)


def _lines(stencil: Stencil, dtype: np.dtype) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues along the first axis, and those of the others added up."""
    along, *across = (values.astype(dtype) for values in eigenvalues(stencil))
    return along, functools.reduce(np.add.outer, across)


_remembered = functools.lru_cache(maxsize=64)(_lines)  # of small grids


@functools.lru_cache(maxsize=64)
def _bounds(stencil: Stencil) -> tuple[float, float]:
    """About the smallest and the largest eigenvalue."""
    sizes = [(4.0 / h**2, n) for n, h in zip(stencil.shape, stencil.spacing, strict=True)]
    low = sum(weight * math.sin(math.pi / (2 * (n + 1))) ** 2 for weight, n in sizes)
    return low, sum(weight for weight, _ in sizes)


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
    flat = (p.reshape(-1) for p in pieces)  # of thin grids, too, at NumPy's full speed
    return math.sqrt(sum(float(np.sum(np.square(p, dtype=np.float64))) for p in flat))


def _length(v: np.ndarray) -> float:
    """2-norm, in v's own precision and range."""
    return math.sqrt(np.einsum("i,i", v.reshape(-1), v.reshape(-1)))


def norms(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """2-norms of f - A u and of f."""
    size = _norm(residual(stencil, f, u, part) for part in _blocks(f.shape))
    return size, _norm(f[part] for part in _blocks(f.shape))


def solve(
    stencil: Stencil,
    f: np.ndarray,
    u: np.ndarray,
    *,
    rtol: float = 0.0,
    refinements: int = 1,
    lenient: bool = False,
    measured: bool = True,
) -> Outcome:
    """Solve A u = f directly, with at most that many steps of iterative refinement.

    A solve is refined that misses ``rtol``, asked of norm(f - A u) / norm(f); not where it is eps
    or more and far below what rounding u makes of the residual, or with ``lenient`` merely below
    that. ROUNDING where the residual stays above it. f and u are float32 or float64. The residual
    is NaN where it need not be ``measured`` and is small enough by what transforms leave: its norm
    takes as long as they do.
    """
    eps = float(np.finfo(f.dtype).eps)
    with np.errstate(all="ignore"):
        low, high = _bounds(stencil)
        wide = lenient and high < _TRANSFORMS * low  # rounding u leaves less than transforms do
        u[...] = f
        solved = apply(stencil, f.astype(np.float64) if wide else u, overwrite=True)
        if not np.may_share_memory(solved, u):
            u[...] = solved
        whole, rounded = _length(f), eps * high * _length(u)
        left = _TRANSFORMS * eps * whole
        is_least = wide or (lenient and left <= rounded)
        if (is_least or left + rounded <= rtol * whole) and 0.0 < rounded < math.inf:
            refinements = 0
            if not measured:
                return Outcome(CONVERGED, 1, math.nan)
        found = _serving(f.dtype).norms if _COMPILED in sys.modules else norms
        size, whole = found(stencil, f, u)
        bound, done = rtol * whole, 1
        if rtol >= eps and bound < _REACH * size and size <= rounded < math.inf:
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
