"""`ranges.block_sums` by NumPy alone, used while its loops are compiled."""

from __future__ import annotations

import numpy as np

__all__ = ["block_sums"]


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
