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

from hetero.ops.linear_systems.types import Stencil

OMEGA = 1.2  # over-relaxation: a V(1,1)-cycle then leaves 0.05 in 2-D and 0.08 in 3-D, of 0.14, 0.2
_EVEN = 1.6  # ratio of spacings up to which axes are coarsened together
_TAPS = 4  # fine points that a coarse one takes from, at most


class Transfer(NamedTuple):
    """One axis between a fine grid of n points and a coarse one of m.

    Attributes
    ----------
    left : (n,) int32
        Coarse point to the left of each fine one, -1 for the boundary; the other is the next one.
    weight : (n,) float64
        Weight of the right one; the left one has the rest.
    first : (m,) int32
        First fine point that each coarse one takes from; it may lie outside, with weight 0.
    taps : (m, 4) float64
        Their weights.
    """

    left: np.ndarray
    weight: np.ndarray
    first: np.ndarray
    taps: np.ndarray


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
        transfers = tuple(_transfer(n, m) for n, m in zip(shape, coarse, strict=True))
        grids.append(Grid(shape, weights, transfers))
        spacing = tuple(
            h * (n + 1) / (m + 1) for h, n, m in zip(spacing, shape, coarse, strict=True)
        )
        shape = coarse


def _transfer(n: int, m: int) -> Transfer:
    """Linear interpolation from m to n evenly spread points; the identity if they are as many."""
    if n == m:
        points = np.arange(n, dtype=np.int32)
        taps = np.zeros((n, _TAPS))
        taps[:, 0] = 1.0
        return Transfer(points, np.zeros(n), points, taps)
    place = np.arange(1, n + 1) * (m + 1) / (n + 1)  # in coarse spacings from the boundary
    place = np.where(np.abs(place - np.rint(place)) < 1e-9, np.rint(place), place)
    below = np.floor(place).astype(np.int32)
    weight = place - below
    # A coarse point takes from the fine ones whose right neighbour it is, then whose left one.
    rising = np.flatnonzero((below < m) & (weight > 0.0)).astype(np.int32)
    falling = np.flatnonzero(below > 0).astype(np.int32)
    first = np.empty(m, np.int32)
    first[below[falling[::-1]] - 1] = falling[::-1]  # of several, the first one stays
    first[below[rising[::-1]]] = rising[::-1]
    taps = np.zeros((m, _TAPS))
    for points, coarse, part in (
        (rising, below[rising], weight[rising]),
        (falling, below[falling] - 1, 1.0 - weight[falling]),
    ):
        taps[coarse, points - first[coarse]] = part * (m + 1) / (n + 1)
    return Transfer(below - np.int32(1), weight, first, taps)


def tiles(transfer: Transfer, points: int) -> np.ndarray:
    """One axis cut into tiles of so many coarse points, and the fine ones that go with them.

    Returns
    -------
    (tiles, 5) int32
        Of each tile: its first fine point, the end of its fine points, the end of all those that
        its coarse points take from (they begin with its own), its first coarse point, their end.
    """
    n, m = len(transfer.left), len(transfer.first)
    begin = np.searchsorted(transfer.left, np.arange(m + 1) - 1)
    start = np.arange(0, m, points)
    end = np.minimum(start + points, m)
    last = np.where(end < m, begin[np.minimum(end + 1, m)], n)
    return np.stack(
        [begin[start], np.where(end < m, begin[end], n), last, start, end], axis=1
    ).astype(np.int32)


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
