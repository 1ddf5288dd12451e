"""-div grad u = f on a device, directly: sine transforms along each axis, divided by eigenvalues.

The transforms are real FFTs of the odd extension, cuFFT's; each pass over an axis leaves the array
with its axes rotated by one, so that the axis to come is the contiguous one and, after the last,
all are back in order.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.devices.base import Device
from hetero.devices.cuda import cufft
from hetero.devices.workspace import Workspace
from hetero.ops.linear_systems.types import CONVERGED, NOT_FINITE, ROUNDING, Outcome, Stencil

_PURPOSE = "sine transforms"
_KEPT = 4  # solvers in each context
_THREADS = 256
_TILE = 32
_CHUNK_BYTES = 24 << 20  # of extended rows: stays in the cache from one kernel to the next
_SUM_BLOCKS = 512

obstacle = cufft.obstacle


def eigenvalues(stencil: Stencil) -> list[np.ndarray]:
    """Eigenvalues of -d^2/dx^2 along each axis: 4 / h^2 sin^2(pi k / (2 (n + 1)))."""
    return [
        4.0 / h**2 * np.sin(np.pi * np.arange(1, n + 1) / (2 * (n + 1))) ** 2
        for n, h in zip(stencil.shape, stencil.spacing, strict=True)
    ]


class Solver:
    """One shape's transforms and buffers, on a device that is active in this thread.

    ``transform(device, length, rows, dtype)`` makes a function that transforms a buffer of rows in
    place.
    """

    def __init__(
        self,
        device: Device,
        stencil: Stencil,
        dtype: np.dtype,
        transform: Callable[..., Callable[[Any], None]] = cufft.RealTransform,
    ) -> None:
        self._device = device
        self._dtype = np.dtype(dtype)
        self._real = {"float32": "float", "float64": "double"}[self._dtype.name]
        self._shape = (1,) * (3 - len(stencil.shape)) + tuple(stencil.shape)
        self._axes = stencil.shape
        self._weights = [0.0] * (3 - len(stencil.shape)) + [1.0 / h**2 for h in stencil.spacing]
        self._points = math.prod(self._shape)
        self._transform = functools.cache(
            functools.partial(transform, device, dtype=self._dtype.name)
        )
        memory = Workspace(device, _PURPOSE)
        values = np.concatenate([[0.0] * (3 - len(self._axes)), *eigenvalues(stencil)])
        self._eigenvalues = memory.upload(values.astype(self._dtype))
        self._chunks = {n: self._rows_of_a_chunk(n) for n in self._axes}
        most = max(rows * 2 * (n + 2) for n, rows in self._chunks.items())
        size = self._dtype.itemsize
        self._extended = memory.allocate(most * size)
        self._work = [memory.allocate(self._points * size) for _ in range(2)]
        self._residual = memory.allocate(self._points * size)
        self._sums = memory.allocate(2 * _SUM_BLOCKS * 8)
        self._memory = memory

    def _rows_of_a_chunk(self, n: int) -> int:
        rows = max(_CHUNK_BYTES // (2 * (n + 2) * self._dtype.itemsize), 1)
        return min(-(-rows // _TILE) * _TILE, self._points // n)

    def _launch(self, kernel: str, items: int, arguments: list[Any]) -> None:
        defines = (("REAL", self._real), ("THREADS", _THREADS))
        built = self._device.build("dst.cu", kernel, defines)
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
                self._launch(
                    "divide_by_eigenvalues",
                    self._points,
                    [target, self._eigenvalues, *self._shape],
                )
            source = target

    def _sine_transform(self, source: Any, target: Any, n: int, scale: float) -> None:
        everything = self._points // n
        for first in range(0, everything, self._chunks[n]):
            rows = min(self._chunks[n], everything - first)
            self._launch("extend_odd", rows * 2 * (n + 2), [source, self._extended, first, rows, n])
            self._transform(2 * (n + 1), rows)(self._extended)
            tiles = -(-rows // _TILE) * -(-n // _TILE)
            self._launch(
                "take_transposed",
                tiles * _THREADS,
                [self._extended, target, first, rows, n, everything, scale],
            )

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

    def refine(self, u: Any) -> None:
        """Enqueue u += A^-1 r for the residual kept; `undo` takes it back."""
        self.apply(self._residual, self._residual)
        self._device.copy(self._work[0], u, self._points * self._dtype.itemsize)
        self._launch("add_to", self._points, [u, self._residual, self._points])

    def undo(self, u: Any) -> None:
        """Enqueue what makes u what it was before the last `refine`."""
        self._device.copy(u, self._work[0], self._points * self._dtype.itemsize)


def solve(
    device: Device,
    stencil: Stencil,
    f: Any,
    u: Any,
    *,
    dtype: Any,
    rtol: float = 0.0,
    refinements: int = 1,
) -> Outcome:
    """Solve A u = f directly, with at most that many steps of iterative refinement.

    f and u are contiguous buffers. A solve is refined that misses ``rtol``, asked of
    norm(f - A u) / norm(f); ROUNDING where the residual stays above it.
    """
    with device.active():
        make = functools.partial(Solver, device, stencil, np.dtype(dtype))
        solver = device.storage().get(_PURPOSE, (stencil, np.dtype(dtype)), _KEPT, make)
        return _solve(solver, f, u, rtol, refinements)


def _solve(solver: Solver, f: Any, u: Any, rtol: float, refinements: int) -> Outcome:
    solver.apply(f, u)
    residual, whole = solver.residual(f, u)
    done = 1
    while residual > rtol * whole and done <= refinements:
        solver.refine(u)
        refined, _ = solver.residual(f, u)
        done += 1
        if not refined < residual:
            solver.undo(u)
            break
        stalled = refined > 0.5 * residual
        residual = refined
        if stalled:
            break
    if not math.isfinite(residual):
        return Outcome(NOT_FINITE, done, residual, whole)
    status = CONVERGED if residual <= rtol * whole else ROUNDING
    return Outcome(status, done, residual, whole)
