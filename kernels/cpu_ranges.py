"""How large an image's values are, block by block, on the CPU's threads."""

from __future__ import annotations

import numpy as np

from .cpu import prange, shared, threaded

__all__ = ["block_sums"]


@threaded
def _block_sums(planes, sums, peaks):  # type: ignore
    batch, down, across = sums.shape
    height, width = planes.shape[1:]
    for task in prange(batch * down):
        b, i = task // down, task % down
        total = np.zeros(width)  # of each column: long loops vectorise
        for row in range(i * height // down, (i + 1) * height // down):
            line = planes[b, row]
            for column in range(width):
                total[column] += np.float64(abs(line[column]))
        peaks[b, i] = total.max()
        for j in range(across):
            sums[b, i, j] = total[j * width // across : (j + 1) * width // across].sum()


def block_sums(planes: np.ndarray, rows: int, columns: int) -> tuple[np.ndarray, np.ndarray]:
    """Sums of absolute values over blocks of at least ``rows`` by ``columns``, or all there is.

    Parameters
    ----------
    planes : (batch, h, w) ndarray of float32 or float64
        Copied where it is not C-contiguous.

    Returns
    -------
    sums : (batch, down, across) ndarray of float64
    peaks : (batch,) ndarray of float64
        The largest sum over one column of a block: no absolute value is larger.
    """
    batch, height, width = planes.shape
    down, across = max(height // rows, 1), max(width // columns, 1)
    sums, peaks = np.empty((batch, down, across)), np.empty((batch, down))
    planes = np.ascontiguousarray(planes)  # a layout more would be compiled again, for seconds
    shared(planes.size, _block_sums, planes, sums, peaks)
    return sums, peaks.max(axis=1)
