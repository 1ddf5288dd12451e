"""`ranges.block_sums` by NumPy alone, used while its loops are compiled."""

from __future__ import annotations

import numpy as np

__all__ = ["block_sums"]


def block_sums(planes: np.ndarray, sums: np.ndarray, peaks: np.ndarray) -> None:
    """Sum up absolute values over blocks; as `ranges.block_sums`."""
    (_, height, width), (_, down, across) = planes.shape, sums.shape
    tall, begins = np.arange(down + 1) * height // down, np.arange(across) * width // across
    for b, i in np.ndindex(peaks.shape):  # a band at a time stays in the cache
        band = np.abs(planes[b, tall[i] : tall[i + 1]], dtype=np.float64).sum(axis=0)
        peaks[b, i] = band.max()
        sums[b, i] = np.add.reduceat(band, begins)
