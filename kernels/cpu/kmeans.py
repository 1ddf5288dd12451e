"""Loops of k-means on the CPU: distances of rows from centroids, and sums of rows by label.

Rows are packed in blocks, less their mean and transposed: a product with the centroids then has the
rows of a block along the last axis, over which the loop that looks for the smallest distance
vectorises, while the distances are in the cache. The products are BLAS's, of one thread each.

Sums of rows are kept from one iteration to the next: only rows that changed their label are added
and taken away. That is done in parts whose bounds do not depend on the number of threads.

Loops are called with the work that they are, in elements that are read and used once, some 1 ns
each, and by as many threads as that is worth. Several of them take

- X (n, d), mean (d,), weights (n,): rows, what is subtracted of them, and their weights
- packed (blocks, d, BLOCK): the rows as above, with zeros after the last one
- centroids (k, d), less the mean; doubled, norms (k, d), (k,): -2 times these, and their squares
- labels (n,) of int32: of each row the nearest centroid, of equally near ones the first
- moved (n,) of int64, was (n,) of int32, numbers (parts,): the rows of each part whose label
  changed, from the part's first row on, what it was (-1: none), and how many these are
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.host.threads import ALONE, compiled, inlined, no_overlap, part, team_for

BLOCK = 64  # rows of points that are labelled together
TILE = 512  # centroids, whose distances from a block's rows stay in the cache
_WIDE = 256  # rows of a block that is not packed
_SLIM = 8  # centroids up to which a product is faster with rows first
_SERIAL = 1 << 16  # elements below which one thread is faster


def by_work(function: Callable[..., Any]) -> Callable[..., Any]:
    """Call ``function(team, *arguments)`` with the threads that an amount of work is worth."""
    kernel = compiled(function)

    @functools.wraps(function)
    def call(work: int, *arguments: Any) -> Any:
        return kernel(team_for(work) if work >= _SERIAL else ALONE, *arguments)

    return call


@by_work
def pack(team, X, mean, packed):
    """Fill ``packed`` with the rows of X less the mean."""
    _pack(team, packed.shape[0], (X, mean, packed))


@part
def _pack(start, stop, X, mean, packed):
    no_overlap()
    n, d = X.shape
    for b in range(start, stop):
        block, begin = packed[b], b * BLOCK
        m = min(BLOCK, n - begin)
        for c in range(d):
            line, middle = block[c], mean[c]
            for r in range(m):
                line[r] = X[begin + r, c] - middle
            for r in range(m, BLOCK):
                line[r] = 0


@by_work
def assign(team, packed, doubled, norms, labels, moved, was, numbers):
    """Change ``labels``; ``moved``, ``was`` and ``numbers`` get what that changes."""
    _assign(team, numbers.size, (packed, doubled, norms, labels, moved, was, numbers))


@part
def _assign(start, stop, packed, doubled, norms, labels, moved, was, numbers):
    no_overlap()
    blocks, k = packed.shape[0], doubled.shape[0]
    n, parts = labels.size, numbers.size
    products = np.empty((min(k, TILE), BLOCK), packed.dtype)
    least, which = np.empty(BLOCK, packed.dtype), np.empty(BLOCK, packed.dtype)  # of one width
    for p in range(start, stop):
        first, last, number = p * blocks // parts, (p + 1) * blocks // parts, 0
        for b in range(first, last):
            _find_least(packed[b], doubled, norms, products, least, which)
            for r in range(min(BLOCK, n - b * BLOCK)):
                row, label = b * BLOCK + r, np.int32(which[r])
                if labels[row] != label:
                    moved[first * BLOCK + number] = row
                    was[first * BLOCK + number] = labels[row]
                    labels[row] = label
                    number += 1
        numbers[p] = number


@inlined
def _find_least(rows, doubled, norms, products, least, which):
    """The least of each row's squared distances, less its own square, and which centroid's it is;
    ``rows`` is (d, rows of a block), ``products`` (centroids at a time, rows of a block)."""
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
        line, norm, own = products[j], norms[begin + j], one * (begin + j)
        for r in range(least.size):
            value = line[r] + norm
            nearer = value < least[r]
            least[r] = value if nearer else least[r]
            which[r] = own if nearer else which[r]


@by_work
def nearest(team, X, mean, centroids, doubled, norms, labels, squares):
    """Fill ``labels`` of rows that are labelled once, and not packed; -1 where distances are not
    finite. ``squares``, (n,) or (0,), gets the rows' squared distances, as `distances` does."""
    count, given = (labels.size + _WIDE - 1) // _WIDE, (X, mean, centroids, doubled, norms)
    _nearest(team, count, (*given, labels, squares))


