"""Hamerly's bounds for k-means on the CPU: rows whose centroid cannot have changed are skipped.

Of each row an upper bound of the distance from its own centroid is kept, and a lower one of those
from all others. What centroids move makes both looser; a row is looked at where they no longer tell
its centroid: first its own distance is made anew, then all of them. Rows that need all are gathered
in blocks, whose products with the centroids are BLAS's as in `kmeans.assign`.

The labels are those of `kmeans.assign` to the last one. Whatever order a product is summed in, its
error is at most `_error`; a row for which that may decide is labelled by the very product that
`kmeans.assign` makes, of the row's own block.

G. Hamerly, "Making k-means even faster", SDM 2010. Which centroids' moves count for a cluster:
P. Rysavy and G. Hamerly, "Geometric methods to accelerate k-means algorithms", SDM 2016.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero.host.threads import compiled, helper, no_overlap, part

from .kmeans import BLOCK, TILE, by_work

__all__ = ["FEW", "assign", "between", "rounding"]

FEW = 40  # rows of a block; where more are to be looked at, the whole block is


class Rounding(NamedTuple):
    """What numbers are rounded by, all of the rows' dtype.

    Attributes
    ----------
    error : number
        Of ``c c - 2 c x``, in parts of ``|c| (2 |x| + |c|)``: that of sums of d products in any
        order (N. J. Higham, "Accuracy and stability of numerical algorithms", section 3.1), and
        some more for what is made of them.
    tiny : number
        What underflow adds.
    up, down : number
        Factors that take a result above and below all that it may stand for.
    most : number
        The length of the longest centroid at least.
    """

    error: Any
    tiny: Any
    up: Any
    down: Any
    most: Any


def rounding(d: int, dtype: np.dtype, most: float) -> Rounding:
    """What numbers are rounded by in loops over rows of d numbers."""
    known = np.finfo(dtype)
    error, tiny = (d + 8) * known.eps / 2, (d + 8) * known.tiny
    return Rounding(*map(dtype.type, (error, tiny, 1 + 4 * known.eps, 1 - 4 * known.eps, most)))


@by_work
def between(team, packed, doubled, norms, sizes, reaches, rounded, moves):
    """How centroids lie to each other: what the bounds of each cluster's rows lose.

    Parameters
    ----------
    packed : (blocks, d, BLOCK) array
        The centroids.
    doubled, norms, sizes : (k, d), (k,), (k,) arrays
        -2 times the centroids, their squares, and their lengths at least.
    reaches : (k,) array
        Centroids at least that far from a cluster's count for ``far``, the others for ``drops``.
    rounded : Rounding
    moves : (k, 4) array
        Of each centroid: how far it moved, at least. Gets the longest move of those within reach,
        the distance of the nearest one out of reach, at most, and that of the nearest of all.
    """
    given = packed, doubled, norms, sizes, reaches, moves, rounded.error, rounded.tiny
    _between(team, packed.shape[0], given)


@part
def _between(start, stop, packed, doubled, norms, sizes, reaches, moves, error, tiny):
    no_overlap()
    k = norms.size
    error += error
    zero, infinite = packed.dtype.type(0), packed.dtype.type(np.inf)
    products = np.empty((min(k, TILE), BLOCK), packed.dtype)
    own = np.zeros((3, BLOCK), packed.dtype)
    norm, size, reach = own[0], own[1], own[2]
    drop = np.empty(BLOCK, packed.dtype)
    apart, nearest = np.empty(BLOCK, packed.dtype), np.empty(BLOCK, packed.dtype)
    for b in range(start, stop):
        begin, m = b * BLOCK, min(BLOCK, k - b * BLOCK)
        for r in range(BLOCK):
            drop[r], apart[r], nearest[r] = zero, infinite, infinite
            norm[r] = size[r] = reach[r] = zero
        for r in range(m):
            norm[r], size[r], reach[r] = norms[begin + r], sizes[begin + r], reaches[begin + r]
        for first in range(0, k, TILE):
            some = min(TILE, k - first)
            np.dot(doubled[first : first + some], packed[b], products[:some])
            for j in range(some):
                line, shift = products[j], moves[first + j, 0]
                its_norm, its_size = norms[first + j], sizes[first + j]
                if begin <= first + j < begin + BLOCK:
                    line[first + j - begin] = infinite  # itself
                for r in range(BLOCK):
                    both = its_size + size[r]
                    square = line[r] + its_norm + norm[r] - error * both * both - tiny
                    distance = np.sqrt(square if square > zero else zero)
                    inside = distance < reach[r]
                    moved = shift if inside else zero
                    rest = infinite if inside else distance
                    drop[r] = moved if moved > drop[r] else drop[r]
                    apart[r] = rest if rest < apart[r] else apart[r]
                    nearest[r] = distance if distance < nearest[r] else nearest[r]
        for r in range(m):
            moves[begin + r, 1] = drop[r]
            moves[begin + r, 2] = apart[r]
            moves[begin + r, 3] = nearest[r]


@helper
def _two_nearest(block, doubled, norms, products, found):
    """Of each row of a block the least value, the second one, and which is the least.

    The values are squared distances less the row's square, made just as in `kmeans.assign`.
    """
    least, second = np.empty(BLOCK, block.dtype), np.empty(BLOCK, block.dtype)
    which = np.empty(BLOCK, block.dtype)  # arrays of its own: the compiler knows that none overlap
    k = norms.size
    one = block.dtype.type(1)
    for r in range(BLOCK):
        least[r] = second[r] = np.inf
        which[r] = 0
    for begin in range(0, k, TILE):
        size = min(TILE, k - begin)
        np.dot(doubled[begin : begin + size], block, products[:size])
        for j in range(size):
            line, norm = products[j], norms[begin + j]
            own = one * (begin + j)
            for r in range(BLOCK):
                value = line[r] + norm
                nearer = value < least[r]
                other = least[r] if nearer else value
                second[r] = other if other < second[r] else second[r]
                least[r] = value if nearer else least[r]
                which[r] = own if nearer else which[r]
    for r in range(BLOCK):
        found[0, r], found[1, r], found[2, r] = least[r], second[r], which[r]


@helper
def _error(size, rounded):
    """What a value of `kmeans.assign` may be off by, for a row of that length."""
    return rounded.error * rounded.most * (size + size + rounded.most) + rounded.tiny


@helper
def _told(upper, lower, size, rounded):
    """Whether a row's bounds tell its centroid, whatever errors `kmeans.assign` makes."""
    error = _error(size, rounded)
    return lower * lower * rounded.down > upper * upper * rounded.up + (error + error)


