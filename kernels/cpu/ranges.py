"""How large an image's values are, block by block, on the CPU's threads."""

from __future__ import annotations

import numpy as np

from hetero.host.threads import compiled, helper, no_overlap, part, team_for

__all__ = ["block_sums", "least_lines"]


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


@helper
def _line(plane, first, last, place, transposed):  # type: ignore
    """Sum, number and least of the values of a part of a column, or row, that are not zero."""
    total, count, least = 0.0, 0, np.inf
    for k in range(first, last):
        value = np.float64(abs(plane[place, k] if transposed else plane[k, place]))
        if value > 0.0:
            total += value
            count += 1
            least = min(least, value)
    return total, count, least


@compiled
def _least_lines(team, planes, blocks, down, across, sums):  # type: ignore
    _find_least(team, len(blocks), (planes, blocks, down, across, sums))


@part
def _find_least(start, stop, planes, blocks, down, across, sums):  # type: ignore
    no_overlap()
    _, height, width = planes.shape
    for task in range(start, stop):
        plane, result = planes[blocks[task, 0]], np.inf
        for transposed in (False, True):
            along, other = (2, 1) if transposed else (1, 2)
            i, j = blocks[task, along], blocks[task, other]
            n, m = (across, down) if transposed else (down, across)
            length, breadth = (width, height) if transposed else (height, width)
            first, last = i * length // n, (i + 1) * length // n
            before, after = max(i - 1, 0) * length // n, min(i + 2, n) * length // n
            for line in range(j * breadth // m, (j + 1) * breadth // m):
                total, count, least = _line(plane, first, last, line, transposed)
                if count > 0:
                    sum0, count0, _ = _line(plane, before, first, line, transposed)
                    sum1, count1, _ = _line(plane, last, after, line, transposed)
                    dense = 2 * (count + max(count0, count1)) >= last - first
                    result = min(result, total + max(sum0, sum1) if dense else least)
        sums[task] = result


def least_lines(planes: np.ndarray, blocks: np.ndarray, down: int, across: int) -> np.ndarray:
    """The least row or column of blocks that is not all zero, with its continuation.

    A line that begins or ends in a block goes on in the next: of the two next to it, the larger one
    is added. Of a line of few values that are not zero, the least of them counts.

    Parameters
    ----------
    planes : (batch, h, w) ndarray of float32 or float64
    blocks : (n, 3) ndarray of int64
        Plane, row and column of each block.
    down, across : int
        How many blocks there are.

    Returns
    -------
    (n,) ndarray of float64
        Sums of absolute values; inf for a block of zeros.
    """
    sums = np.empty(len(blocks))
    planes = np.ascontiguousarray(planes)
    work = len(blocks) * planes[0].size // (down * across) * 8
    _least_lines(team_for(work), planes, np.ascontiguousarray(blocks), down, across, sums)
    return sums
