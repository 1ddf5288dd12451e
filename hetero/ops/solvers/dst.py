"""-div grad u = f directly: sine transforms along each axis, divided by eigenvalues.

After B. Buzbee, G. Golub, C. Nielson, "On direct methods for solving Poisson's equations", SIAM J.
Numer. Anal. 7 (1970), 627-656. On the CPU the transforms are SciPy's, on small grids products with
matrices; the first axis is not transformed where loops are compiled: each term of the other ones'
sines leaves a tridiagonal system along it (there, section 2), which takes less time. On a device
they are cuFFT's real FFTs of the odd extension; each pass over an axis leaves the array with its
axes rotated by one, so that the axis to come is the contiguous one and, after the last, all are
back in order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import numpy as np
from scipy.fft import dstn

from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.host import cpu
from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.cg import plan as plan_cg
from hetero.kernels.common.launch import REAL, Launch
from hetero.ops.solvers import cg_loop, systems
from hetero.ops.solvers.systems import CONVERGED, ROUNDING, Outcome, Solve, Stencil, judged
from hetero.profile.inventory import loop_threads

_KEPT_POINTS = 1 << 18  # of grids of which many solvers are kept
_ROWS = 256  # of factors that are made at a time
_DOUBLE = np.dtype(np.float64)
# Points at most, and points of an axis for the cost of its transform, on average, up to which
# transforms are products with matrices, in float64: those of fewer points are as fast as SciPy's in
# the same dtype or up to 14 times as fast, also where BLAS finds one core of several busy.
_MATRICES_UP_TO = {"float32": (1 << 14, 50.0), "float64": (1 << 16, 70.0)}
_LONGEST = 256  # of such an axis: its matrix takes 512 KiB
_FEW = 1 << 20  # points of which rounding may decide how large a small residual seems
# Roundings of f, at most, that transforms leave besides that of u: of lengths with prime factors
# below `_LARGE`, of others, and of matrices, besides some times that of u. By 176,000 random f on
# grids up to 512 x 512, 48^3 and 1 x 4000, and by 133,000 for matrices: 3 besides 4 times. With
# tridiagonal systems along the first axis less, by 34,000 f.
_TRANSFORMS, _LARGE, _MATRICES, _TIMES_U = (3.0, 6.0), 67, 16.0, 4.0

_PURPOSE = "sine transforms"
_KEPT = 4  # solvers in each context
_THREADS = 256
_TILE = 32
_CHUNK_BYTES = 24 << 20  # of extended rows: stays in the cache from one kernel to the next


def solve(devices: Sequence[Device], asked: Solve, f: Any, u: Any, dtype: Any) -> Outcome:
    """Solve A u = f directly, with one step of iterative refinement where it misses the tolerance.

    ``devices`` is empty for the CPU; of several the first solves. ``f`` and ``u``, which gets the
    result, are arrays of the stencil's shape, or contiguous buffers of ``dtype``: float32 or
    float64. ROUNDING where the residual stays above the tolerance.
    """
    if not devices:
        with np.errstate(all="ignore"):
            return _on_cpu(asked, f if f.flags.aligned else f.copy(), u)
    key = asked.system, np.dtype(dtype)
    with devices[0].active():
        make = functools.partial(Solver, devices[0], *key)
        with devices[0].storage().borrowed(_PURPOSE, key, _KEPT, make) as solver:
            return solver.solve(f, u, asked.rtol, asked.lenient)


# -- On the CPU -----------------------------------------------------------------------------------


@functools.lru_cache(maxsize=16)
def applied(stencil: Stencil, dtype: np.dtype, loops: ModuleType) -> Callable[..., np.ndarray]:
    """``apply(f, u)``, which gives u = A^-1 f: arrays of the stencil's shape and of float32 or
    float64, aligned, u C-contiguous; they may be the same.

    ``loops`` is what `systems.on_vectors` gives for them. Compiled ones solve tridiagonal systems
    along the first axis; without them that is transformed, too.
    """
    first = _first(stencil, dtype, loops)
    transform = _transform(stencil, dtype, first)
    if first == 0:
        values = functools.reduce(np.add.outer, (v.astype(dtype) for v in stencil.eigenvalues()))
    else:
        factors = _factors(stencil, dtype, loops.COLUMNS)

    def apply(f: np.ndarray, u: np.ndarray) -> np.ndarray:
        spectrum = transform(f, u)
        if first == 0:
            spectrum /= values
        else:
            loops.tridiagonal(spectrum.reshape(len(spectrum), -1), *factors)
        made = transform(spectrum, spectrum)
        if made is not u and not np.may_share_memory(made, u):
            u[...] = made
        return u

    return apply


def _first(stencil: Stencil, dtype: np.dtype, loops: ModuleType) -> int:
    """The first axis that is transformed: 1 where compiled loops solve systems along axis 0, unless
    h^2 or their factors may leave the range."""
    square, most = stencil.spacing[0] ** 2, float(np.finfo(dtype).tiny) ** -0.5
    largest = sum(4.0 * (stencil.spacing[0] / h) ** 2 for h in stencil.spacing[1:])
    fits = 1.0 / most <= square <= most and largest <= most**1.5
    return int(fits and hasattr(loops, "tridiagonal"))


def is_by_matrices(shape: tuple[int, ...], dtype: str, first: int = 1) -> bool:
    """Whether sine transforms of the axes from ``first`` on are products with matrices."""
    lengths, (points, length) = shape[first:], _MATRICES_UP_TO[dtype]
    if max(lengths) > _LONGEST or math.prod(shape) > points:
        return False
    return sum(lengths) <= length * sum(systems.transform_cost(n, "cpu") for n in lengths)


def _transform(stencil: Stencil, dtype: np.dtype, first: int) -> Callable[..., np.ndarray]:
    """``transform(v, out)``, which gives the orthonormal sine transforms, which are their own
    inverse, of v along the axes from ``first`` on: in ``out``, if SciPy can. It may be v."""
    shape = stencil.shape
    if is_by_matrices(shape, dtype.name, first):
        sines = [matrix.astype(dtype) for matrix in stencil.eigenvectors()]

        def by_matrices(v: np.ndarray, out: np.ndarray) -> np.ndarray:
            if first == 0:
                v = (sines[0] @ v.reshape(len(v), -1)).reshape(shape)
            if len(shape) == 3:
                v = sines[1] @ v
            return np.matmul(v, sines[-1], out=out)

        return by_matrices
    cores, axes = cpu.describe()["cores"], range(1, len(shape)) if first else None
    workers = loop_threads(cores) if systems.by_threads(math.prod(shape), cores) else 1

    def by_fft(v: np.ndarray, out: np.ndarray) -> np.ndarray:
        if v is not out:
            out[...] = v
        return dstn(out, 1, axes=axes, norm="ortho", workers=workers, overwrite_x=True)

    return by_fft


def _factors(stencil: Stencil, dtype: np.dtype, width: int) -> tuple[Any, ...]:
    """The LU factors of the tridiagonal systems along the first axis, in blocks, as
    `hetero.kernels.cpu.vectors.tridiagonal` takes them.

    For z = h^2 times an eigenvalue along the other axes, and 2 sinh(t / 2) = sqrt(z), row j is
    r = sinh(j t) / sinh((j + 1) t): exp(-t) to rounding where 2 j t is large. Rows from there on
    are not kept.
    """
    rows, square = stencil.shape[0], stencil.spacing[0] ** 2
    z = square * functools.reduce(np.add.outer, stencil.eigenvalues()[1:]).reshape(-1)
    above = 0.5 * z + np.sqrt(z + 0.25 * z**2)  # exp(t) - 1
    starts, nears = range(0, z.size, width), above < 1.0
    angles = [np.log1p(above[begin : begin + width]) for begin in starts]
    rounding = math.log(4.0 / np.finfo(dtype).eps)
    kept = [int(min(rows, 1.0 + rounding / (2.0 * t.min()))) for t in angles]
    parts = [np.empty((n, t.size), dtype) for n, t in zip(kept, angles, strict=True)]
    for begin, t, part in zip(starts, angles, parts, strict=True):
        of = slice(begin, begin + width)
        for first in range(0, len(part), _ROWS):  # temporaries stay in the cache
            j = np.arange(first + 1.0, min(first + _ROWS, len(part)) + 1.0)[:, None]
            below = np.expm1(-2.0 * (j + 1.0) * t) * (1.0 + above[of])
            rest = -above[of] * (1.0 + np.exp(-(2.0 * j + 1.0) * t))  # 1 - r, by below
            ratio = np.expm1(-2.0 * j * t)  # r, likewise
            part[first : first + _ROWS] = np.where(nears[of], rest, -ratio) / below
    begins = np.cumsum([0, *(part.size for part in parts)])
    together = np.concatenate([part.reshape(-1) for part in parts])
    return nears.astype(dtype), together, begins, dtype.type(square)


def residual(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[np.ndarray, float, float]:
    """f - A u, in float64 of few points, and the 2-norms of it and of f."""
    dtype = np.dtype(np.float64 if f.size <= _FEW else f.dtype)
    f, u = f.astype(dtype, copy=False), u.astype(dtype, copy=False)
    r = np.empty_like(f, order="C")
    cg_loop.product(stencil, dtype, plain=True).times(u.reshape(-1), r.reshape(-1))
    np.subtract(f, r, out=r)
    loops = systems.on_vectors(dtype, f.size)
    return r, _norm(r, loops), _norm(f, loops)


def _norm(v: np.ndarray, loops: ModuleType) -> float:
    """2-norm; infinite or 0 where squares leave float64's range."""
    return loops.norm(as_loops_take(v.reshape(-1)))