@helper
def _loosen(first, m, labels, sizes, uppers, lowers, moves, rounded, rows):
    """Change the bounds of m rows by what the centroids moved; which rows they do not tell.

    Returns how many, whose numbers ``rows`` gets.
    """
    up, down = rounded.up, rounded.down
    zero, count = up - up, 0
    for row in range(first, first + m):
        move = moves[labels[row]]
        upper = (uppers[row] + move[0]) * up
        lower, far, near = lowers[row] - move[1], move[2] - upper, move[3] - upper
        lower = far if far < lower else lower
        lower = (near if near > lower else lower) * down
        lower = lower if lower > zero else zero
        uppers[row], lowers[row] = upper, lower
        rows[count] = row
        count += 0 if _told(upper, lower, sizes[row], rounded) else 1
    return count


@helper
def _tighten(X, mean, centroids, labels, sizes, uppers, lowers, moves, rounded, line, rows, count):
    """Make the upper bounds of some rows anew; how many are left, which come first then."""
    error, tiny, up, down = rounded.error + rounded.error, rounded.tiny, rounded.up, rounded.down
    left = 0
    for i in range(count):
        row = rows[i]
        label = labels[row]
        centroid = centroids[label]
        for c in range(line.size):
            line[c] = X[row, c] - mean[c]
        square = tiny
        for c in range(line.size):
            difference = line[c] - centroid[c]
            square += difference * difference
        upper = np.sqrt(square + error * square) * up
        near, lower = (moves[label, 3] - upper) * down, lowers[row]
        lower = near if near > lower else lower
        uppers[row], lowers[row] = upper, lower
        rows[left] = row
        left += 0 if _told(upper, lower, sizes[row], rounded) else 1
    return left


@helper
def _label(row, least, second, which, labels, sizes, uppers, lowers, rounded):
    """Take a row's two smallest values, and which the least one is, as its label and bounds."""
    size, error = sizes[row], rounded.error
    zero, square = error - error, size * size
    slack = error * ((size + rounded.most) * (size + rounded.most) + square) + rounded.tiny
    upper, lower = square + least + slack, square + second - slack
    uppers[row] = np.sqrt(zero if upper < zero else upper) * rounded.up  # NaN tells nothing
    lowers[row] = np.sqrt(lower if lower > zero else zero) * rounded.down
    labels[row] = np.int32(which)


@helper
def _measure(block, sizes, rounded):
    """The lengths of a block's rows, for as many as ``sizes`` has."""
    total = np.zeros(BLOCK)
    for c in range(block.shape[0]):
        for r in range(BLOCK):
            total[r] += np.float64(block[c, r]) * np.float64(block[c, r])
    for r in range(sizes.size):
        sizes[r] = np.sqrt(total[r]) * rounded.up


