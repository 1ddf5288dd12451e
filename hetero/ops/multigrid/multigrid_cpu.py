"""-div grad u = f on the CPU by geometric multigrid: V(1,1)-cycles of red-black over-relaxation.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001; the
over-relaxation after I. Yavneh, "On red-black SOR smoothing in multigrid", SIAM J. Sci. Comput. 17
(1996), 180-192.
"""

from __future__ import annotations

import functools
import itertools
import math
from typing import Any

import numpy as np

from hetero import locks
from hetero.host import threads
from hetero.host.compiled.loops import as_loops_take
from hetero.kernels.cpu import multigrid
from hetero.kernels.multigrid import transfers
from hetero.ops.linear_systems import grids
from hetero.ops.linear_systems.types import CONVERGED, LIMIT, NOT_FINITE, ROUNDING, Outcome, Stencil

_STALLED = 0.7  # a cycle that leaves more of the residual than this has met rounding
_TILE_PLANES = 32  # coarse planes of a tile: twice as many fine ones, and six more are read
_TILE_BYTES = 1 << 20  # of a tile's planes in work: they stay in the cache


class _Level:
    """One grid, all that a pass over it takes, and room for its vectors."""

    def __init__(self, grid: grids.Grid, coarse: grids.Grid, dtype: np.dtype, finest: bool) -> None:
        nx = grid.shape[2]
        z, y, x = grid.transfers or ()
        rows = max(_TILE_BYTES // (20 * nx * dtype.itemsize) - 6, 8)
        tiles = [
            np.concatenate(pair)
            for pair in itertools.product(
                transfers.tiles(z, _TILE_PLANES), transfers.tiles(y, -(-rows // 2))
            )
        ]
        self.sums = np.empty(len(tiles))
        self._before = np.array(grid.shape + coarse.shape), np.array(grid.weights, dtype)
        self._after = (
            np.concatenate([z.left, y.left, x.left, x.first]),
            np.concatenate([z.weight, y.weight, x.weight]).astype(dtype),
            x.taps.astype(dtype),
            np.array(tiles),
        )
        self.work = np.empty(grid.points, dtype)
        self.u, self.f = (None, None) if finest else np.empty((2, grid.points), dtype)

    def sweep(
        self, u: Any, f: Any, out: Any, coarse: Any, *, omega: Any, first: int, mode: int
    ) -> None:
        """A pass over the grid, as `hetero.kernels.cpu.multigrid.sweep` tells."""
        given = u, f, out, coarse, self.sums, *self._before, omega, first, mode, *self._after
        threads.shared(u.size, multigrid.sweep, *given)


def norms(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """2-norms of f - A u and of f, contiguous arrays."""
    weights = [1.0 / h**2 for h in stencil.spacing]
    weights[1:1] = [0.0] * (3 - len(weights))
    nz, *ny, nx = stencil.shape
    sums = np.empty((nz * math.prod(ny), 2))
    given = u.reshape(-1), as_loops_take(f.reshape(-1)), nz, math.prod(ny), nx
    threads.shared(f.size, multigrid.squares, *given, np.array(weights, f.dtype), sums)
    residual, whole = np.sqrt(sums.sum(axis=0))
    return float(residual), float(whole)


class CpuHierarchy:
    """The grids of one stencil with room for a cycle.

    Parameters
    ----------
    stencil : Stencil
    dtype : float32 or float64
    """

    def __init__(self, stencil: Stencil, dtype: np.dtype) -> None:
        self.dtype = np.dtype(dtype)
        self.grids = grids.hierarchy(stencil, grids.coarsest("cpu"))
        self._levels = [
            _Level(fine, coarse, self.dtype, finest=number == 0)
            for number, (fine, coarse) in enumerate(zip(self.grids, self.grids[1:], strict=False))
        ]
        last = self.grids[-1]
        self._inverse = grids.coarsest_inverse(last).astype(self.dtype)
        self._coarsest = np.empty((2, last.points), self.dtype)
        self._stencil = stencil
        self.lock = locks.new()  # for those who share it
        self.user: int | None = None  # the process that is at work with it

    def cycle(self, f: np.ndarray, u: np.ndarray) -> float:
        """Improve u by one cycle, flat arrays; returns the 2-norm of f - A u."""
        return self._cycle(0, f, u, from_zero=False, symmetric=False)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """z = M r with one cycle from zero, smoothing back in reverse: M is symmetric."""
        self._cycle(0, r.reshape(-1), z.reshape(-1), from_zero=True, symmetric=True)

    def _cycle(
        self, number: int, f: np.ndarray, u: np.ndarray, *, from_zero: bool, symmetric: bool
    ) -> float:
        if number == len(self._levels):
            multigrid.solve_coarsest(self._inverse, f, u)
            return 0.0 if number else norms(self._stencil, f, u)[0]
        level = self._levels[number]
        coarser = self._levels[number + 1 :]
        coarse_u, coarse_f = (coarser[0].u, coarser[0].f) if coarser else self._coarsest
        # Over-relaxing helps cycles; the symmetric one is better without.
        omega = self.dtype.type(1.0 if symmetric else grids.OMEGA)

        mode = multigrid.DOWN_FROM_ZERO if from_zero else multigrid.DOWN
        level.sweep(u, f, level.work, coarse_f, omega=omega, first=0, mode=mode)
        self._cycle(number + 1, coarse_f, coarse_u, from_zero=True, symmetric=symmetric)
        last = number == 0 and not symmetric
        mode = multigrid.UP_WITH_SQUARES if last else multigrid.UP
        first = 1 if symmetric else 0
        level.sweep(level.work, f, u, coarse_u, omega=omega, first=first, mode=mode)
        return math.sqrt(level.sums.sum()) if last else 0.0


@functools.lru_cache(maxsize=2)
def _hierarchy(stencil: Stencil, dtype: np.dtype) -> CpuHierarchy:
    return CpuHierarchy(stencil, dtype)


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
        ROUNDING where a cycle no longer reduces the residual.
    """
    shared = CpuHierarchy(stencil, f.dtype) if f.size > 1 << 24 else _hierarchy(stencil, f.dtype)
    rhs, x = as_loops_take(f.reshape(-1)), u.reshape(-1)
    again = functools.partial(CpuHierarchy, stencil, f.dtype)
    with locks.sole(shared, again) as hierarchy, np.errstate(all="ignore"):
        residual, whole = norms(stencil, rhs, x)
        if whole == 0.0:
            x[...] = 0
            return Outcome(CONVERGED, 0, 0.0, 0.0)
        bound = max(rtol * whole, atol)
        for done in range(maxiter + 1):
            if not math.isfinite(residual):
                return Outcome(NOT_FINITE, done, residual, whole)
            if residual <= bound:
                return Outcome(CONVERGED, done, residual, whole)
            if done == maxiter:
                break
            before, residual = residual, hierarchy.cycle(rhs, x)
            if _STALLED * before < residual < math.inf and done and residual > bound:
                return Outcome(ROUNDING, done + 1, residual, whole)
    return Outcome(LIMIT, maxiter, residual, whole)
