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


def block_sums(planes: np.ndarray, sums: np.ndarray, peaks: np.ndarray) -> None:
    """Sum up absolute values of planes, (batch, h, w) of float32 or float64, C-contiguous.

    ``sums``, (batch, down, across) of float64, gets those of blocks, ``peaks``, (batch, down), the
    largest sum over one column of a block: no absolute value is larger.
    """
    _block_sums(team_for(planes.size), planes, sums, peaks)