def _prepare(
    stencil: Stencil, dtype: np.dtype, lenient: bool, loops: ModuleType
) -> tuple[Callable[..., Any], float, float, float]:
    """``apply(f, u)``, and what it rounds: times norm(u), times norm(f), and at most of norm(f).

    By matrices, and on grids where transforms round more than u does, it is made in float64, which
    leaves the rounding of u alone: to refine the solution would take twice as long."""
    low, high = stencil.eigenvalue_bounds()
    is_large = any(systems.largest_factor(n + 1) >= _LARGE for n in stencil.shape)
    by_matrices = is_by_matrices(stencil.shape, dtype.name, _first(stencil, dtype, loops))
    roundings, eps = _TRANSFORMS[is_large], float(np.finfo(dtype).eps)
    if by_matrices:
        roundings = _MATRICES
    if lenient and dtype != _DOUBLE and (by_matrices or high < roundings * low):
        loops = systems.on_vectors(_DOUBLE, math.prod(stencil.shape))
        solved = applied.__wrapped__(stencil, _DOUBLE, loops)

        def in_double(f: np.ndarray, u: np.ndarray) -> None:
            double = f.astype(_DOUBLE)
            u[...] = solved(double, double)

        return in_double, eps * high, 0.0, 0.0
    high *= _TIMES_U if by_matrices else 1.0
    apply = applied.__wrapped__(stencil, dtype, loops)
    return apply, eps * high, eps * roundings, eps * (roundings + high / low)


