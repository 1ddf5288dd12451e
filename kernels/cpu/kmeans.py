"""Loops of k-means on the CPU: distances of rows from centroids, and sums of rows by label.

Rows are packed in blocks, less their mean and transposed: a product with the centroids then has the
rows of a block along the last axis, over which the loop that looks for the smallest distance
vectorises, while the distances are in the cache. The products are BLAS's, of one thread each.

Sums of rows are kept from one iteration to the next: only rows that changed their label are added
and taken away. That is done in parts; their bounds do not depend on the number of threads.

Hamerly's bounds skip rows that cannot have another centroid now. Of each row an upper bound of the
distance from its own centroid is kept, and a lower one of those from all others. The moves of
centroids make both looser. Where they no longer decide a row's centroid, first its own distance is
made anew, then all of them, for blocks of such rows by BLAS. The labels are those of `assign` to
the last one. Whatever order a product is summed in, its error is at most `_error`; a row for which
that may decide is labelled by the very product that `assign` makes, of the row's own block.

Loops are called with the work that they are, in elements that are read and used once, some 1 ns
each, and by as many threads as that is worth. Several of them take

- X (n, d), mean (d,), weights (n,): rows, what is subtracted of them, and their weights
- packed (blocks, d, BLOCK): the rows as above, with zeros after the last one
- centroids (k, d), less the mean; doubled, norms (k, d), (k,): -2 times these, and their squares
- labels (n,) of int32: of each row the nearest centroid, of equally near ones the first
- added (n,) of int32: the labels by which rows are in the sums (-1: in none); moved (n,) of
  uint8, numbers (blocks,): of each block the rows with another label, counted from its first, and
  how many

G. Hamerly, "Making k-means even faster", SDM 2010; P. Rysavy and G. Hamerly, "Geometric methods to
accelerate k-means algorithms", SDM 2016: which centroids' moves count for a cluster.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.host.threads import compiled, helper, inlined, no_overlap, part, team_for

BLOCK = 64  # rows of points that are labelled together
TILE = 512  # centroids: their distances from a block's rows stay in the cache
WIDE = 256  # rows of a block that is not packed
_SLIM = 8  # centroids up to which a product is faster with rows first
_LANES = 8  # rows that a block of the last few is filled up to a multiple of


def by_work(body: Callable[..., None]) -> Callable[..., None]:
    """Make a `part` a loop, which is called as ``loop(work, count, *arguments)``: with the threads
    that the work is worth, for 0 ... count."""
    # A function with a name of its own, after which Numba's cache names a file, and its own part.
    own = {"__name__": __name__, "_part": part(body)}
    function = types.FunctionType(_for_all.__code__, own, body.__name__)
    function.__qualname__ = body.__name__
    kernel = compiled(function)

    @functools.wraps(body)
    def loop(work: int, count: int, *arguments: Any) -> None:
        kernel(team_for(work), count, arguments)

    return loop


def _for_all(team, count, arguments):
    _part(team, count, arguments)  # noqa: F821


@by_work
def pack(start, stop, X, mean, packed):
    """Fill ``packed`` with the rows of X less the mean."""
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
def assign(start, stop, packed, doubled, norms, labels, added, moved, numbers):
    """Change ``labels``, ``moved`` and ``numbers`` of blocks."""
    no_overlap()
    products = np.empty((min(norms.size, TILE), BLOCK), packed.dtype)
    least, which = np.empty(BLOCK, packed.dtype), np.empty(BLOCK, packed.dtype)  # of one width
    for b in range(start, stop):
        _find_least(packed[b], doubled, norms, products, least, which)
        number = 0
        for r in range(min(BLOCK, labels.size - b * BLOCK)):
            row, label = b * BLOCK + r, np.int32(which[r])
            labels[row] = label
            if label != added[row]:
                moved[b * BLOCK + number] = r
                number += 1
        numbers[b] = number


@inlined
def _find_least(rows, doubled, norms, products, least, which):
    """The least of each row's squared distances, less its own square, and which centroid's it is;
    ``rows`` is (d, rows of a block), ``products`` (centroids at a time, rows of a block)."""
    k, tile = norms.size, products.shape[0]
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
def nearest(start, stop, X, mean, centroids, doubled, norms, labels, squares, known):
    """Fill ``labels`` of rows that are labelled once, and not packed, WIDE at a time; -1 where
    distances are not finite; they stay where they are ``known``. ``squares``, (n,) or (0,), gets
    the rows' squared distances."""
    no_overlap()
    (n, d), k = X.shape, norms.size
    rows = np.zeros((WIDE, d), X.dtype)
    products, slim = np.empty((min(k, TILE // 4), WIDE), X.dtype), np.empty((WIDE, k), X.dtype)
    least, which = np.empty(WIDE, X.dtype), np.empty(WIDE, X.dtype)
    for b in range(start, stop):
        begin = b * WIDE
        m = min(WIDE, n - begin)
        for r in range(m):
            for c in range(d):
                rows[r, c] = X[begin + r, c] - mean[c]
        if not known:
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
            own, total = centroids[max(labels[begin + r], 0)], 0.0
            for c in range(d):
                difference = np.float64(rows[r, c]) - np.float64(own[c])
                total += difference * difference
            squares[begin + r] = total


@by_work
def move_rows(start, stop, X, mean, weights, labels, added, moved, numbers, sums, totals):
    """What changed labels change of the sums: each of some parts, by clusters, of weighted rows,
    ``sums`` (parts, k, d), and of weights. ``added`` gets the labels."""
    no_overlap()
    d, parts, blocks = X.shape[1], sums.shape[0], numbers.size
    for p in range(start, stop):
        sum_of, total_of = sums[p], totals[p]
        sum_of[:] = 0.0
        total_of[:] = 0.0
        for b in range(p * blocks // parts, (p + 1) * blocks // parts):
            for r in moved[b * BLOCK : b * BLOCK + numbers[b]]:
                row = b * BLOCK + np.int64(r)
                old, new, weight = added[row], labels[row], np.float64(weights[row])
                to, added[row] = sum_of[new], new
                total_of[new] += weight
                if old < 0:
                    for c in range(d):
                        to[c] += weight * (X[row, c] - mean[c])
                else:
                    away = sum_of[old]
                    total_of[old] -= weight
                    for c in range(d):
                        value = weight * (X[row, c] - mean[c])
                        to[c] += value
                        away[c] -= value


@by_work
def potentials(start, stop, packed, seeds, weights, closest, sums, keep):
    """Fill ``sums``, (blocks, t): each block's weighted sum of ``closest``, (blocks, BLOCK), the
    squared distances from the nearest seed, with each of t more ``seeds``, (t, d), which
    ``closest`` takes in where these are to ``keep``."""
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


# -- Hamerly's bounds ------------------------------------------------------------------------------


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
def between(start, stop, turned, reaches, rounded, moves):
    """How centroids, ``turned`` (d, k), lie to each other. ``moves``, (3, k), has how far each one
    moved, at least, and gets the longest move of those nearer to it than its reach, and the
    distance of the nearest one of the others, at most."""
    no_overlap()
    error, tiny, _, down, _ = rounded
    apart = np.empty(reaches.size, turned.dtype)
    zero, shorter = error - error, down - error - error
    for i in range(start, stop):
        apart[:] = 0
        for c in range(turned.shape[0]):
            line, own = turned[c], turned[c, i]
            for j in range(apart.size):
                difference = line[j] - own
                apart[j] += difference * difference
        apart[i] = np.inf  # itself
        for j in range(apart.size):
            square = apart[j] * shorter - tiny
            apart[j] = np.sqrt(square if square > zero else zero) * down
        drop, far = zero, apart[i]
        for j in range(apart.size):
            if apart[j] < reaches[i]:
                drop = moves[0, j] if moves[0, j] > drop else drop
            else:
                far = apart[j] if apart[j] < far else far
        moves[1, i], moves[2, i] = drop, far


@by_work
def assign_undecided(start, stop, packed, doubled, norms, labels, added, moved, numbers, X, mean,
                     centroids, rounded, moves, fresh, bounds, reaches, looked):  # fmt: skip
    """As `assign`, of those rows that the bounds do not decide, in parts.

    ``bounds``, (3, n), has the rows' lengths, upper and lower bounds, unless these are ``fresh``.
    Of each part ``reaches``, (parts, k), gets the largest sum of the bounds of a row of each
    cluster, and ``looked`` for how many rows distances from all centroids were made.
    """
    no_overlap()
    blocks, parts = packed.shape[0], looked.size
    for p in range(start, stop):
        begin = p * blocks // parts * BLOCK
        end = min((p + 1) * blocks // parts * BLOCK, labels.size)
        rows = np.empty(end - begin, np.int64)
        if fresh:
            count = end - begin
            for i in range(count):
                rows[i], total = begin + i, 0.0
                for c in range(mean.size):
                    total += np.float64(X[begin + i, c] - mean[c]) ** 2
                bounds[0, begin + i] = np.sqrt(total) * rounded[2]
        else:
            given = X, mean, centroids, moves
            count = _undecided(begin, labels[begin:end], given, rounded, bounds, rows)
        looked[p] = _look(rows[:count], (packed, doubled, norms, X, mean), labels, bounds, rounded)
        reach = reaches[p]
        reach[:] = 0
        for b in range(p * blocks // parts, (p + 1) * blocks // parts):
            number = 0
            for row in range(b * BLOCK, min((b + 1) * BLOCK, labels.size)):
                label, both = labels[row], bounds[1, row] + bounds[2, row]
                reach[label] = both if both > reach[label] else reach[label]
                if label != added[row]:
                    moved[b * BLOCK + number] = row - b * BLOCK
                    number += 1
            numbers[b] = number


@helper
def _error(size, rounded):
    """What a value of `assign` may be off by, for a row of that length."""
    error, tiny, _, _, most = rounded
    return error * most * (size + size + most) + tiny


@helper
def _decide(upper, lower, size, rounded):
    """Whether bounds decide a row's centroid, whatever errors `assign` makes."""
    error = _error(size, rounded)
    return lower * lower * rounded[3] > upper * upper * rounded[2] + (error + error)


@helper
def _undecided(begin, labels, given, rounded, bounds, rows):
    """Move the bounds of rows as centroids moved, and tighten those that do not decide.

    Returns how many rows are left; ``rows`` gets their numbers.
    """
    (X, mean, centroids, moves), (error, tiny, up, down, _) = given, rounded
    sizes, uppers, lowers = bounds[0], bounds[1], bounds[2]
    line = np.empty(mean.size, X.dtype)  # else X less the sum of mean and centroid is made
    zero, count, left = error - error, 0, 0
    for i in range(labels.size):  # without branches
        row, label = begin + i, labels[i]
        rows[count] = row
        upper = (uppers[row] + moves[0, label]) * up
        lower, far = lowers[row] - moves[1, label], moves[2, label] - upper
        lower = (far if far < lower else lower) * down
        lower = lower if lower > zero else zero
        uppers[row], lowers[row] = upper, lower
        count += 0 if _decide(upper, lower, sizes[row], rounded) else 1
    for i in range(count):
        row, square = rows[i], tiny
        label = labels[row - begin]
        for c in range(line.size):
            line[c] = X[row, c] - mean[c]
        for c in range(line.size):
            difference = line[c] - centroids[label, c]
            square += difference * difference
        uppers[row] = np.sqrt(square + (error + error) * square) * up
        rows[left] = row
        left += 0 if _decide(uppers[row], lowers[row], sizes[row], rounded) else 1
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

    The values are squared distances less the row's square, made just as in `assign`.
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
