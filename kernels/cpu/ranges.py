"""How large an image's values are, block by block, on the CPU's threads."""

from __future__ import annotations

import numpy as np
from numba import prange

from hetero.host.threads import helper, shared, threaded

__all__ = ["block_sums", "least_lines"]


@threaded
def _block_sums(planes, sums, peaks):  # type: ignore
    down = sums.shape[1]
    for task in prange(sums.shape[0] * down):
        _sum_blocks(np.int64(task) // down, np.int64(task) % down, planes, sums, peaks)


@helper
def _sum_blocks(b, i, planes, sums, peaks):  # type: ignore
    """Sum a row of blocks."""
    _, down, across = sums.shape
    _, height, width = planes.shape
    total = np.zeros(width)  # of each column: long loops vectorise
    for row in range(i * height // down, (i + 1) * height // down):
        for column in range(width):
            total[column] += np.float64(abs(planes[b, row, column]))
    peak, end = 0.0, 0
    for j in range(across):
        begin, end = end, (j + 1) * width // across
        inside, most = 0.0, 0.0
        for column in range(np.uint64(begin), np.uint64(end)):
            inside += total[column]
            most = total[column] if total[column] > most else most  # a NaN shows in the sums
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
    shared(planes.size, _block_sums, planes, sums, peaks)
    return sums, np.outer(_extents(height, down), _extents(width, across)), peaks.max(axis=1)


def _extents(size: int, count: int) -> np.ndarray:
    return np.diff(np.arange(count + 1) * size // count)


@helper
def _line(planes, b, first, last, place, transposed):  # type: ignore
    """Sum, number and least of the values of a part of a column, or row, that are not zero."""
    total, count, least, at = 0.0, 0, np.inf, np.uint64(place)
    for k in range(np.uint64(first), np.uint64(last)):
        value = np.float64(abs(planes[b, at, k] if transposed else planes[b, k, at]))
        if value > 0.0:
            total += value
            count += 1
            least = min(least, value)
    return total, count, least


@threaded
def _least_lines(planes, blocks, down, across, sums):  # type: ignore
    _, height, width = planes.shape
    for task in prange(len(blocks)):
        b, result = np.uint64(blocks[task, 0]), np.inf
        for transposed in (False, True):
            along, other = (2, 1) if transposed else (1, 2)
            i, j = blocks[task, along], blocks[task, other]
            n, m = (across, down) if transposed else (down, across)
            length, breadth = (width, height) if transposed else (height, width)
            first, last = i * length // n, (i + 1) * length // n
            before, after = max(i - 1, 0) * length // n, min(i + 2, n) * length // n
            for line in range(j * breadth // m, (j + 1) * breadth // m):
                total, count, least = _line(planes, b, first, last, line, transposed)
                if count > 0:
                    sum0, count0, _ = _line(planes, b, before, first, line, transposed)
                    sum1, count1, _ = _line(planes, b, last, after, line, transposed)
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
    shared(work, _least_lines, planes, np.ascontiguousarray(blocks), down, across, sums)
    return sums