# Factors may take as much memory as f: those of two large grids are kept.
_of_small, _of_large = (functools.lru_cache(maxsize=n)(_prepare) for n in (64, 2))


def _on_cpu(asked: Solve, f: np.ndarray, u: np.ndarray) -> Outcome:
    """Solve; the residual, which takes as long as that, is computed only if it is asked for, or
    where rounding may leave one above the tolerance: up to eps norm(A) norm(u), which is small
    enough if ``lenient``, and some roundings of f. A residual that is too large is solved for."""
    stencil, rtol = asked.system, asked.rtol
    loops = systems.on_vectors(f.dtype, f.size)
    prepare = _of_large if f.size > _KEPT_POINTS else _of_small
    apply, of_u, of_f, most = prepare(stencil, f.dtype, asked.lenient, loops)
    apply(f, u)
    of_u *= _norm(u, loops)
    enough = 0.0 < of_u < math.inf
    if most > rtol:  # norm(u) <= norm(f) / low
        whole = _norm(f, loops)
        of_f *= whole
        enough = enough and 0.0 < whole < math.inf  # neither squares nor their sum left the range
        enough = enough and (of_f + of_u <= rtol * whole or (asked.lenient and of_f <= of_u))
    if enough and not asked.measured:
        return Outcome(CONVERGED, 1, math.nan)
    r, size, whole = residual(stencil, f, u)
    of_rounding = of_u if asked.lenient and of_u < math.inf else 0.0
    if enough or not size > max(rtol * whole, of_rounding):
        return judged(size, rtol * whole, ROUNDING, 1, whole)
    better = np.empty_like(u)
    apply(r.astype(f.dtype, copy=False), better)
    u += better
    return judged(residual(stencil, f, u)[1], rtol * whole, ROUNDING, 2, whole)


# -- On a device ----------------------------------------------------------------------------------


