"""Geometric multigrid: which grids there are, how to get from one to the next, and the cycle.

A coarse grid has half the points of the fine one along each axis that is coarsened, evenly spread
over the same extent; for 2^k - 1 points those are every second one, for others they lie between.
Prolongation is linear interpolation along each axis, restriction its transpose scaled by h / H, so
that a cycle with symmetric smoothing is a symmetric operator. Axes along which the points are much
further apart than along another one are not coarsened until the others have caught up: point
smoothing does nothing for them.

The cycle is V(1,1), of red-black over-relaxation. `multigrid_cpu` and `multigrid_device` make its
passes.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001, chapters 2, 5;
the over-relaxation after I. Yavneh, "On red-black SOR smoothing in multigrid", SIAM J. Sci. Comput.
17 (1996), 180-192.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hetero import locks
from hetero.kernels.multigrid.plan import DOWN, DOWN_FROM_ZERO, UP, UP_WITH_SQUARES
from hetero.kernels.multigrid.transfers import Transfer, transfer
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    LIMIT,
    ROUNDING,
    Outcome,
    Stencil,
    judged,
    line_eigenvalues,
)

# Over-relaxation, by which a V(1,1)-cycle leaves 0.05 in 2-D and 0.08 in 3-D, of 0.14 and 0.2; the
# symmetric one is better without.
OMEGA = {False: 1.2, True: 1.0}
SOLVED = -1  # the mode of the coarsest grid, by its inverse
_COARSEST, _COARSEST_ON_CPU = 64, 256  # points that a dense inverse takes care of
LEAST_SHARED = 1 << 21  # points of a grid from which several devices gain more than they wait
LEAST_PLANES = 32  # of such a grid; half as many coarse ones, of which each device gets some
_STALLED = 0.7  # a cycle that leaves more of the residual than this has met rounding
_EVEN = 1.6  # ratio of spacings up to which axes are coarsened together


class Grid(NamedTuple):
    """One level: a box of points, and the way to the next coarser one."""

    shape: tuple[int, int, int]  # (nz, ny, nx), ny = 1 in 2-D
    weights: tuple[float, float, float]  # 1 / spacing^2 along z, y, x; in 2-D 0 along y
    transfers: tuple[Transfer, ...] | None  # to the next coarser grid; None for the coarsest

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.shape)


def is_shared(shape: tuple[int, ...]) -> bool:
    """Whether several devices divide a grid; of other grids each makes the whole."""
    return math.prod(shape) >= LEAST_SHARED and shape[0] >= LEAST_PLANES


def coarsest(kind: str) -> int:
    """Points of the coarsest grid at most, on a kind of device."""
    return _COARSEST_ON_CPU if kind == "cpu" else _COARSEST


def hierarchy(stencil: Stencil, coarsest: int) -> list[Grid]:
    """Grids from the finest to one of at most ``coarsest`` points, which a dense inverse solves.

    A 2-D grid's rows are planes of one row: z is its first axis, and there is no y.
    """
    shape, spacing = tuple(stencil.shape), tuple(map(float, stencil.spacing))
    if len(shape) == 2:
        shape = shape[0], 1, shape[1]
        spacing = spacing[0], math.inf, spacing[1]
    grids: list[Grid] = []
    while True:
        weights = tuple(1.0 / h**2 for h in spacing)
        least = min((h for n, h in zip(shape, spacing, strict=True) if n > 1), default=math.inf)
        coarse = tuple(
            n // 2 if n > 1 and h <= _EVEN * least else n
            for n, h in zip(shape, spacing, strict=True)
        )
        if math.prod(shape) <= coarsest or coarse == shape:
            return [*grids, Grid(shape, weights, None)]
        transfers = tuple(transfer(n, m) for n, m in zip(shape, coarse, strict=True))
        grids.append(Grid(shape, weights, transfers))
        spacing = tuple(
            h * (n + 1) / (m + 1) for h, n, m in zip(spacing, shape, coarse, strict=True)
        )
        shape = coarse


def coarsest_inverse(grid: Grid) -> np.ndarray:
    """The inverse of the coarsest grid's operator, dense, float64, symmetric."""
    # Along an axis the operator's eigenvectors are sines. Not by BLAS: see `kernels.cpu.vectors`.
    vectors, values = [], np.zeros((1,) * len(grid.shape))
    for axis, (n, w) in enumerate(zip(grid.shape, grid.weights, strict=True)):
        k = np.arange(1, n + 1)
        vectors.append(math.sqrt(2.0 / (n + 1)) * np.sin(np.pi / (n + 1) * np.outer(k, k)))
        along = [1] * len(grid.shape)
        along[axis] = n
        values = values + line_eigenvalues(n, w).reshape(along)
    inverse = np.einsum("ik,ak,kyx->iayx", vectors[0], vectors[0], 1.0 / values)
    inverse = np.einsum("jy,by,iayx->ijabx", vectors[1], vectors[1], inverse)
    inverse = np.einsum("lx,cx,ijabx->ijlabc", vectors[2], vectors[2], inverse)
    inverse = inverse.reshape(grid.points, grid.points)
    return 0.5 * (inverse + inverse.T)


