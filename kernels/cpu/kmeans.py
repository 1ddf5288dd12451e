"""Loops of k-means on the CPU: distances of rows from centroids, and sums of rows by label.

Rows are packed in blocks of `BLOCK`, less their mean and transposed, (blocks, d, BLOCK): a product
with the centroids then has the rows of a block along the last axis, over which the loop that looks
for the smallest distance vectorises. A block's distances are looked through while they are in the
cache. The products are BLAS's, of one thread each.

Sums of rows are kept from one iteration to the next: only rows that changed their label are added
and taken away. That is done in parts whose bounds do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numba import prange

from hetero.host.threads import helper, inlined, serial, shared, threaded

__all__ = [
    "BLOCK",
    "TILE",
    "add_parts",
    "assign",
    "by_work",
    "distances",
    "find_rows",
    "move_rows",
    "nearest",
    "nearest_seed",
    "pack",
    "potentials",
]

BLOCK = 64  # rows of points that are labelled together
TILE = 512  # centroids, whose distances from a block's rows stay in the cache
_PARTS = 64  # that threads share, of blocks that need room beside their rows
_WIDE = 256  # rows of a block that is not packed
_SERIAL = 1 << 16  # elements below which one thread is faster


def by_work(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``function(*arguments)`` with as many threads as an amount of work is worth.

    It is counted in elements that are read and used once, some 1 ns each.
    """
    kernel = threaded(function)

    def call(work: int, *arguments: Any) -> Any:
        if work < _SERIAL:
            return kernel.alone(*arguments)
        return shared(work, kernel, *arguments)

    return call


@by_work
def pack(X, mean, packed):
    """Fill ``packed`` with the rows of X less the mean, and with zeros after the last one."""
    n, d = X.shape
    for b in prange(packed.shape[0]):
        begin = np.uint64(b) * np.uint64(BLOCK)
        m = min(np.uint64(BLOCK), np.uint64(n) - begin)
        for c in range(d):
            for r in range(m):
                packed[b, c, r] = X[begin + r, c] - mean[c]
            for r in range(m, np.uint64(BLOCK)):
                packed[b, c, r] = 0


@by_work
def assign(packed, doubled, norms, labels, moved, was, numbers):
    """The nearest centroid of each row, of equally near ones the first.

    Parameters
    ----------
    packed : (blocks, d, BLOCK) array
    doubled : (k, d) array
        -2 times the centroids.
    norms : (k,) array
        Their squares.
    labels : (n,) array of int32
        Changed.
    moved, was : (n,) array of int64, (n,) array of int32
        Get, from the beginning of each part's rows on, the rows whose label changed, and what it
        was.
    numbers : (parts,) array of int64
        Gets how many these are.
    """
    for p in prange(numbers.size):
        _assign(np.int64(p), packed, doubled, norms, labels, moved, was, numbers)


@helper
def _assign(p, packed, doubled, norms, labels, moved, was, numbers):
    """`assign` of a part's rows."""
    blocks, k = packed.shape[0], doubled.shape[0]
    n, parts = labels.size, numbers.size
    products = np.empty((min(k, TILE), BLOCK), packed.dtype)
    least = np.empty(BLOCK, packed.dtype)
    which = np.empty(BLOCK, packed.dtype)  # as a number of the same width
    first, last = p * blocks // parts, (p + 1) * blocks // parts
    number = 0
    for b in range(first, last):
        _find_least(packed[b], doubled, norms, products, least, which)
        for r in range(min(BLOCK, n - b * BLOCK)):
            row = b * BLOCK + r
            label = np.int32(which[r])
            if labels[row] != label:
                moved[first * BLOCK + number] = row
                was[first * BLOCK + number] = labels[row]
                labels[row] = label
                number += 1
    numbers[p] = number


@inlined
def _find_least(rows, doubled, norms, products, least, which):
    """The least of each row's squared distances, less its own square, and which centroid's it is.

    ``rows`` is (d, rows of a block), ``products`` (centroids at a time, rows of a block).
    """
    k, tile = doubled.shape[0], products.shape[0]
    least[:] = np.inf
    which[:] = 0
    for begin in range(0, k, tile):
        size = min(tile, k - begin)
        np.dot(doubled[begin : begin + size], rows, products[:size])
        _keep_least(products[:size], norms, begin, least, which)