@compiled
def assign(team, packed, doubled, norms, labels, moved, was, numbers,
           X, mean, centroids, rounded, moves, fresh, bounds, reaches, scanned):  # fmt: skip
    """As `kmeans.assign`, of those rows whose bounds do not tell their centroid.

    Parameters
    ----------
    packed, doubled, norms, labels, moved, was, numbers
        See `kmeans.assign`.
    X, mean, centroids : (n, d), (d,), (k, d) arrays
        The rows, what is subtracted of them, and the centroids.
    rounded : Rounding
    moves : (k, 4) array
        As `between` leaves it.
    fresh : bool
        Whether there are no bounds yet.
    bounds : (3, n) array
        The rows' lengths, and their upper and lower bounds, which are changed.
    reaches : (teams, k) array
        Gets the largest sum of the bounds of a row of each cluster, for each team: some parts that
        share the blocks in which rows are gathered.
    scanned : (teams,) array of int64
        Gets of how many rows the distances from all centroids were made.
    """
    lists = packed, doubled, norms, labels, moved, was, numbers
    rows = X, mean, centroids, moves, fresh, bounds, reaches, scanned
    error, tiny, up, down, most = rounded
    _assign(team, scanned.size, lists + rows + (error, tiny, up, down, most))


@part
def _assign(start, stop, packed, doubled, norms, labels, moved, was, numbers,
            X, mean, centroids, moves, fresh, bounds, reaches, scanned,
            error, tiny, up, down, most):  # fmt: skip
    no_overlap()
    rounded = Rounding(error, tiny, up, down, most)
    blocks, n, d, parts, teams = packed.shape[0], labels.size, mean.size, numbers.size, scanned.size
    sizes, uppers, lowers = bounds[0], bounds[1], bounds[2]
    for t in range(start, stop):
        begin = t * parts // teams
        first, last = begin * blocks // parts, (t + 1) * parts // teams * blocks // parts
        before = labels[first * BLOCK : last * BLOCK].copy()
        products = np.empty((min(norms.size, TILE), BLOCK), packed.dtype)
        found, exact = np.empty((3, BLOCK), packed.dtype), np.empty((3, BLOCK), packed.dtype)
        gathered, line = np.empty((d, BLOCK), packed.dtype), np.empty(d, packed.dtype)
        rows, held, made = np.zeros(2 * BLOCK + 1, np.int64), 0, 0
        for b in range(first, last):
            row, m = b * BLOCK, min(BLOCK, n - b * BLOCK)
            count = m
            if fresh:
                _measure(packed[b], sizes[row : row + m], rounded)
            else:
                count = _loosen(
                    row, m, labels, sizes, uppers, lowers, moves, rounded, rows[held:]
                )  # fmt: skip
            if fresh or count > FEW:
                _two_nearest(packed[b], doubled, norms, products, found)
                made += BLOCK
                for r in range(m):
                    _label(
                        row + r, found[0, r], found[1, r], found[2, r],
                        labels, sizes, uppers, lowers, rounded,
                    )  # fmt: skip
            elif count > 0:
                held += _tighten(
                    X, mean, centroids, labels, sizes, uppers, lowers, moves, rounded, line,
                    rows[held:], count,
                )  # fmt: skip
            while held >= BLOCK or (held > 0 and b == last - 1):
                some = min(held, BLOCK)
                for r in range(BLOCK):
                    for c in range(d):
                        gathered[c, r] = X[rows[r], c] - mean[c]
                _two_nearest(gathered, doubled, norms, products, found)
                made += BLOCK
                there = -1  # the block that ``exact`` is of
                for r in range(some):
                    row, values, lane = rows[r], found, r
                    gap = found[1, r] - found[0, r]
                    if not gap > 4 * _error(sizes[row], rounded):
                        values, lane = exact, row % BLOCK
                        if there != row // BLOCK:
                            there = row // BLOCK
                            _two_nearest(packed[there], doubled, norms, products, exact)
                            made += BLOCK
                    _label(
                        row, values[0, lane], values[1, lane], values[2, lane],
                        labels, sizes, uppers, lowers, rounded,
                    )  # fmt: skip
                held -= some
                for r in range(held):
                    rows[r] = rows[some + r]
        reach = reaches[t]
        reach[:] = 0
        for p in range(begin, (t + 1) * parts // teams):
            start, number = p * blocks // parts * BLOCK, 0
            for row in range(start, min((p + 1) * blocks // parts * BLOCK, n)):
                label, both = labels[row], uppers[row] + lowers[row]
                reach[label] = both if both > reach[label] else reach[label]
                old = before[row - first * BLOCK]
                if label != old:
                    moved[start + number], was[start + number] = row, old
                    number += 1
            numbers[p] = number
        scanned[t] = made
