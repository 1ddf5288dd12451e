"""-div grad u = f on the CPU by geometric multigrid: the passes of `grids.cycle` as loops."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero import locks
from hetero.host import threads
from hetero.host.loops import as_loops_take
from hetero.kernels.cpu import multigrid
from hetero.kernels.multigrid import transfers
from hetero.ops.linear_systems.systems import Outcome, Solve, Stencil
from hetero.ops.multigrid import grids

_TILE_PLANES = 32  # coarse planes of a tile: twice as many fine ones, and six more are read
_TILE_BYTES = 1 << 20  # of a tile's planes in work: they stay in the cache
_LARGE = 1 << 24  # points of a grid that is not kept for the next solve


class _Level:
    """One grid, what `hetero.kernels.cpu.multigrid.sweep` takes of it, and room for what a pass
    makes of u."""

    def __init__(self, grid: grids.Grid, coarse: grids.Grid, dtype: np.dtype) -> None:
        z, y, x = grid.transfers or ()
        rows = max(_TILE_BYTES // (20 * grid.shape[2] * dtype.itemsize) - 6, 8)
        cuts = transfers.tiles(z, _TILE_PLANES), transfers.tiles(y, -(-rows // 2))
        tiles = [np.concatenate(pair) for pair in itertools.product(*cuts)]
        self.sums, self.work = np.empty(len(tiles)), np.empty(grid.points, dtype)
        self.box = np.array(grid.shape + coarse.shape), np.array(grid.weights, dtype)
        self.transfers = (
            np.concatenate([z.left, y.left, x.left, x.first]),
            np.concatenate([z.weight, y.weight, x.weight]).astype(dtype),
            x.taps.astype(dtype),
            np.array(tiles),
        )


def norms(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """2-norms of f - A u and of f, contiguous arrays."""
    (nz, ny, nx), weights = stencil.box
    sums = np.empty((nz * ny, 2))
    given = u.reshape(-1), as_loops_take(f.reshape(-1)), nz, ny, nx
    multigrid.squares(threads.team_for(f.size), *given, np.array(weights, f.dtype), sums)
    residual, whole = np.sqrt(sums.sum(axis=0))
    return float(residual), float(whole)


class CpuHierarchy(grids.Hierarchy):
    """The grids of one stencil on the CPU; its vectors are flat arrays of float32 or float64."""

    def __init__(self, stencil: Stencil, dtype: np.dtype) -> None:
        super().__init__()
        self._stencil, self._dtype = stencil, np.dtype(dtype)
        _, *coarser = all_grids = grids.hierarchy(stencil, grids.coarsest("cpu"))
        self.levels = [_Level(*pair, self._dtype) for pair in itertools.pairwise(all_grids)]
        self.exact = bool(self.levels)
        self._inverse = grids.coarsest_inverse(all_grids[-1]).astype(dtype)
        # f and u of all grids but the finest, where the caller gives them.
        self._coarser = [np.empty((2, grid.points), dtype) for grid in coarser]

    def norms(self, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
        return norms(self._stencil, f, u)

    def zero(self, u: np.ndarray) -> None:
        u[...] = 0

    def residual(self) -> float:
        return math.sqrt(self.levels[0].sums.sum()) if self.levels else math.nan

    def bound(self, f: Any, u: Any, symmetric: bool = False) -> Callable[[], object]:
        return functools.partial(self._cycle, f, u, symmetric)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """z = M r: one cycle from zero, smoothing back in reverse, so that M is symmetric."""
        self._cycle(r, z, True)

    def _cycle(self, f: np.ndarray, u: np.ndarray, symmetric: bool) -> None:
        vectors, omega = [(f, u), *self._coarser], self._dtype.type(grids.OMEGA[symmetric])
        for step in grids.cycle(len(self.levels), symmetric):
            f, u = vectors[step.level]
            if step.mode == grids.SOLVED:
                multigrid.solve_coarsest(self._inverse, f, u)
                continue
            level, (coarse_f, coarse_u) = self.levels[step.level], vectors[step.level + 1]
            moved = (u, f, level.work, coarse_f)
            if not step.is_down:
                moved = (level.work, f, u, coarse_u)
            how = level.sums, *level.box, omega, step.first, step.mode, *level.transfers
            multigrid.sweep(threads.team_for(u.size), *moved, *how)


_kept = functools.lru_cache(maxsize=2)(CpuHierarchy)


def solve(
    devices: tuple[()], asked: Solve, f: np.ndarray, u: np.ndarray, dtype: Any = None
) -> Outcome:
    """Solve A u = f by cycles, of C-contiguous arrays; see `grids.Hierarchy.solve`."""
    another = functools.partial(CpuHierarchy, asked.system, f.dtype)
    shared = another() if f.size > _LARGE else _kept(asked.system, f.dtype)
    rhs, x = as_loops_take(f.reshape(-1)), u.reshape(-1)
    with locks.sole(shared, another) as hierarchy, np.errstate(all="ignore"):
        return hierarchy.solve(rhs, x, asked.rtol, asked.maxiter)
