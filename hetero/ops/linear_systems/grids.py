"""Grids for geometric multigrid: which there are, and how to get from one to the next.

A coarse grid has half the points of the fine one along each axis that is coarsened, evenly spread
over the same extent; for 2^k - 1 points those are every second one, for others they lie between.
Prolongation is linear interpolation along each axis, restriction its transpose scaled by h / H, so
that a cycle with symmetric smoothing is a symmetric operator. Axes along which the points are much
further apart than along another one are not coarsened until the others have caught up: point
smoothing does nothing for them.

After U. Trottenberg, C. Oosterlee, A. Schueller, "Multigrid", Academic Press, 2001, chapters 2, 5.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from hetero.kernels.multigrid.transfers import Transfer, transfer
from hetero.ops.linear_systems.types import Stencil

OMEGA = 1.2  # over-relaxation: a V(1,1)-cycle then leaves 0.05 in 2-D and 0.08 in 3-D, of 0.14, 0.2
_COARSEST, _COARSEST_ON_CPU = 64, 256  # points that a dense inverse takes care of
_EVEN = 1.6  # ratio of spacings up to which axes are coarsened together


class Grid(NamedTuple):
    """One level: a box of (nz, ny, nx) points, ny = 1 in 2-D, and the way to the next coarser one.

    Attributes
    ----------
    shape : (nz, ny, nx)
    weights : tuple of float
        1 / spacing^2 along z, y, x; 0 for the one that 2-D has not.
    transfers : tuple of Transfer or None
        To the next coarser grid; None for the coarsest.
    """

    shape: tuple[int, int, int]
    weights: tuple[float, float, float]
    transfers: tuple[Transfer, ...] | None

    @property
    def points(self) -> int:
        """Number of points."""
        return math.prod(self.shape)


def coarsest(kind: str) -> int:
    """Points of the coarsest grid at most, on a kind of device."""
    return _COARSEST_ON_CPU if kind == "cpu" else _COARSEST


def hierarchy(stencil: Stencil, coarsest: int) -> list[Grid]:
    """Grids from the finest to one of at most so many points, which a dense inverse takes care of.

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
    # Along an axis the operator's eigenvectors are sines. Not by BLAS: see `cpu_vectors`.
    vectors, values = [], np.zeros((1,) * len(grid.shape))
    for axis, (n, w) in enumerate(zip(grid.shape, grid.weights, strict=True)):
        k = np.arange(1, n + 1)
        vectors.append(math.sqrt(2.0 / (n + 1)) * np.sin(np.pi / (n + 1) * np.outer(k, k)))
        along = [1] * len(grid.shape)
        along[axis] = n
        values = values + (4.0 * w * np.sin(0.5 * np.pi / (n + 1) * k) ** 2).reshape(along)
    inverse = np.einsum("ik,ak,kyx->iayx", vectors[0], vectors[0], 1.0 / values)
    inverse = np.einsum("jy,by,iayx->ijabx", vectors[1], vectors[1], inverse)
    inverse = np.einsum("lx,cx,ijabx->ijlabc", vectors[2], vectors[2], inverse)
    inverse = inverse.reshape(grid.points, grid.points)
    return 0.5 * (inverse + inverse.T)
