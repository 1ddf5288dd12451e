"""Launch plans of multigrid cycles, and what their kernels must know of an axis: how its points go
over into a coarser grid's."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from ..common.launch import REAL, Launch, Target, ceil_div, launch

DOWN, DOWN_FROM_ZERO, UP, UP_WITH_SQUARES = range(4)  # modes of a pass, as in multigrid.cu
# Buffers of a pass with what it must know of each axis: fields of `Transfer`.
TABLES = (
    *(f"{axis} {field}" for axis in "zyx" for field in ("left", "weight")),
    *(f"{axis} {field}" for axis in "yx" for field in ("first", "taps")),
)

_TAPS = 4  # fine points that a coarse one takes from, at most
_SUM_THREADS = 128
HALO = 3  # points around a tile that its own depend on
# A window in 2-D: pairs of points, blocks that a multiprocessor is to hold, rows to prefetch.
_FLAT_PAIRS = 128
_FLAT_RESIDENT = {"float32": 8, "float64": 5}
_FLAT_AHEAD = 4
# In 3-D: pairs of points and rows; coarse planes of a tile, fewer where a multiprocessor would have
# less than `_BLOCKS`.
_PAIRS = 32
_WINDOW_ROWS = {"float32": 28, "float64": 20}
_MOST_PLANES, _LEAST_PLANES = 32, 4
_BLOCKS = 4

Box = tuple[int, int, int]  # (nz, ny, nx); ny = 1 in 2-D


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
    place = np.arange(1, n + 1) * (m + 1) / (n + 1)  # in coarse spacings from the boundary
    place = np.where(np.abs(place - np.rint(place)) < 1e-9, np.rint(place), place)
    below, coarse = np.floor(place), np.arange(m)
    # A coarse point takes from the fine ones that are less than a spacing away.
    first = np.searchsorted(place, coarse, side="right")
    points = first[:, None] + np.arange(_TAPS)
    away = np.abs(place[np.minimum(points, n - 1)] - (coarse[:, None] + 1))
    taps = np.where(points < n, np.maximum(1.0 - away, 0.0), 0.0) * (m + 1) / (n + 1)
    return Transfer(below.astype(np.int32) - 1, place - below, first.astype(np.int32), taps)


def tiles(transfer: Transfer, points: int) -> np.ndarray:
    """One axis cut into tiles of that many coarse points, and the fine ones that go with them.

    Returns (tiles, 5) int32, of each tile: its first fine point, the end of its fine points, the
    end of all those that its coarse points take from (they begin with its own), its first coarse
    point, their end.
    """
    n, m = len(transfer.left), len(transfer.first)
    begin = np.searchsorted(transfer.left, np.arange(m + 1) - 1)
    start = np.arange(0, m, points)
    end = np.minimum(start + points, m)
    last = np.where(end < m, begin[np.minimum(end + 1, m)], n)
    return np.stack(
        [begin[start], np.where(end < m, begin[end], n), last, start, end], axis=1
    ).astype(np.int32)


def plan_sweep(
    shape: Box, coarse: Box, weights: tuple[float, ...], dtype: str, target: Target
) -> tuple[Box, Callable[..., Launch]]:
    """Choose tiles, and a window of multigrid.cu's passes between a grid and the next coarser one.

    A block's window is 2 * pairs points wide and ``rows`` high; its threads are pairs * rows. A
    multiprocessor is to hold ``resident`` blocks: as many as registers allow without spills, where
    points are read in pairs; one less where they are not.

    ``weights`` are 1 / spacing^2 along each axis. Returns the most coarse points of a tile along
    each axis, and ``launch(tiles, omega, aligned, first, mode)``, which gives a pass with that many
    tiles along each; ``aligned``: rows begin at addresses that two elements divide. Its buffers are
    "u", "f", "out", "coarse", "sums" (8 bytes a tile), the axes' tiles "z", "y", "x", and `TABLES`.
    """
    flat = shape[1] == 1
    if flat:
        pairs, rows, resident = _FLAT_PAIRS, 1, _FLAT_RESIDENT[dtype]
    else:
        pairs, rows, resident = _PAIRS, _WINDOW_ROWS[dtype], 1
    if pairs * rows > target.block_limit:
        pairs, rows = (target.block_limit, 1) if flat else (16, 16)
    # A window holds a tile with its halo and, along x, what it takes to begin at an even point. A
    # coarsened axis has up to two fine points between coarse ones, and as many before the first.
    x = pairs - HALO - 2 if coarse[2] < shape[2] else pairs
    y = 1
    if not flat:
        y = rows // 2 - HALO - 1 if coarse[1] < shape[1] else rows - 2 * HALO - 1
    across = ceil_div(coarse[1], y) * ceil_div(coarse[2], x)
    z = _MOST_PLANES
    enough = _BLOCKS * target.multiprocessors
    while z > _LEAST_PLANES and across * ceil_div(coarse[0], z) < enough:
        z //= 2
    shared = {"REAL2": f"{REAL[dtype]}2", "PAIRS": pairs, "ROWS": rows}
    shared["AHEAD"] = _FLAT_AHEAD if flat else 0  # planes that are prefetched

    def pass_over(tiles: Box, omega: float, aligned: bool, first: int, mode: int) -> Launch:
        diagonal = 2.0 * sum(weights)
        box = (*shape, *weights, diagonal, 1.0 / diagonal, omega)
        macros = shared | {"ALIGNED": int(aligned), "MODE": mode, "FIRST": first}
        macros["RESIDENT"] = resident if aligned else max(resident - 1, 1)
        where = "multigrid.cu", "sweep", dtype, math.prod(tiles), pairs * rows
        grids = *coarse, "z", "y", "x", *tiles[1:], *TABLES
        return launch(*where, ("u", "f", "out", "coarse", "sums", *box, *grids), **macros)

    return (z, y, x), pass_over


def squares(
    shape: Box,
    weights: tuple[float, float, float],
    dtype: str,
    target: Target,
    rows: tuple[int, int],
    blocks: int,
    pitch: int = 0,
) -> Launch:
    """Plan sums of squares of f - A u and of f, in double, by block, over a range of rows.

    A sum is over whole lines in turn: with a block for each line, its bits do not depend on the
    range. Rows are ``pitch`` elements apart, by default as many as they have. Buffers: "u", "f" and
    "squares", with two doubles for each block.
    """
    threads = min(_SUM_THREADS, target.block_limit)
    box = (*shape, pitch or shape[1] * shape[2], *rows, blocks, *map(float, weights))
    where = "stencil.cu", "stencil_squares", dtype, blocks, threads
    dims = 3 if shape[1] > 1 else 2
    return launch(*where, ("u", "f", "squares", *box), DIMS=dims, THREADS=threads)
