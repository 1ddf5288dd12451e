"""`ranges` by NumPy alone, used while its loops are compiled."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

__all__ = ["all_finite", "block_sums", "least_lines"]


def _edges(size: int, count: int) -> np.ndarray:
    return np.arange(count + 1) * size // count


def block_sums(
    planes: np.ndarray, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of absolute values over blocks; as `ranges.block_sums`."""
    batch, height, width = planes.shape
    down, across = -(-height // rows), -(-width // columns)
    tall, wide = _edges(height, down), _edges(width, across)
    sums, peaks = np.empty((batch, down, across)), np.empty((batch, down))
    for b in range(batch):
        for i in range(down):  # a band at a time stays in the cache
            band = np.abs(planes[b, tall[i] : tall[i + 1]], dtype=np.float64).sum(axis=0)
            peaks[b, i] = band.max()
            sums[b, i] = np.add.reduceat(band, wide[:-1])
    return sums, np.outer(np.diff(tall), np.diff(wide)), peaks.max(axis=1)


def all_finite(planes: np.ndarray) -> bool:
    """As `ranges.all_finite`."""
    return bool(np.isfinite(planes).all())


class _Lines(NamedTuple):
    """Of each line in each block along it: sum, number and least of the values that are not 0."""

    total: np.ndarray
    count: np.ndarray
    least: np.ndarray


def _lines(plane: np.ndarray, edges: np.ndarray) -> _Lines:
    """Of the parts of a plane's columns between ``edges``: arrays of (parts, columns)."""
    values = np.abs(plane, dtype=np.float64)
    not_zero = values > 0.0
    values[~not_zero] = 0.0  # NaN: it is no larger than 0
    total = np.add.reduceat(values, edges[:-1], axis=0)
    count = np.add.reduceat(not_zero, edges[:-1], axis=0, dtype=np.int64)
    values[~not_zero] = np.inf
    return _Lines(total, count, np.minimum.reduceat(values, edges[:-1], axis=0))


def least_lines(planes: np.ndarray, blocks: np.ndarray, down: int, across: int) -> np.ndarray:
    """The least row or column of blocks that is not all zero; as `ranges.least_lines`."""
    height, width = planes.shape[1:]
    sums = np.full(len(blocks), np.inf)
    for number in np.unique(blocks[:, 0]):
        mine = blocks[:, 0] == number
        _, i, j = blocks[mine].T
        tall, wide = _edges(height, down), _edges(width, across)
        columns = _least(_lines(planes[number], tall), np.diff(tall), wide)[i, j]
        rows = _least(_lines(planes[number].T, wide), np.diff(wide), tall)[j, i]
        sums[mine] = np.minimum(columns, rows)
    return sums


def _least(lines: _Lines, lengths: np.ndarray, across: np.ndarray) -> np.ndarray:
    """The least line of each block, with its continuation in the block before or after it."""
    none = ((1, 1), (0, 0))
    total, count = np.pad(lines.total, none), np.pad(lines.count, none)
    more = np.maximum(count[:-2], count[2:])
    dense = 2 * (lines.count + more) >= lengths[:, None]
    values = np.where(dense, lines.total + np.maximum(total[:-2], total[2:]), lines.least)
    values[lines.count == 0] = np.inf
    return np.minimum.reduceat(values, across[:-1], axis=1)
