"""What the multigrid kernels must know of an axis: how its points go over into a coarser grid's."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

__all__ = ["Transfer", "tiles", "transfer"]

_TAPS = 4  # fine points that a coarse one takes from, at most


class Transfer(NamedTuple):
    """One axis between a fine grid of n points and a coarse one of m.

    Each fine point is interpolated between the coarse one to its left, -1 for the boundary, and the
    next one. A coarse one takes from four fine ones, of which some may lie outside, with weight 0.
    """

    left: np.ndarray  # (n,) int32
    weight: np.ndarray  # (n,) float64, of the right one; the left one has the rest
    first: np.ndarray  # (m,) int32, the first of the four
    taps: np.ndarray  # (m, 4) float64, their weights


@lru_cache(maxsize=64)
def transfer(n: int, m: int) -> Transfer:
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
    """One axis cut into tiles of that many coarse points, and the fine ones that go with them.

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
