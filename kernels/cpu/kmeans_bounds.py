"""Hamerly's bounds for k-means on the CPU: rows whose centroid cannot have changed are skipped.

Of each row an upper bound of the distance from its own centroid is kept, and a lower one of those
from all others. The moves of centroids make both looser. Where they no longer decide a row's
centroid, first its own distance is made anew, then all of them, for blocks of such rows by BLAS.
The labels are those of `kmeans.assign` to the last one. Whatever order a product is summed in, its
error is at most `_error`; a row for which that may decide is labelled by the very product that
`kmeans.assign` makes, of the row's own block.

G. Hamerly, "Making k-means even faster", SDM 2010; P. Rysavy and G. Hamerly, "Geometric methods to
accelerate k-means algorithms", SDM 2016: which centroids' moves count for a cluster.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.host.threads import helper, no_overlap, part

from .kmeans import BLOCK, TILE, by_work

_LANES = 8  # rows that a block of the last few is filled up to a multiple of


def rounding(d: int, dtype: np.dtype, most: float) -> tuple[Any, ...]:
    """What numbers of d columns are rounded by, (error, tiny, up, down, most) of the rows' dtype.

    error : of ``c c - 2 c x``, in parts of ``|c| (2 |x| + |c|)``: that of sums of d products in any
    order (N. J. Higham, "Accuracy and stability of numerical algorithms", section 3.1), and more.
    tiny : what underflow adds. up, down : factors that take a result above and below all that it
    may stand for. most : the length of the longest centroid at least.
    """
    known = np.finfo(dtype)
    error, tiny = (d + 8) * known.eps / 2, (d + 8) * known.tiny
    return tuple(map(dtype.type, (error, tiny, 1 + 4 * known.eps, 1 - 4 * known.eps, most)))


@by_work
def between(team, turned, reaches, rounded, moves):
    """How centroids, ``turned`` (d, k), lie to each other. ``moves``, (k, 4), has how far each one
    moved, at least, and gets the longest move of those nearer to it than its reach, the distance of
    the nearest one of the others, at most, and that of the nearest of all."""
    _between(team, reaches.size, (turned, reaches, rounded, moves))


@part
def _between(start, stop, turned, reaches, rounded, moves):
    no_overlap()
    d, k = turned.shape
    error, tiny, _, down, _ = rounded
    apart = np.empty(k, turned.dtype)
    zero, shorter = error - error, down - error - error
    for i in range(start, stop):
        apart[:] = 0
        for c in range(d):
            line, own = turned[c], turned[c, i]
            for j in range(k):
                difference = line[j] - own
                apart[j] += difference * difference
        apart[i] = np.inf  # itself
        for j in range(k):
            square = apart[j] * shorter - tiny
            apart[j] = np.sqrt(square if square > zero else zero) * down
        drop, far, nearest = zero, apart[i], apart[i]
        for j in range(k):
            if apart[j] < reaches[i]:
                drop = moves[j, 0] if moves[j, 0] > drop else drop
            else:
                far = apart[j] if apart[j] < far else far
            nearest = apart[j] if apart[j] < nearest else nearest
        moves[i, 1], moves[i, 2], moves[i, 3] = drop, far, nearest


@by_work
def assign(team, packed, doubled, norms, labels, moved, was, numbers,
           X, mean, centroids, rounded, moves, fresh, bounds, reaches, looked):  # fmt: skip
    """As `kmeans.assign`, of those rows whose bounds do not decide their centroid.

    ``bounds``, (3, n), has the rows' lengths, upper and lower bounds, unless these are ``fresh``.
    Of each part ``reaches``, (parts, k), gets the largest sum of the bounds of a row of each
    cluster, and ``looked`` for how many rows distances from all centroids were made.
    """
    lists = packed, doubled, norms, labels, moved, was, numbers
    rows = X, mean, centroids, rounded, moves, fresh, bounds, reaches, looked
    _assign(team, numbers.size, lists + rows)


@part
def _assign(start, stop, packed, doubled, norms, labels, moved, was, numbers,
            X, mean, centroids, rounded, moves, fresh, bounds, reaches, looked):  # fmt: skip
    no_overlap()
    blocks, parts = packed.shape[0], numbers.size
    for p in range(start, stop):
        begin = p * blocks // parts * BLOCK
        end = min((p + 1) * blocks // parts * BLOCK, labels.size)
        rows, old, reach = moved[begin:end], was[begin:end], reaches[p]
        if fresh:
            count = end - begin
            for i in range(count):
                rows[i], old[i] = begin + i, labels[begin + i]
                total = 0.0
                for c in range(mean.size):
                    total += np.float64(X[begin + i, c] - mean[c]) ** 2
                bounds[0, begin + i] = np.sqrt(total) * rounded[2]
        else:
            given = X, mean, centroids, moves
            count = _undecided(begin, labels[begin:end], given, rounded, bounds, rows, old)
        made_of = packed, doubled, norms, X, mean
        looked[p] = _look(rows[:count], made_of, labels, bounds, rounded)
        number = 0
        for i in range(count):
            if labels[rows[i]] != old[i]:
                rows[number], old[number] = rows[i], old[i]
                number += 1
        numbers[p] = number
        reach[:] = 0
        for row in range(begin, end):
            label, both = labels[row], bounds[1, row] + bounds[2, row]
            reach[label] = both if both > reach[label] else reach[label]


@helper
def _error(size, rounded):
    """What a value of `kmeans.assign` may be off by, for a row of that length."""
    error, tiny, _, _, most = rounded
    return error * most * (size + size + most) + tiny


@helper
def _decide(upper, lower, size, rounded):
    """Whether bounds decide a row's centroid, whatever errors `kmeans.assign` makes."""
    error = _error(size, rounded)
    return lower * lower * rounded[3] > upper * upper * rounded[2] + (error + error)


