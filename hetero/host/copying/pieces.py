"""Arrays of any strides cut into parts that follow each other in C order."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np

_LEAST_ROW = 128  # bytes


def in_rows(array: np.ndarray) -> tuple[np.ndarray] | tuple[()]:
    """An array as rows of contiguous memory at equal distances, or as one; nothing where it is
    neither, and where rows are too short to copy each by itself.
    """
    if array.flags.c_contiguous:
        return (array,)
    if array.ndim == 2 and array.strides[1] == array.itemsize and array.shape[0] > 1:
        return (array,) if array.shape[1] * array.itemsize >= _LEAST_ROW else ()
    axis, row = array.ndim, array.itemsize
    while axis and (array.shape[axis - 1] == 1 or array.strides[axis - 1] == row):
        axis -= 1
        row *= array.shape[axis]
    outer = [(n, step) for n, step in zip(array.shape[:axis], array.strides, strict=False) if n > 1]
    apart = any(a[1] != b[0] * b[1] for a, b in itertools.pairwise(outer))
    if apart or not outer or row < _LEAST_ROW or not array.size:
        return ()
    shape = math.prod(n for n, _ in outer), row // array.itemsize
    return (np.lib.stride_tricks.as_strided(array, shape, (outer[-1][1], array.itemsize)),)


def behind(array: np.ndarray, nbytes: int) -> np.ndarray | None:
    """What follows so many bytes of an array that `in_rows` made; None within a row."""
    if array.flags.c_contiguous:
        return array.reshape(-1).view(np.uint8)[nbytes:]
    row = array.shape[1] * array.itemsize
    return None if nbytes % row else array[nbytes // row :]


def pieces(array: np.ndarray, most: int) -> tuple[int, Callable[[int], tuple[np.ndarray, int]]]:
    """An array in parts that follow each other in C order.

    Parameters
    ----------
    array : numpy.ndarray
        Of any strides.
    most : int
        Bytes of a part, but for single elements that have more.

    Returns
    -------
    count : int
    piece : callable
        ``piece(i)``: a view of the array, and the number of bytes before it.
    """
    if not array.size:
        return 0, lambda i: (array, 0)
    if array.flags.c_contiguous:
        flat = array.reshape(-1).view(np.uint8)
        return -(-flat.nbytes // most), lambda i: (flat[i * most : (i + 1) * most], i * most)
    axis, inner = array.ndim - 1, array.itemsize
    while axis and inner * array.shape[axis] <= most:
        inner *= array.shape[axis]
        axis -= 1
    length, outer = array.shape[axis], array.shape[:axis]
    parts = -(-length // max(most // inner, 1))

    def piece(i: int) -> tuple[np.ndarray, int]:
        before, part = divmod(i, parts)
        begin, end = part * length // parts, (part + 1) * length // parts
        index = np.unravel_index(before, outer) if outer else ()
        return array[(*index, slice(begin, end))], (before * length + begin) * inner

    return math.prod(outer) * parts, piece
