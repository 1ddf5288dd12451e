"""-div grad u = f by geometric multigrid: the grids, the cycle over them, its passes on the CPU.

A coarse grid has half the points of the fine one along each axis that is coarsened, evenly spread
over the same extent; for 2^k - 1 points those are every second one, for others they lie between.
Prolongation is linear interpolation along each axis, restriction its transpose scaled by h / H, so
that a cycle with symmetric smoothing is a symmetric operator. Axes along which the points are much
further apart than along another one are not coarsened until the others have caught up: point
smoothing does nothing for them.

The cycle is V(1,1), of red-black over-relaxation. Its passes are loops on the CPU, here, and
launches on devices, in `multigrid_device`.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001, chapters 2, 5;
the over-relaxation after I. Yavneh, "On red-black SOR smoothing in multigrid", SIAM J. Sci. Comput.
17 (1996), 180-192.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.host.loops import as_loops_take
from hetero.imports import load
from hetero.kernels.multigrid import plan as plan_multigrid
from hetero.ops.solvers import systems
from hetero.ops.solvers.systems import LIMIT, ROUNDING, Outcome, Solve, Stencil, judged

# Over-relaxation, by which a V(1,1)-cycle leaves 0.05 in 2-D and 0.08 in 3-D, of 0.14 and 0.2; the
# symmetric one is better without.
OMEGA = {False: 1.2, True: 1.0}
_COARSEST, _COARSEST_ON_CPU = 64, 256  # points that one cycle is expected to solve
_BELOW = 1 << 12  # points of a coarser grid that transforms solve sooner than cycles
LEAST_SHARED = 1 << 21  # points of a grid from which several devices gain more than they wait
LEAST_PLANES = 32  # of such a grid; half as many coarse ones, of which each device gets some
_STALLED = 0.7  # a cycle that leaves more of the residual than this has met rounding
_EVEN = 1.6  # ratio of spacings up to which axes are coarsened together
_TILE_PLANES = 32  # coarse planes of a tile: twice as many fine ones, and six more are read
_TILE_BYTES = 1 << 20  # of a tile's planes in work: they stay in the cache


class Grid(NamedTuple):
    """One level: a box of points, and the way to the next coarser one."""

    shape: tuple[int, int, int]  # (nz, ny, nx), ny = 1 in 2-D
    spacing: tuple[float, float, float]  # infinite along y in 2-D
    transfers: tuple[plan_multigrid.Transfer, ...] | None  # to the next coarser grid, if any

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.shape)

    @property
    def weights(self) -> tuple[float, ...]:
        """1 / spacing^2 along z, y, x; in 2-D 0 along y."""
        return tuple(1.0 / h**2 for h in self.spacing)


def is_shared(shape: tuple[int, ...]) -> bool:
    """Whether several devices divide a grid; of other grids each makes the whole."""
    return math.prod(shape) >= LEAST_SHARED and shape[0] >= LEAST_PLANES


def coarsest(kind: str) -> int:
    """Points of the coarsest grid at most, on a kind of device."""
    return _COARSEST_ON_CPU if kind == "cpu" else _COARSEST


def hierarchy(stencil: Stencil, coarsest: int, below: int = 0) -> list[Grid]:
    """Grids from the finest to one that sine transforms solve: of at most ``coarsest`` points, or
    ``below`` the finest one of as many as that.

    A 2-D grid's rows are planes of one row: z is its first axis, and there is no y.
    """
    shape, spacing = tuple(stencil.shape), tuple(map(float, stencil.spacing))
    if len(shape) == 2:
        shape = shape[0], 1, shape[1]
        spacing = spacing[0], math.inf, spacing[1]
    grids: list[Grid] = []
    while True:
        least = min((h for n, h in zip(shape, spacing, strict=True) if n > 1), default=math.inf)
        coarse = tuple(
            n // 2 if n > 1 and h <= _EVEN * least else n
            for n, h in zip(shape, spacing, strict=True)
        )
        if math.prod(shape) <= max(coarsest, below if grids else 0) or coarse == shape:
            return [*grids, Grid(shape, spacing, None)]
        transfers = tuple(plan_multigrid.transfer(n, m) for n, m in zip(shape, coarse, strict=True))
        grids.append(Grid(shape, spacing, transfers))
        spacing = tuple(
            h * (n + 1) / (m + 1) for h, n, m in zip(spacing, shape, coarse, strict=True)
        )
        shape = coarse


def modes(level: int, symmetric: bool) -> tuple[int, int]:
    """Of a V(1,1)-cycle's pass down over a grid, and of its pass up; the first one improves u.

    The pass down reads u, improves it into ``work``, and writes the coarser grid's f; the one up
    reads ``work`` and the coarser grid's u, and writes u. A ``symmetric`` cycle begins from zero
    and smooths back in reverse.
    """
    if level or symmetric:
        return plan_multigrid.DOWN_FROM_ZERO, plan_multigrid.UP
    return plan_multigrid.DOWN, plan_multigrid.UP_WITH_SQUARES


class Hierarchy:
    """The grids of one stencil, with room for a cycle of one thread.

    ``bound(f, u, symmetric)`` gives what improves u by a cycle, or with ``symmetric`` makes it M f;
    ``norms(f, u)`` the 2-norms of f - A u and of f; ``residual()`` that of f - A u as the last
    cycle left it, but for rounding.
    """

    def solve(self, f: Any, u: Any, rtol: float, maxiter: int) -> Outcome:
        """Improve u by at most ``maxiter`` cycles, until norm(f - A u) <= rtol norm(f), or to
        ROUNDING: a cycle no longer reduces that. Of f without a norm it makes none."""
        improve = self.bound(f, u)
        residual, whole = self.norms(f, u)
        maxiter = maxiter if whole > 0.0 else 0
        bound, done, stalled = rtol * whole, 0, False
        while math.isfinite(residual) and residual > bound and done < maxiter and not stalled:
            improve()
            done += 1
            before, residual = residual, self.residual()
            stalled = residual > _STALLED * before and done > 1
            if not residual > bound or stalled or done == maxiter:
                residual = self.norms(f, u)[0]
                stalled = stalled or (done > 1 and residual > _STALLED * before)
        return judged(residual, bound, ROUNDING if stalled else LIMIT, done, whole)


# -- On the CPU -----------------------------------------------------------------------------------


def norms(stencil: Stencil, f: np.ndarray, u: np.ndarray) -> tuple[float, float]:
    """2-norms of f - A u and of f, contiguous arrays."""
    (nz, ny, nx), weights = stencil.box
    sums = np.empty((nz * ny, 2))
    given = u.reshape(-1), as_loops_take(f.reshape(-1)), nz, ny, nx
    load("hetero.kernels.cpu.poisson").squares(*given, weights, sums)
    with np.errstate(all="ignore"):
        residual, whole = np.sqrt(sums.sum(axis=0))
    return float(residual), float(whole)


class _Level:
    """One grid, what `hetero.kernels.cpu.poisson.sweep` takes of it, and room for what a pass makes
    of u."""

    def __init__(self, grid: Grid, coarse: Grid, dtype: np.dtype) -> None:
        z, y, x = grid.transfers or ()
        rows = max(_TILE_BYTES // (20 * grid.shape[2] * dtype.itemsize) - 6, 8)
        tiles = plan_multigrid.tiles
        cuts = itertools.product(tiles(z, _TILE_PLANES), tiles(y, -(-rows // 2)))
        cut = np.array([np.concatenate(pair) for pair in cuts])
        self.sums, self.work = np.empty(len(cut)), np.empty(grid.points, dtype)
        self.box = np.array(grid.shape + coarse.shape), np.array(grid.weights, dtype)
        self.transfers = (
            np.concatenate([z.left, y.left, x.left, x.first]),
            np.concatenate([z.weight, y.weight, x.weight]).astype(dtype),
            x.taps.astype(dtype),
            cut,
        )


class CpuHierarchy(Hierarchy):
    """The grids of one stencil on the CPU; its vectors are flat arrays of float32 or float64."""

    def __init__(self, stencil: Stencil, dtype: np.dtype) -> None:
        self._dtype, self.norms = np.dtype(dtype), functools.partial(norms, stencil)
        self._sweep = load("hetero.kernels.cpu.poisson").sweep
        _, *coarser = all_grids = hierarchy(stencil, coarsest("cpu"), _BELOW)
        self.levels = [_Level(*pair, self._dtype) for pair in itertools.pairwise(all_grids)]
        axes = zip(*all_grids[-1][:2], strict=True)
        small = Stencil(*zip(*((n, h) for n, h in axes if h < math.inf), strict=True))
        self._shape, applied = small.shape, load("hetero.ops.solvers.dst").applied
        points = math.prod(self._shape)
        self._solve_coarsest = applied(small, self._dtype, systems.on_vectors(self._dtype, points))
        # f and u of all grids but the finest, where the caller gives them.
        self._coarser = [np.empty((2, grid.points), dtype) for grid in coarser]

    def residual(self) -> float:
        return math.sqrt(self.levels[0].sums.sum()) if self.levels else math.nan

    def bound(self, f: Any, u: Any, symmetric: bool = False) -> Callable[[], object]:
        return functools.partial(self._cycle, f, u, symmetric)

    def apply(self, r: np.ndarray, z: np.ndarray) -> None:
        """z = M r: one cycle from zero, smoothing back in reverse, so that M is symmetric."""
        self._cycle(r, z, True)

    def _cycle(self, f: np.ndarray, u: np.ndarray, symmetric: bool) -> None:
        vectors, omega = [(f, u), *self._coarser], self._dtype.type(OMEGA[symmetric])

        def sweep(number: int, first: int, mode: int, *moved: np.ndarray) -> None:
            level = self.levels[number]
            how = level.sums, *level.box, omega, first, mode, *level.transfers
            self._sweep(*moved, *how)

        numbers = range(len(self.levels))
        for n in numbers:
            (f, u), (coarse, _) = vectors[n : n + 2]
            sweep(n, 0, modes(n, symmetric)[0], u, f, self.levels[n].work, coarse)
        self._solve_coarsest(*(vector.reshape(self._shape) for vector in vectors[-1]))
        for n in reversed(numbers):
            (f, u), (_, coarse) = vectors[n : n + 2]
            sweep(n, int(symmetric), modes(n, symmetric)[1], self.levels[n].work, f, u, coarse)


def solve(
    devices: tuple[()], asked: Solve, f: np.ndarray, u: np.ndarray, dtype: Any = None
) -> Outcome:
    """Solve A u = f on the CPU, of C-contiguous arrays; see `Hierarchy.solve`."""
    hierarchy, rhs = CpuHierarchy(asked.system, f.dtype), as_loops_take(f.reshape(-1))
    with np.errstate(all="ignore"):
        return hierarchy.solve(rhs, u.reshape(-1), asked.rtol, asked.maxiter)


def example(dtype: np.dtype) -> None:
    """Call the compiled loops."""
    f = np.ones((40, 40), dtype)
    solve((), Solve(Stencil(f.shape, (1.0, 1.0)), 1e-3, 0.0, 2), f, np.zeros_like(f))