@helper
def _undecided(begin, labels, given, rounded, bounds, rows, old):
    """Move the bounds of rows as centroids moved, and tighten those that do not decide.

    Returns how many rows are left, whose numbers and labels ``rows`` and ``old`` get.
    """
    (X, mean, centroids, moves), (error, tiny, up, down, _) = given, rounded
    sizes, uppers, lowers = bounds[0], bounds[1], bounds[2]
    line = np.empty(mean.size, X.dtype)  # else X less the sum of mean and centroid is made
    zero, count, left = error - error, 0, 0
    for i in range(labels.size):  # without branches
        row, label = begin + i, labels[i]
        rows[count], old[count] = row, label
        move = moves[label]
        upper = (uppers[row] + move[0]) * up
        lower, far, near = lowers[row] - move[1], move[2] - upper, move[3] - upper
        lower = far if far < lower else lower
        lower = (near if near > lower else lower) * down
        lower = lower if lower > zero else zero
        uppers[row], lowers[row] = upper, lower
        count += 0 if _decide(upper, lower, sizes[row], rounded) else 1
    for i in range(count):
        row, label, square = rows[i], old[i], tiny
        for c in range(line.size):
            line[c] = X[row, c] - mean[c]
        for c in range(line.size):
            difference = line[c] - centroids[label, c]
            square += difference * difference
        upper = np.sqrt(square + (error + error) * square) * up
        near, lower = (moves[label, 3] - upper) * down, lowers[row]
        lower = near if near > lower else lower
        uppers[row], lowers[row] = upper, lower
        rows[left], old[left] = row, label
        left += 0 if _decide(upper, lower, sizes[row], rounded) else 1
    return left


@helper
def _look(rows, made_of, labels, bounds, rounded):
    """Label some rows by their distances from all centroids, and make their bounds.

    Returns for how many rows distances were made.
    """
    packed, doubled, norms, X, mean = made_of
    (_, d, _), (error, tiny, up, down, most) = packed.shape, rounded
    products = np.empty(min(norms.size, TILE) * BLOCK, packed.dtype)
    found, exact = np.empty((3, BLOCK), packed.dtype), np.empty((3, BLOCK), packed.dtype)
    gathered, zero = np.empty(d * BLOCK, packed.dtype), error - error
    looked, there = 0, -1  # the block that ``exact`` is of
    for first in range(0, rows.size, BLOCK):
        some = rows[first : first + BLOCK]
        width = (some.size + _LANES - 1) // _LANES * _LANES
        block = gathered[: d * width].reshape(d, width)
        for r in range(width):
            row = some[min(r, some.size - 1)]
            for c in range(d):
                block[c, r] = X[row, c] - mean[c]
        _two_nearest(block, doubled, norms, products, found)
        looked += width
        for r in range(some.size):
            row, size, values, lane = some[r], bounds[0, some[r]], found, r
            if not found[1, r] - found[0, r] > 4 * _error(size, rounded):
                values, lane = exact, row % BLOCK
                if there != row // BLOCK:
                    there = row // BLOCK
                    _two_nearest(packed[there], doubled, norms, products, exact)
                    looked += BLOCK
            slack = error * ((size + most) * (size + most) + size * size) + tiny
            upper = size * size + values[0, lane] + slack
            lower = size * size + values[1, lane] - slack
            bounds[1, row] = np.sqrt(zero if upper < zero else upper) * up  # NaN decides nothing
            bounds[2, row] = np.sqrt(lower if lower > zero else zero) * down
            labels[row] = np.int32(values[2, lane])
    return looked


@helper
def _two_nearest(block, doubled, norms, products, found):
    """Of each row of a block the least value, the second one, and which is the least.

    The values are squared distances less the row's square, made just as in `kmeans.assign`.
    """
    k, width, one = norms.size, block.shape[1], block.dtype.type(1)
    # Arrays of its own: the compiler knows that none overlap.
    least, second = np.full(width, np.inf, block.dtype), np.full(width, np.inf, block.dtype)
    which = np.zeros(width, block.dtype)
    for begin in range(0, k, TILE):
        size = min(TILE, k - begin)
        some = products[: size * width].reshape(size, width)
        np.dot(doubled[begin : begin + size], block, some)
        for j in range(size):
            line, norm, own = some[j], norms[begin + j], one * (begin + j)
            for r in range(width):
                value = line[r] + norm
                nearer = value < least[r]
                other = least[r] if nearer else value
                second[r] = other if other < second[r] else second[r]
                least[r] = value if nearer else least[r]
                which[r] = own if nearer else which[r]
    found[0, :width], found[1, :width], found[2, :width] = least, second, which