class Pass(NamedTuple):
    """One pass of a cycle over a level.

    On the way down it reads u, improves it into ``work``, and writes the coarser grid's f; on the
    way up it reads ``work`` and the coarser grid's u, and writes u. The coarsest grid is `SOLVED`.
    """

    level: int
    first: int  # the color that is relaxed first
    mode: int

    @property
    def is_down(self) -> bool:
        """Whether it is one of the way down."""
        return self.mode in (DOWN, DOWN_FROM_ZERO)


def cycle(levels: int, symmetric: bool) -> list[Pass]:
    """The passes of a V(1,1)-cycle over that many levels and the coarsest grid.

    A ``symmetric`` one begins from zero and smooths back in reverse.
    """
    down = [Pass(n, 0, DOWN_FROM_ZERO if n or symmetric else DOWN) for n in range(levels)]
    modes = [UP if n or symmetric else UP_WITH_SQUARES for n in range(levels)]
    up = [Pass(n, int(symmetric), modes[n]) for n in reversed(range(levels))]
    return [*down, Pass(levels, 0, SOLVED), *up]


class Hierarchy:
    """The grids of one stencil, with room for a cycle; `locks.sole` gives it to one thread.

    ``bound(f, u, symmetric)`` gives what improves u by a cycle, or with ``symmetric`` makes it M f;
    ``norms(f, u)`` the 2-norms of f - A u and of f; ``residual()`` that of f - A u as the last
    cycle left it, of u as it is stored where the hierarchy is ``exact``; ``zero(u)`` clears u.
    """

    exact = False

    def __init__(self) -> None:
        self.lock, self.user = locks.new(), None

    def solve(self, f: Any, u: Any, rtol: float, maxiter: int) -> Outcome:
        """Improve u by at most ``maxiter`` cycles, until norm(f - A u) <= rtol norm(f), or to
        ROUNDING: a cycle no longer reduces that."""
        improve = self.bound(f, u)
        residual, whole = self.norms(f, u)
        if whole == 0.0:
            self.zero(u)
            return Outcome(CONVERGED, 0, 0.0, 0.0)
        bound, done, stalled = rtol * whole, 0, False
        while math.isfinite(residual) and residual > bound and done < maxiter and not stalled:
            improve()
            done += 1
            before, residual = residual, self.residual()
            stalled = residual > _STALLED * before and done > 1
            # What an inexact pass finds is the residual but for the rounding of its own values.
            if not self.exact and (not residual > bound or stalled or done == maxiter):
                residual = self.norms(f, u)[0]
                stalled = stalled or (done > 1 and residual > _STALLED * before)
        return judged(residual, bound, ROUNDING if stalled else LIMIT, done, whole)