@inlined
def _keep_least(products, norms, begin, least, which):
    """Let the rows that are nearer to some centroids, from ``begin`` on, have these."""
    one = least.dtype.type(1)
    for j in range(products.shape[0]):
        norm = norms[begin + j]
        own = one * (begin + j)
        for r in range(least.size):
            value = products[j, r] + norm
            nearer = value < least[r]
            least[r] = value if nearer else least[r]
            which[r] = own if nearer else which[r]


@by_work
def nearest(X, mean, centroids, doubled, norms, labels, squares):
    """`assign` of rows that are labelled once, and not packed.

    Parameters
    ----------
    X, mean, centroids
        Rows, and centroids less the mean.
    doubled, norms
        As for `assign`.
    labels : (n,) array of int32
        Gets the nearest centroid; -1 where the distances are not finite.
    squares : (n,) or (0,) array
        Gets the rows' squared distances from that one, as `distances` does.
    """
    blocks = (labels.size + _WIDE - 1) // _WIDE
    parts = min(blocks, _PARTS)
    for p in prange(parts):
        begin, end = np.int64(p) * blocks // parts, (np.int64(p) + 1) * blocks // parts
        _nearest(begin, end, X, mean, centroids, doubled, norms, labels, squares)


@helper
def _nearest(start, stop, X, mean, centroids, doubled, norms, labels, squares):
    """`nearest` of some blocks."""
    (n, d), k = X.shape, doubled.shape[0]
    rows = np.zeros((_WIDE, d), X.dtype)
    products = np.empty((min(k, TILE // 4), _WIDE), X.dtype)
    least, which = np.empty(_WIDE, X.dtype), np.empty(_WIDE, X.dtype)
    for b in range(start, stop):
        begin = b * _WIDE
        m = min(_WIDE, n - begin)
        for r in range(m):
            for c in range(d):
                rows[r, c] = X[begin + r, c] - mean[c]
        _find_least(rows.T, doubled, norms, products, least, which)
        for r in range(m):
            label = np.int32(which[r])
            labels[begin + r] = label if abs(least[r]) < np.inf else np.int32(-1)
        for r in range(m if squares.size else 0):
            own, total = np.uint64(which[r]), 0.0
            for c in range(d):
                difference = np.float64(rows[r, c]) - np.float64(centroids[own, c])
                total += difference * difference
            squares[begin + r] = total


@by_work
def move_rows(X, mean, weights, labels, moved, was, numbers, blocks, sums, totals, counts):
    """What changed labels change of the sums: each part of ``sums`` gets that of some rows.

    Parameters
    ----------
    X, mean, weights, labels
    moved, was, numbers
        As `assign` leaves them; a row that had none has the label -1.
    blocks : int
    sums, totals, counts : (parts, k, d), (parts, k) arrays of float64, (parts, k) of int64
        Weighted rows, weights, and numbers of rows with a weight.
    """
    (parts, k, d), lists = sums.shape, numbers.size
    for p in prange(parts):
        for j in range(k):
            totals[p, j] = 0.0
            counts[p, j] = 0
            for c in range(d):
                sums[p, j, c] = 0.0
        for q in range(p * lists // parts, (p + 1) * lists // parts):
            begin = q * blocks // lists * BLOCK
            for i in range(begin, begin + numbers[q]):
                row, old = np.uint64(moved[i]), was[i]
                weight = np.float64(weights[row])
                if weight == 0.0:
                    continue
                new = np.uint64(labels[row])
                if old < 0:
                    for c in range(d):
                        sums[p, new, c] += weight * (X[row, c] - mean[c])
                else:
                    away = np.uint64(old)
                    for c in range(d):
                        value = weight * (X[row, c] - mean[c])
                        sums[p, new, c] += value
                        sums[p, away, c] -= value
                    totals[p, away] -= weight
                    counts[p, away] -= 1
                totals[p, new] += weight
                counts[p, new] += 1


@by_work
def add_parts(whole, parts):
    """Add parts, (parts, ...), to a whole, (...), one after another; both are contiguous."""
    flat, rows = whole.reshape(whole.size), parts.reshape(parts.shape[0], whole.size)
    for piece in prange((flat.size + 4095) // 4096):
        for p in range(rows.shape[0]):
            line = rows[p]
            for i in range(piece * 4096, min(piece * 4096 + 4096, flat.size)):
                flat[i] += line[i]


@by_work
def distances(packed, centroids, labels, found):
    """Squared distances of packed rows from their centroids, from differences in double.

    Of rows that are not packed the compiler would subtract the mean plus the centroid.
    """
    blocks = packed.shape[0]
    parts = min(blocks, _PARTS)
    for p in prange(parts):
        begin, end = np.int64(p) * blocks // parts, (np.int64(p) + 1) * blocks // parts
        _distances(begin, end, packed, centroids, labels, found)


@helper
def _distances(start, stop, packed, centroids, labels, found):
    """`distances` of some blocks."""
    n, d = labels.size, packed.shape[1]
    total = np.empty(BLOCK)
    for b in range(start, stop):
        begin = b * BLOCK
        total[:] = 0.0
        m = min(BLOCK, n - begin)
        for c in range(d):
            for r in range(m):
                difference = np.float64(packed[b, c, r]) - np.float64(
                    centroids[labels[begin + r], c]
                )
                total[r] += difference * difference
        for r in range(m):
            found[begin + r] = total[r]


@by_work
def nearest_seed(packed, seed, weights, closest, sums):
    """Let rows that are nearer to a seed than to all before have its distance.

    Parameters
    ----------
    packed : (blocks, d, BLOCK) array
    seed : (d,) array
    weights, closest : (blocks, BLOCK) arrays
    sums : (blocks,) array of float64
        Gets each block's weighted sum of ``closest``.
    """
    blocks = packed.shape[0]
    parts = min(blocks, _PARTS)
    for p in prange(parts):
        begin, end = np.int64(p) * blocks // parts, (np.int64(p) + 1) * blocks // parts
        _nearest_seed(begin, end, packed, seed, weights, closest, sums)


@helper
def _nearest_seed(start, stop, packed, seed, weights, closest, sums):
    """`nearest_seed` for some blocks."""
    found = np.empty(BLOCK, packed.dtype)
    for b in range(start, stop):
        for r in range(BLOCK):
            found[r] = 0
        for c in range(seed.size):
            for r in range(BLOCK):
                difference = packed[b, c, r] - seed[c]
                found[r] += difference * difference
        total = 0.0
        for r in range(BLOCK):
            near = closest[b, r]
            near = found[r] if found[r] < near else near
            closest[b, r] = near
            total += np.float64(near) * np.float64(weights[b, r])
        sums[b] = total


@by_work
def potentials(packed, indices, weights, closest, sums):
    """Each block's weighted sum of the distances from the nearest seed, with each of some more.

    Parameters
    ----------
    packed : (blocks, d, BLOCK) array
    indices : (t,) array of int64
        Rows that would be seeds.
    weights, closest : (blocks, BLOCK) arrays
    sums : (blocks, t) array of float64
    """
    d = packed.shape[1]
    seeds = np.empty((indices.size, d), packed.dtype)
    for t in range(indices.size):
        for c in range(d):
            seeds[t, c] = packed[indices[t] // BLOCK, c, indices[t] % BLOCK]
    blocks = packed.shape[0]
    parts = min(blocks, _PARTS)
    for p in prange(parts):
        begin, end = np.int64(p) * blocks // parts, (np.int64(p) + 1) * blocks // parts
        _potentials(begin, end, packed, seeds, weights, closest, sums)


@helper
def _potentials(start, stop, packed, seeds, weights, closest, sums):
    """`potentials` for some blocks."""
    found = np.empty(BLOCK, packed.dtype)
    for b in range(start, stop):
        for t in range(seeds.shape[0]):
            for r in range(BLOCK):
                found[r] = 0
            for c in range(seeds.shape[1]):
                for r in range(BLOCK):
                    difference = packed[b, c, r] - seeds[t, c]
                    found[r] += difference * difference
            total = 0.0
            for r in range(BLOCK):
                near = closest[b, r]
                near = found[r] if found[r] < near else near
                total += np.float64(near) * np.float64(weights[b, r])
            sums[b, t] = total


@serial
def find_rows(weights, closest, running, values, found):
    """The rows at which the running sum of weighted distances reaches some values.

    Parameters
    ----------
    weights, closest : (blocks, BLOCK) arrays
    running : (blocks,) array of float64
        Its value after each block.
    values : (t,) array of float64
    found : (t,) array of int64
        Gets the rows; the last one of all where a value is beyond the whole sum.
    """
    last = running.size - 1
    for t in range(values.size):
        value = values[t]
        b = min(np.searchsorted(running, value), last)
        total = running[b - 1] if b > 0 else 0.0
        row = BLOCK - 1
        for r in range(BLOCK):
            total += np.float64(closest[b, r]) * np.float64(weights[b, r])
            if total >= value:
                row = r
                break
        found[t] = b * BLOCK + row
