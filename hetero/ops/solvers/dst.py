"""-div grad u = f directly: sine transforms along each axis, divided by eigenvalues.

After B. Buzbee, G. Golub, C. Nielson, "On direct methods for solving Poisson's equations", SIAM J.
Numer. Anal. 7 (1970), 627-656. On the CPU the transforms are SciPy's. On a device they are cuFFT's
real FFTs of the odd extension; each pass over an axis leaves the array with its axes rotated by
one, so that the axis to come is the contiguous one and, after the last, all are back in order.
"""

from __future__ import annotations

import functools
import math
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.fft import dstn, idstn

from hetero.devices.base import Device
from hetero.devices.storage import Workspace
from hetero.host import cpu, loops
from hetero.imports import load
from hetero.kernels.common.launch import REAL
from hetero.ops.solvers import cg_products, multigrid
from hetero.ops.solvers.systems import CONVERGED, CYCLES, ROUNDING, Outcome, Solve, Stencil, judged
from hetero.profile.inventory import loop_threads

_DOUBLE = np.dtype(np.float64)
_SERIAL = 1 << 16  # points below which SciPy's threads cost more than they save
_DOT = 1 << 13  # elements, at most, of which BLAS adds up squares: for more it would start threads
_BLOCK = 1 << 15  # points that NumPy divides at a time: temporaries stay in the cache
_REACH = 0.25  # of a residual that rounding makes: a refinement seldom leaves less of it
_FEW = 256  # points that are solved in float64 as fast as in float32
_TRANSFORMS = 4.5  # roundings of f, at most, that transforms leave; and less than that of u
_COMPILED = "hetero.kernels.cpu.multigrid"  # with which norms take a seventh of NumPy's time
_bounds = functools.lru_cache(maxsize=64)(Stencil.eigenvalue_bounds)

_PURPOSE = "sine transforms"
_KEPT = 4  # solvers in each context
_THREADS = 256
_TILE = 32
_CHUNK_BYTES = 24 << 20  # of extended rows: stays in the cache from one kernel to the next
_SUM_BLOCKS = 512


def solve(devices: Sequence[Device], asked: Solve, f: Any, u: Any, dtype: Any) -> Outcome:
    """Solve A u = f directly, with one step of iterative refinement where it misses the tolerance.

    ``devices`` is empty for the CPU; of several the first solves. ``f`` and ``u``, which gets the
    result, are arrays of the stencil's shape, or contiguous buffers of ``dtype``: float32 or
    float64. ROUNDING where the residual stays above the tolerance.
    """
    if not devices:
        size, whole, done = _on_cpu(asked, f, u)
    else:
        key = asked.system, np.dtype(dtype)
        with devices[0].active():
            make = functools.partial(Solver, devices[0], *key)
            solver = devices[0].storage().get(_PURPOSE, key, _KEPT, make)
            size, whole, done = solver.solve(f, u, asked.rtol)
    if size is None:
        return Outcome(CONVERGED, done, math.nan)
    return judged(size, asked.rtol * whole, ROUNDING, done, whole)


