"""-div grad u = f on a device by geometric multigrid: V-cycles of red-black Gauss-Seidel.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from hetero import kernels
from hetero.devices.base import Device
from hetero.solvers import grids
from hetero.solvers.words import CONVERGED, LIMIT, NOT_FINITE, Outcome, Stencil

_THREADS = 128
_SUM_BLOCKS = 1024
_STALLED = 0.7  # a cycle that leaves more of the residual than this has met rounding
_REAL = {"float32": "float", "float64": "double"}


class Hierarchy:
    """The grids of one stencil on a device, with room for a cycle.

    Parameters
    ----------
    device : Device
        Active in this thread, here and in every method.
    stencil : Stencil
    dtype : float32 or float64
    """

    def __init__(self, device: Device, stencil: Stencil, dtype: Any) -> None:
        self._device = device
        self._dtype = np.dtype(dtype)
        self._owners: list[Any] = []
        self.grids = grids.hierarchy(stencil)
        self._boxes = [[*g.shape, *g.weights] for g in self.grids]
        size = self._dtype.itemsize
        coarser = self.grids[1:]
        self._u = [None, *(self._allocate(g.points * size) for g in coarser)]
        self._f = [None, *(self._allocate(g.points * size) for g in coarser)]
        self._down, self._up = [], []
        for grid in self.grids[:-1]:
            down, up = [], []
            for t in grid.transfers or ():
                down += [self._put(t.first), self._put(t.taps.astype(self._dtype))]
                up += [self._put(t.left), self._put(t.weight.astype(self._dtype))]
            self._down.append(down)
            self._up.append(up)
        inverse = grids.coarsest_inverse(self.grids[-1]).astype(self._dtype)
        self._inverse = self._put(inverse)
        n = len(inverse)
        self._direct = kernels.matvec(
            m=n,
            k=n,
            batch=1,
            dtype=self._dtype.name,
            a_strides=(0, n, 1),
            x_strides=(0, 1),
            y_strides=(0, 1),
            multiprocessors=device.multiprocessors,
            alignment=size,
            block_limit=device.block_limit,
        )
        self._blocks = min(_SUM_BLOCKS, math.prod(self.grids[0].shape[:2]))
        self._sums = self._allocate(16 * self._blocks)

    def _allocate(self, nbytes: int) -> Any:
        buffer, owner = self._device.allocate(nbytes)
        self._owners.append(owner)
        return buffer

    def _put(self, array: np.ndarray) -> Any:
        buffer = self._allocate(array.nbytes)
        self._device.upload(np.ascontiguousarray(array), buffer)
        return buffer

    def _launch(self, kernel: str, blocks: int, arguments: list[Any]) -> None:
        defines = (("REAL", _REAL[self._dtype.name]), ("THREADS", _THREADS))
        built = self._device.build("multigrid.cu", kernel, defines)
        self._device.launch(built, blocks, _THREADS, arguments)

    def norms(self, f: Any, u: Any) -> tuple[float, float]:
        """2-norms of f - A u and of f."""
        self._launch("squares", self._blocks, [u, f, self._sums, *self._boxes[0], self._blocks])
        sums = np.empty((self._blocks, 2))
        self._device.download(self._sums, sums)
        with np.errstate(all="ignore"):
            residual, whole = np.sqrt(sums.sum(axis=0))
        return float(residual), float(whole)

    def cycle(self, f: Any, u: Any) -> None:
        """Enqueue one V(1,1)-cycle that improves u."""
        self._cycle(0, f, u, from_zero=False, symmetric=False)

    def apply(self, r: Any, z: Any) -> None:
        """Enqueue z = M r: one cycle from zero, smoothing back in reverse, so M is symmetric."""
        self._cycle(0, r, z, from_zero=True, symmetric=True)

    def _cycle(self, level: int, f: Any, u: Any, *, from_zero: bool, symmetric: bool) -> None:
        if level == len(self.grids) - 1:
            buffers = {"A": self._inverse, "x": f, "y": u}
            self._device.run_steps(self._direct, buffers, self._dtype.itemsize)
            return
        box = self._boxes[level]
        nz, ny, nx = self.grids[level].shape
        mz, my, mx = self.grids[level + 1].shape
        rows = nz * ny
        whole, half = -(-nx // _THREADS), -(-nx // (2 * _THREADS))
        if from_zero:
            self._launch("smooth_from_zero", rows * whole, [u, f, *box, whole])
        else:
            for color in (0, 1):
                self._launch("smooth", rows * half, [u, f, *box, half, color])
        across = -(-mx // _THREADS)
        coarse_f, coarse_u = self._f[level + 1], self._u[level + 1]
        self._launch(
            "restrict_residual",
            mz * my * across,
            [u, f, coarse_f, *box, across, my, mx, *self._down[level]],
        )
        self._cycle(level + 1, coarse_f, coarse_u, from_zero=True, symmetric=symmetric)
        first = 1 if symmetric else 0
        self._launch(
            "prolong",
            rows * half,
            [u, coarse_u, ny, nx, half, 1 - first, mz, my, mx, *self._up[level]],
        )
        for color in (first, 1 - first):
            self._launch("smooth", rows * half, [u, f, *box, half, color])


@functools.lru_cache(maxsize=2)
def _hierarchy(device: Device, stencil: Stencil, dtype: np.dtype) -> Hierarchy:
    return Hierarchy(device, stencil, dtype)


def solve(
    device: Device,
    stencil: Stencil,
    f: Any,
    u: Any,
    *,
    dtype: Any,
    rtol: float,
    atol: float = 0.0,
    maxiter: int,
) -> Outcome:
    """Solve A u = f by cycles.

    Parameters
    ----------
    device : Device
    stencil : Stencil
    f, u : numpy.ndarray or device buffer
        Right-hand side; start in, result out. Both arrays or both buffers, contiguous.
    dtype : float32 or float64
    rtol, atol : float
        Done when norm(f - A u) <= max(rtol norm(f), atol).
    maxiter : int
        Most cycles.

    Returns
    -------
    Outcome
        LIMIT too where a cycle no longer reduces the residual: rounding keeps it.
    """
    with device.active():
        hierarchy = _hierarchy(device, stencil, np.dtype(dtype))
        if not isinstance(f, np.ndarray):
            return _solve(hierarchy, f, u, rtol, atol, maxiter)
        buffers = [device.allocate(f.nbytes) for _ in range(2)]
        device.upload(f, buffers[0][0])
        device.upload(u, buffers[1][0])
        outcome = _solve(hierarchy, buffers[0][0], buffers[1][0], rtol, atol, maxiter)
        device.download(buffers[1][0], u)
        return outcome


def _solve(hierarchy: Hierarchy, f: Any, u: Any, rtol: float, atol: float, maxiter: int) -> Outcome:
    residual, whole = hierarchy.norms(f, u)
    bound = max(rtol * whole, atol)
    for done in range(maxiter + 1):
        if not math.isfinite(residual):
            return Outcome(NOT_FINITE, done, residual)
        if residual <= bound:
            return Outcome(CONVERGED, done, residual)
        if done == maxiter:
            break
        hierarchy.cycle(f, u)
        before, residual = residual, hierarchy.norms(f, u)[0]
        if residual > _STALLED * before and done:
            return Outcome(LIMIT, done + 1, residual)
    return Outcome(LIMIT, maxiter, residual)
