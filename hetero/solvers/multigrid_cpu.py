"""-div grad u = f on the CPU by geometric multigrid: V-cycles of red-black Gauss-Seidel.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001.
"""

from __future__ import annotations

import functools
import math

import numpy as np

from hetero.kernels import cpu
from hetero.kernels import cpu_multigrid as kernels
from hetero.kernels.cpu_norm import norm
from hetero.solvers import grids
from hetero.solvers.words import CONVERGED, LIMIT, NOT_FINITE, Outcome, Stencil

_STALLED = 0.7  # a cycle that leaves more of the residual than this has met rounding


class Hierarchy:
    """The grids of one stencil with room for a cycle.

    Parameters
    ----------
    stencil : Stencil
    dtype : float32 or float64
    """

    def __init__(self, stencil: Stencil, dtype: np.dtype) -> None:
        self.dtype = np.dtype(dtype)
        self.grids = grids.hierarchy(stencil)
        self._boxes = [(*g.shape, np.array(g.weights, self.dtype)) for g in self.grids]
        self._inverse = grids.coarsest_inverse(self.grids[-1]).astype(self.dtype)
        self._u = [np.empty(g.points, self.dtype) for g in self.grids]
        self._f = [np.empty(g.points, self.dtype) for g in self.grids]
        self._sums = np.empty(math.prod(self.grids[0].shape[:2]))
        self._down, self._up = [], []
        for fine, coarse in zip(self.grids, self.grids[1:], strict=False):
            down, up = list(coarse.shape), list(coarse.shape)
            for t in fine.transfers or ():
                down += [t.first, t.taps.astype(self.dtype)]
                up += [t.left, t.weight.astype(self.dtype)]
            self._down.append(down)
            self._up.append(up)

    def residual(self, f: np.ndarray, u: np.ndarray) -> float:
        """2-norm of f - A u, flat arrays."""
        with cpu.share(f.size):
            return math.sqrt(kernels.squares(u, f, *self._boxes[0], self._sums))

    def cycle(self, f: np.ndarray, u: np.ndarray) -> None:
        """Improve u by one V(1,1)-cycle, flat arrays."""
        self._cycle(0, f, u, from_zero=False, symmetric=False)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """Z = M r with one cycle from zero, smoothing back in reverse: M is symmetric."""
        self._cycle(0, r.reshape(-1), z.reshape(-1), from_zero=True, symmetric=True)

    def _cycle(
        self, level: int, f: np.ndarray, u: np.ndarray, *, from_zero: bool, symmetric: bool
    ) -> None:
        if level == len(self.grids) - 1:
            kernels.solve_coarsest(self._inverse, f, u)
            return
        with cpu.share(f.size):
            self._smoothed(level, f, u, from_zero=from_zero, symmetric=symmetric)

    def _smoothed(
        self, level: int, f: np.ndarray, u: np.ndarray, *, from_zero: bool, symmetric: bool
    ) -> None:
        box = self._boxes[level]
        if from_zero:
            kernels.start(u, f, *box)
        else:
            kernels.smooth(u, f, *box, 0)
        kernels.smooth(u, f, *box, 1)
        coarse_f, coarse_u = self._f[level + 1], self._u[level + 1]
        kernels.restrict_residual(u, f, *box, coarse_f, *self._down[level])
        self._cycle(level + 1, coarse_f, coarse_u, from_zero=True, symmetric=symmetric)
        kernels.prolong(u, coarse_u, *box[:3], *self._up[level])
        for color in (1, 0) if symmetric else (0, 1):
            kernels.smooth(u, f, *box, color)


@functools.lru_cache(maxsize=2)
def _hierarchy(stencil: Stencil, dtype: np.dtype) -> Hierarchy:
    return Hierarchy(stencil, dtype)


def solve(
    stencil: Stencil,
    f: np.ndarray,
    u: np.ndarray,
    *,
    rtol: float,
    atol: float = 0.0,
    maxiter: int,
) -> Outcome:
    """Solve A u = f by cycles.

    Parameters
    ----------
    stencil : Stencil
    f, u : ndarray of float32 or float64, C-contiguous
        Right-hand side; start in, result out.
    rtol, atol : float
        Done when norm(f - A u) <= max(rtol norm(f), atol).
    maxiter : int
        Most cycles.

    Returns
    -------
    Outcome
        LIMIT too where a cycle no longer reduces the residual: rounding keeps it.
    """
    hierarchy = Hierarchy(stencil, f.dtype) if f.size > 1 << 24 else _hierarchy(stencil, f.dtype)
    rhs, x = f.reshape(-1), u.reshape(-1)
    with np.errstate(all="ignore"):
        bound = max(rtol * norm(rhs), atol)
        residual = hierarchy.residual(rhs, x)
        for done in range(maxiter + 1):
            if not math.isfinite(residual):
                return Outcome(NOT_FINITE, done, residual)
            if residual <= bound:
                return Outcome(CONVERGED, done, residual)
            if done == maxiter:
                break
            hierarchy.cycle(rhs, x)
            before, residual = residual, hierarchy.residual(rhs, x)
            if residual > _STALLED * before and done:
                return Outcome(LIMIT, done + 1, residual)
    return Outcome(LIMIT, maxiter, residual)
