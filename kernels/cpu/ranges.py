"""How large an image's values are, block by block, on the CPU's threads."""

from __future__ import annotations

import numpy as np

from hetero.host.threads import compiled, no_overlap, part, team_for

__all__ = ["block_sums"]


@compiled
def _block_sums(team, planes, sums, peaks):  # type: ignore
    _sum_blocks(team, sums.shape[0] * sums.shape[1], (planes, sums, peaks))


@part
def _sum_blocks(start, stop, planes, sums, peaks):  # type: ignore
    no_overlap()
    _, down, across = sums.shape
    _, height, width = planes.shape
    total = np.empty(width)  # of each column: long loops vectorise
    for task in range(start, stop):
        b, i = task // down, task % down
        total[:] = 0.0
        for row in range(i * height // down, (i + 1) * height // down):
            line = planes[b, row]
            for column in range(width):
                total[column] += np.float64(abs(line[column]))
        peak, end = 0.0, 0
        for j in range(across):
            begin, end = end, (j + 1) * width // across
            block, inside, most = total[begin:end], 0.0, 0.0
            for column in range(block.size):
                inside += block[column]
                most = block[column] if block[column] > most else most  # a NaN shows in the sums
            sums[b, i, j] = inside
            peak = most if most > peak else peak
        peaks[b, i] = peak


def block_sums(
    planes: np.ndarray, rows: int, columns: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Sums of absolute values over blocks of at most ``rows`` by ``columns``.

    Parameters
    ----------
    planes : (batch, h, w) ndarray of float32 or float64
        Copied where it is not C-contiguous.

    Returns
    -------
    sums : (batch, down, across) ndarray of float64
    areas : (down, across) ndarray of int64
        The number of each block's values.
    peaks : (batch,) ndarray of float64
        The largest sum over one column of a block: no absolute value is larger.
    """
    batch, height, width = planes.shape
    down, across = -(-height // rows), -(-width // columns)
    sums, peaks = np.empty((batch, down, across)), np.empty((batch, down))
    planes = np.ascontiguousarray(planes)  # each further layout would be compiled, for seconds
    _block_sums(team_for(planes.size), planes, sums, peaks)
    return sums, np.outer(_extents(height, down), _extents(width, across)), peaks.max(axis=1)


def _extents(size: int, count: int) -> np.ndarray:
    return np.diff(np.arange(count + 1) * size // count)