@functools.lru_cache(maxsize=64)
def applied(stencil: Stencil, dtype: np.dtype) -> Callable[[np.ndarray, np.ndarray], np.ndarray]:
    """``apply(f, u)``, which gives u = A^-1 f: arrays of the stencil's shape and of float32 or
    float64, aligned, u C-contiguous; they may be the same."""
    shape = stencil.shape
    points = math.prod(shape)
    workers = 1 if points < _SERIAL else loop_threads(cpu.describe()["cores"])
    lines = [values.astype(dtype) for values in stencil.eigenvalues()]
    if points <= _BLOCK:
        sums = functools.reduce(np.add.outer, lines[1:])
        sums = np.add.outer(lines[0], sums)

    def divide(u: np.ndarray) -> None:
        """Divide by the sums of eigenvalues: these are made for a block of rows at a time."""
        if points <= _BLOCK:
            u /= sums
            return
        plane = functools.reduce(np.add.outer, lines[1:])
        rows = max(_BLOCK // plane.size, 1)
        for first in range(0, shape[0], rows):
            part = slice(first, first + rows)
            u[part] /= np.add.outer(lines[0][part], plane)

    def apply(f: np.ndarray, u: np.ndarray) -> np.ndarray:
        u[...] = f
        spectrum = dstn(u, 1, workers=workers, overwrite_x=True)
        divide(spectrum)
        solved = idstn(spectrum, 1, workers=workers, overwrite_x=True)
        if not np.may_share_memory(solved, u):
            u[...] = solved
        return u

    return apply


def _norm(v: np.ndarray) -> float:
    """2-norm, in v's own precision and range."""
    v = v.reshape(-1)
    return math.sqrt(np.vdot(v, v) if v.size <= _DOT else np.einsum("i,i", v, v))


def residual(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> np.ndarray:
    """f - A u."""
    r = np.empty_like(f, order="C")
    product = cg_products.uncompiled(stencil, f.dtype)
    product.times(u.reshape(-1), r.reshape(-1))
    return np.subtract(f, r, out=r)


def norms(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """2-norms of f - A u and of f."""
    squares = [
        np.einsum("i,i", v.reshape(-1), v.reshape(-1), dtype=np.float64)
        for v in (residual(stencil, f, u), f)
    ]
    return math.sqrt(squares[0]), math.sqrt(squares[1])


@functools.lru_cache(maxsize=64)
def _unmeasured(
    stencil: Stencil, dtype: np.dtype, rtol: float, lenient: bool
) -> Callable[[np.ndarray, np.ndarray], bool]:
    """``apply(f, u)``: u = A^-1 f, and whether the residual is small enough by what transforms
    leave, some roundings of f and one of u: to compute it takes as long as they do. ``lenient``:
    what rounding u leaves is small enough.
    """
    eps = float(np.finfo(dtype).eps)
    low, high = _bounds(stencil)
    few = dtype != _DOUBLE and math.prod(stencil.shape) <= _FEW
    # Else rounding u leaves more than transforms do.
    wide = lenient and (few or high < _TRANSFORMS * low)
    surely = wide or eps * (_TRANSFORMS + high / low) <= rtol  # as norm(u) <= norm(f) / low
    apply = applied(stencil, _DOUBLE if wide else dtype)

    def apply_and_judge(f: np.ndarray, u: np.ndarray) -> bool:
        if wide and dtype != _DOUBLE:
            double = f.astype(_DOUBLE)
            u[...] = apply(double, double)
        else:
            apply(f, u)
        of_u = eps * high * _norm(u)
        if surely or not of_u < math.inf:
            return 0.0 < of_u < math.inf
        whole = _norm(f)
        of_f = _TRANSFORMS * eps * whole
        return (lenient and of_f <= of_u) or of_f + of_u <= rtol * whole

    return apply_and_judge


def _on_cpu(asked: Solve, f: np.ndarray, u: np.ndarray) -> tuple[float | None, float, int]:
    """2-norms of f - A u and of f, and the number of solves.

    A solve that misses ``rtol`` is not refined where ``rtol`` is eps or more and far below what
    rounding u makes of the residual, or if ``lenient`` merely below that. The first norm is None
    where it need not be ``measured`` and is small enough; see `_unmeasured`.
    """
    stencil, rtol, dtype = asked.system, asked.rtol, f.dtype
    f = f if f.flags.aligned else f.copy()
    with np.errstate(all="ignore"):
        enough = _unmeasured(stencil, dtype, rtol, asked.lenient)(f, u)
        if enough and not asked.measured:
            return None, math.nan, 1
        is_compiled = _COMPILED in sys.modules and loops.is_ready(CYCLES.of(dtype))
        found = multigrid.norms if is_compiled else norms
        size, whole = found(stencil, f, u)
        eps = float(np.finfo(dtype).eps)
        bound, rounded = rtol * whole, eps * _bounds(stencil)[1] * _norm(u)
        out_of_reach = rtol >= eps and bound < _REACH * size and size <= rounded < math.inf
        if not size > bound or enough or out_of_reach:
            return size, whole, 1
        better = residual(stencil, f, u)
        applied(stencil, dtype)(better, better)
        better += u
        refined, _ = found(stencil, f, better)
        if refined < size:
            u[...] = better
            size = refined
    return size, whole, 2


class Solver:
    """One shape's transforms and buffers, on a device that is active in this thread.

    ``transform(device, (length,), rows, dtype)`` makes what transforms a buffer of rows in place by
    ``forward``. Default: cuFFT's.
    """

    def __init__(
        self,
        device: Device,
        stencil: Stencil,
        dtype: np.dtype,
        transform: Callable[..., Any] | None = None,
    ) -> None:
        self._device, self._dtype, self._axes = device, np.dtype(dtype), stencil.shape
        flat = 3 - len(self._axes)
        self._shape = (*(1,) * flat, *self._axes)
        self._weights = [0.0] * flat + [1.0 / h**2 for h in stencil.spacing]
        self._points = math.prod(self._shape)
        made = transform or load("hetero.devices.cuda.libraries").RealTransform
        name = self._dtype.name  # which takes NumPy 2 us
        self._defines = (("REAL", REAL[name]), ("THREADS", _THREADS))
        self._transform = functools.cache(functools.partial(made, device, dtype=name))
        memory = self._memory = Workspace(device, _PURPOSE)
        values = np.concatenate([[0.0] * flat, *stencil.eigenvalues()])
        self._eigenvalues = memory.upload(values.astype(self._dtype))
        self._chunks = {n: self._rows_of_a_chunk(n) for n in self._axes}
        most = max(rows * 2 * (n + 2) for n, rows in self._chunks.items())
        size = self._dtype.itemsize
        self._extended = memory.allocate(most * size)
        self._work = [memory.allocate(self._points * size) for _ in range(2)]
        self._residual = memory.allocate(self._points * size)
        self._sums = memory.allocate(2 * _SUM_BLOCKS * 8)

    def _rows_of_a_chunk(self, n: int) -> int:
        rows = max(_CHUNK_BYTES // (2 * (n + 2) * self._dtype.itemsize), 1)
        return min(-(-rows // _TILE) * _TILE, self._points // n)

    def _launch(self, kernel: str, items: int, arguments: list[Any]) -> None:
        built = self._device.build("dst.cu", kernel, self._defines)
        self._device.launch(built, -(-items // _THREADS), _THREADS, arguments)

    def apply(self, f: Any, u: Any) -> None:
        """Enqueue u = A^-1 f; ``u`` may be ``f``."""
        a, b = self._work
        passes = [*self._axes[::-1]] * 2
        source = f
        for number, n in enumerate(passes):
            forward = number < len(self._axes)
            target = u if number == len(passes) - 1 else (a if source is not a else b)
            self._sine_transform(source, target, n, -0.5 if forward else -1.0 / (n + 1))
            if number == len(self._axes) - 1:
                arguments = [target, self._eigenvalues, *self._shape]
                self._launch("divide_by_eigenvalues", self._points, arguments)
            source = target

    def _sine_transform(self, source: Any, target: Any, n: int, scale: float) -> None:
        everything = self._points // n
        for first in range(0, everything, self._chunks[n]):
            rows = min(self._chunks[n], everything - first)
            self._launch("extend_odd", rows * 2 * (n + 2), [source, self._extended, first, rows, n])
            self._transform((2 * (n + 1),), rows).forward(self._extended)
            tiles = -(-rows // _TILE) * -(-n // _TILE)
            arguments = [self._extended, target, first, rows, n, everything, scale]
            self._launch("take_transposed", tiles * _THREADS, arguments)

    def residual(self, f: Any, u: Any) -> tuple[float, float]:
        """2-norms of f - A u, which is kept, and of f."""
        blocks = min(_SUM_BLOCKS, -(-self._points // _THREADS))
        arguments = [u, f, self._residual, self._sums, *self._shape, *self._weights, blocks]
        self._launch("residual_sums", blocks * _THREADS, arguments)
        sums = np.empty((blocks, 2))
        self._device.download(self._sums, sums)
        with np.errstate(invalid="ignore", over="ignore"):
            r, whole = np.sqrt(sums.sum(axis=0))
        return float(r), float(whole)

    def solve(self, f: Any, u: Any, rtol: float) -> tuple[float, float, int]:
        """2-norms of f - A u and of f, and the number of solves."""
        self.apply(f, u)
        size, whole = self.residual(f, u)
        if not size > rtol * whole:
            return size, whole, 1
        # u + A^-1 r, unless that is worse.
        before, nbytes = self._work[0], self._points * self._dtype.itemsize
        self.apply(self._residual, self._residual)
        self._device.copy(before, u, nbytes)
        self._launch("add_to", self._points, [u, self._residual, self._points])
        refined, _ = self.residual(f, u)
        if refined < size:
            return refined, whole, 2
        self._device.copy(u, before, nbytes)
        return size, whole, 2
