"""Sparse matrix times vector on the CPU, in compressed rows, with repeated rows read once.

The matrices of regular grids repeat themselves: row after row has the same entries, one column
further. `runs` finds such stretches; there only the first row is read, and the product is a sum of
shifted vectors, which vectorises and moves no matrix. Anything else is done row by row.

A matrix is cut into chunks of CHUNK rows, what a thread takes at a time, and those into blocks that
are either repeats or not: block b is rows cut[b] ... cut[b + 1], chunk c blocks first[c] ...
first[c + 1].
"""

from __future__ import annotations

import functools

import numpy as np

from hetero.host.threads import by_size, inlined, no_overlap, part

__all__ = ["CHUNK", "block_times", "runs"]

CHUNK = 2048  # rows: four such vectors of float64 are 64 KB, in reach of an L1 or L2 cache
_LEAST = 16  # rows that a run must have
_FEW = 256  # rows; runs of a smaller matrix are not worth looking for


@by_size()
def _mark(team, indices, indptr, data, same):
    """Mark the rows that are the row before, one column further."""
    _same_as_previous(team, (same.size + CHUNK - 1) // CHUNK, (indptr, indices, data, same))


@part
def _same_as_previous(start, stop, indptr, indices, data, same):
    no_overlap()
    n = same.size
    for c in range(start, stop):
        for i in range(max(1, c * CHUNK), min(n, c * CHUNK + CHUNK)):
            length = indptr[i + 1] - indptr[i]
            equal = length == indptr[i] - indptr[i - 1]
            if equal:
                for j in range(indptr[i], indptr[i + 1]):
                    if indices[j] != indices[j - length] + 1 or data[j] != data[j - length]:
                        equal = False
                        break
            same[i] = equal


def runs(
    indptr: np.ndarray, indices: np.ndarray, data: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cut a square matrix into runs of repeated rows and the rest.

    Parameters
    ----------
    indptr, indices, data : ndarray
        Compressed rows; column indices need not be sorted.

    Returns
    -------
    cut : (blocks + 1,) int64
    repeats : (blocks,) bool
    first : (chunks + 1,) int64
    """
    n = indptr.size - 1
    if n < _FEW:
        return _whole(n)
    same = np.zeros(n, np.bool_)
    _mark(indices, indptr, data, same)
    starts = np.flatnonzero(~same)
    ends = np.append(starts[1:], n)
    long = ends - starts >= _LEAST
    marks = np.zeros(n + 1, np.bool_)
    marks[starts[long]] = marks[ends[long]] = marks[::CHUNK] = marks[n] = True
    cut = np.flatnonzero(marks)
    inside = np.zeros(n + 1, np.int8)
    inside[starts[long]] += 1
    inside[ends[long]] -= 1
    chunks = np.append(np.arange(0, n, CHUNK), n)
    return cut, np.cumsum(inside)[cut[:-1]] > 0, np.searchsorted(cut, chunks)


@functools.lru_cache(maxsize=_FEW)
def _whole(n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A matrix of no more than one chunk as one block without repeats."""
    return np.array([0, n]), np.zeros(1, np.bool_), np.array([0, 1])


@inlined
def block_times(indptr, indices, data, p, q, lo, repeats):
    """q = A p for the rows lo ... lo + len(q), which are one block.

    Unsigned indices spare a test of each for being negative.
    """
    n = q.size
    j = np.uint64(indptr[lo])
    end = np.uint64(indptr[lo + 1])
    if not repeats:
        for i in range(n):
            end = np.uint64(indptr[lo + i + 1])
            total = p.dtype.type(0)
            while j < end:
                total += data[j] * p[np.uint64(indices[j])]
                j += np.uint64(1)
            q[i] = total
        return
    for i in range(n):
        q[i] = 0
    while end - j >= np.uint64(3):
        at_a = indices[j]
        at_b = indices[j + np.uint64(1)]
        at_c = indices[j + np.uint64(2)]
        a = p[at_a : at_a + n]
        b = p[at_b : at_b + n]
        c = p[at_c : at_c + n]
        u = data[j]
        v = data[j + np.uint64(1)]
        w = data[j + np.uint64(2)]
        for i in range(n):
            q[i] += u * a[i] + v * b[i] + w * c[i]
        j += np.uint64(3)
    while j < end:
        at_a = indices[j]
        a = p[at_a : at_a + n]
        u = data[j]
        for i in range(n):
            q[i] += u * a[i]
        j += np.uint64(1)