@part
def _nearest(start, stop, X, mean, centroids, doubled, norms, labels, squares):
    no_overlap()
    (n, d), k = X.shape, doubled.shape[0]
    rows = np.zeros((_WIDE, d), X.dtype)
    products, slim = np.empty((min(k, TILE // 4), _WIDE), X.dtype), np.empty((_WIDE, k), X.dtype)
    least, which = np.empty(_WIDE, X.dtype), np.empty(_WIDE, X.dtype)
    for b in range(start, stop):
        begin = b * _WIDE
        m = min(_WIDE, n - begin)
        for r in range(m):
            for c in range(d):
                rows[r, c] = X[begin + r, c] - mean[c]
        if k > _SLIM:
            _find_least(rows.T, doubled, norms, products, least, which)
        else:
            np.dot(rows, doubled.T, slim)
            least[:] = np.inf
            which[:] = 0
            _keep_least(slim.T, norms, 0, least, which)
        for r in range(m):
            label = np.int32(which[r])
            labels[begin + r] = label if abs(least[r]) < np.inf else np.int32(-1)
        for r in range(m if squares.size else 0):
            own, total = centroids[np.int32(which[r])], 0.0
            for c in range(d):
                difference = np.float64(rows[r, c]) - np.float64(own[c])
                total += difference * difference
            squares[begin + r] = total


@by_work
def move_rows(team, X, mean, weights, labels, moved, was, numbers, blocks, sums, totals, counts):
    """What changed labels of ``blocks`` blocks change of the sums: each of some parts, by clusters,
    of weighted rows, ``sums`` (parts, k, d), of weights and of numbers of rows with a weight."""
    given = X, mean, weights, labels, moved, was, numbers, blocks, sums, totals, counts
    _move_rows(team, sums.shape[0], given)


@part
def _move_rows(
    start, stop, X, mean, weights, labels, moved, was, numbers, blocks, sums, totals, counts
):
    no_overlap()
    d, parts, lists = X.shape[1], sums.shape[0], numbers.size
    for p in range(start, stop):
        sum_of, total_of, count_of = sums[p], totals[p], counts[p]
        sum_of[:] = 0.0
        total_of[:] = 0.0
        count_of[:] = 0
        for q in range(p * lists // parts, (p + 1) * lists // parts):
            begin = q * blocks // lists * BLOCK
            for i in range(begin, begin + numbers[q]):
                row, old = moved[i], was[i]
                new, weight = labels[row], np.float64(weights[row])
                if weight == 0.0:
                    continue
                to = sum_of[new]
                if old < 0:
                    for c in range(d):
                        to[c] += weight * (X[row, c] - mean[c])
                else:
                    away = sum_of[old]
                    for c in range(d):
                        value = weight * (X[row, c] - mean[c])
                        to[c] += value
                        away[c] -= value
                    total_of[old] -= weight
                    count_of[old] -= 1
                total_of[new] += weight
                count_of[new] += 1


@by_work
def distances(team, packed, centroids, labels, found):
    """Squared distances of packed rows from their centroids, from differences in double.

    Of rows that are not packed the compiler would subtract the mean plus the centroid.
    """
    _distances(team, packed.shape[0], (packed, centroids, labels, found))


@part
def _distances(start, stop, packed, centroids, labels, found):
    no_overlap()
    n, d = labels.size, packed.shape[1]
    total = np.empty(BLOCK)
    for b in range(start, stop):
        block, begin = packed[b], b * BLOCK
        total[:] = 0.0
        m = min(BLOCK, n - begin)
        for c in range(d):
            line = block[c]
            for r in range(m):
                difference = np.float64(line[r]) - np.float64(centroids[labels[begin + r], c])
                total[r] += difference * difference
        for r in range(m):
            found[begin + r] = total[r]


@by_work
def potentials(team, packed, seeds, weights, closest, sums, keep):
    """Fill ``sums``, (blocks, t): each block's weighted sum of ``closest``, (blocks, BLOCK), the
    squared distances from the nearest seed, with each of t more ``seeds``, (t, d), which
    ``closest`` takes in where these are to ``keep``."""
    _potentials(team, packed.shape[0], (packed, seeds, weights, closest, sums, keep))


@part
def _potentials(start, stop, packed, seeds, weights, closest, sums, keep):
    no_overlap()
    found = np.empty(BLOCK, packed.dtype)
    for b in range(start, stop):
        near, weight = closest[b], weights[b]
        for t in range(seeds.shape[0]):
            found[:] = 0
            for c in range(seeds.shape[1]):
                line, middle = packed[b, c], seeds[t, c]
                for r in range(BLOCK):
                    difference = line[r] - middle
                    found[r] += difference * difference
            total = 0.0
            for r in range(BLOCK):
                found[r] = found[r] if found[r] < near[r] else near[r]
                total += np.float64(found[r]) * np.float64(weight[r])
            sums[b, t] = total
            if keep:
                near[:] = found


@compiled
def find_rows(weights, closest, running, values, found):
    """The rows ``found`` at which the running sum of weighted distances, ``running`` after each
    block, reaches some values; the last one of all where a value is beyond the whole sum."""
    for t in range(values.size):
        b = min(np.searchsorted(running, values[t]), running.size - 1)
        total = running[b - 1] if b > 0 else 0.0
        row = -1
        while row < BLOCK - 1:
            row += 1
            total += np.float64(closest[b, row]) * np.float64(weights[b, row])
            if total >= values[t]:
                break
        found[t] = b * BLOCK + row