class Solver:
    """One shape's transforms and buffers, on a device that is active in this thread."""

    def __init__(self, device: Device, stencil: Stencil, dtype: np.dtype) -> None:
        self._device, self._axes = device, stencil.shape
        self._points, size = math.prod(self._axes), np.dtype(dtype).itemsize
        name = np.dtype(dtype).name  # which takes NumPy 2 us
        self._defines = (("REAL", REAL[name]), ("THREADS", _THREADS))
        transform = load("hetero.devices.cuda.libraries").RealTransform
        self._transform = functools.cache(functools.partial(transform, device, dtype=name))
        flat = 3 - len(self._axes)
        self._shape = (*(1,) * flat, *self._axes)
        values = np.concatenate([[0.0] * flat, *stencil.eigenvalues()])
        grid = plan_cg.GridShare.of(*stencil.box)
        self._residual, self._product = plan_cg.stencil(grid, device.target, dtype=name)
        self._rounding = np.finfo(dtype).eps * stencil.eigenvalue_bounds()[1]  # over that of u
        memory = self._memory = Workspace(device, _PURPOSE)
        memory.upload(values.astype(dtype), "eigenvalues")
        memory.allocate(self._points * size, "a", "b", "r")
        memory.allocate(16 * self._residual.grid, "partial")
        self._chunks = {
            n: min(-(-_CHUNK_BYTES // (2 * (n + 2) * size * _TILE)) * _TILE, self._points // n)
            for n in self._axes
        }
        most = max(rows * 2 * (n + 2) for n, rows in self._chunks.items())
        memory.allocate(most * size, "extended")

    def _launch(self, kernel: str, items: int, *arguments: Any) -> None:
        built = self._device.build("dst.cu", kernel, self._defines)
        self._device.launch(built, -(-items // _THREADS), _THREADS, list(arguments))

    def apply(self, f: Any, u: Any, more: int = 0) -> None:
        """Enqueue u = A^-1 f, or if ``more`` u += A^-1 f; ``u`` may be ``f``."""
        buffers, last = self._memory.buffers, 2 * len(self._axes) - 1
        source = f
        for number, n in enumerate([*self._axes[::-1]] * 2):
            forward = number < len(self._axes)
            target = u if number == last else buffers["ab"[number % 2]]
            scale = -0.5 if forward else -1.0 / (n + 1)
            self._sine_transform(source, target, n, scale, more if number == last else 0)
            if number == len(self._axes) - 1:
                given = target, buffers["eigenvalues"], *self._shape
                self._launch("divide_by_eigenvalues", self._points, *given)
            source = target

    def _sine_transform(self, source: Any, target: Any, n: int, scale: float, more: int) -> None:
        everything, extended = self._points // n, self._memory.buffers["extended"]
        for first in range(0, everything, self._chunks[n]):
            rows = min(self._chunks[n], everything - first)
            self._launch("extend_odd", rows * 2 * (n + 2), source, extended, first, rows, n)
            self._transform((2 * (n + 1),), rows).forward(extended)
            tiles, given = -(-rows // _TILE) * -(-n // _TILE), (first, rows, n, everything)
            self._launch("take_transposed", tiles * _THREADS, extended, target, *given, scale, more)

    def residual(self, f: Any, u: Any) -> tuple[float, float]:
        """2-norms of f - A u, which is left in the buffer "r", and of f."""
        return self._norms(self._residual, x=u, b=f, p=self._memory.buffers["a"])

    def _norms(self, plan: Launch, **known: Any) -> tuple[float, float]:
        """The roots of a kernel's sums."""
        self._device.launch(*self._device.bound(plan, self._memory.buffers | known))
        sums = self._memory.download("partial", np.empty((plan.grid, 2)))
        with np.errstate(invalid="ignore", over="ignore"):
            first, second = np.sqrt(sums.sum(axis=0))
        return float(first), float(second)

    def solve(self, f: Any, u: Any, rtol: float, lenient: bool = False) -> Outcome:
        """See `hetero.ops.solvers.dst.solve`."""
        self.apply(f, u)
        size, whole = self.residual(f, u)
        bound, done = rtol * whole, 1
        enough = bound
        if lenient and size > bound:
            product = {"p": u, "q": self._memory.buffers["a"], "first_block": 0}
            enough = self._rounding * self._norms(self._product, **product)[1]
        if size > enough:
            self.apply(self._memory.buffers["r"], u, 1)
            (size, _), done = self.residual(f, u), 2
        return judged(size, bound, ROUNDING, done, whole)
