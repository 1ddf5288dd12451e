"""What is known of values: a filter's factors, and whether a transform would lose small values."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import Operand
from hetero.host import loops
from hetero.imports import load
from hetero.ops.convolve2d.problem import FFT, Window
from hetero.ops.solvers.systems import on_vectors
from hetero.pricing.plan import CPU, Plan, possible, rank, with_terms

LARGEST_REMEMBERED = 4096  # elements of a filter that is known by its values from call to call
PURPOSE = "convolution filters"
_KEPT = 8  # things of filters, in each context
# Whether results of the CPU's transforms are to be 0 where the direct sum's are.
exact_zeros = ContextVar("exact_zeros", default=True)


class Filter:
    """A filter on the host, or one that stays on its device, and the value beyond an image's edges:
    what ``run`` gets in addition to the image.

    The array is C-contiguous, or None where its values are not known: then ``held`` and ``operand``
    are the caller's array on a device, and its description.
    """

    def __init__(
        self,
        array: np.ndarray | None,
        fillvalue: Any = 0.0,
        held: Any = None,
        operand: Operand | None = None,
    ) -> None:
        self.array, self.fillvalue, self._held, self.operand = array, fillvalue, held, operand
        # The values of a small filter; what is kept for it is found by them.
        self.content: bytes | None = None
        # ``found(look)`` is ``look(array)``, remembered: for a small filter by its values.
        self.found: Callable[[Callable[[np.ndarray], Any]], Any]
        if array is not None and array.size <= LARGEST_REMEMBERED:
            self.content = array.tobytes()
            self.found = partial(_remembered, self.content, array.shape, array.dtype.char)
        else:
            self.found = functools.cache(lambda look: look(array))

    def downloaded(self, dtype: np.dtype) -> Filter:
        """The filter with its values known, which are of a dtype."""
        if self.array is not None:
            return self
        transfer = load("hetero.moving.transfer")
        array = np.ascontiguousarray(transfer.to_host(self._held, self.operand), dtype)
        return Filter(array, self.fillvalue)

    def at(self, pointer: int) -> Filter:
        """One on its device for another of the same kind, which the caller keeps alive."""
        if self.array is not None:
            return self
        return Filter(None, self.fillvalue, None, self.operand._replace(pointer=pointer))

    @property
    def taps(self) -> np.ndarray:
        """The flipped filter, rotated by 180 degrees, C-contiguous: convolution by correlation."""
        return np.ascontiguousarray(self.array[::-1, ::-1])

    @property
    def rank(self) -> int:
        """Number of its factors; 0 where there are too many, or its values are not known."""
        factors = None if self.array is None else self.found(low_rank)
        return 0 if factors is None else len(factors[0])

    def kept(self, device: Any, what: Any, make: Callable[[], Any]) -> Any:
        """What ``make()`` made on a device for these values, of a small filter now or earlier."""
        if self.content is None:
            return make()
        key = self.content, self.array.shape, self.array.dtype.char, what
        return device.storage().get(PURPOSE, key, _KEPT, make)


@functools.lru_cache(maxsize=1024)
def _remembered(
    content: bytes, shape: tuple[int, int], dtype: str, look: Callable[[np.ndarray], Any]
) -> Any:
    return look(np.frombuffer(content, dtype).reshape(shape))


# -- Filters of low rank: sums of a few products of a column and a row -----------------------------

_MOST = 8  # factors; more are not looked for
_SAMPLE = 24  # rows and columns that are looked at first
_OFF = 1e3  # eps by which a tap may be off, and how much larger its products may be


@np.errstate(all="ignore")  # what underflows is too small to count, and NaN ends the search
def low_rank(filter: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Factors of a flipped filter, of a rank that is low enough to save work.

    Parameters
    ----------
    filter : (fh, fw) ndarray of float32 or float64

    Returns
    -------
    (columns, rows) : (r, fh) and (r, fw) ndarray, or None
        ``abs(flipped - columns.T @ rows).sum() <= 2 eps abs(filter).sum()``, less than the bound on
        the rounding of the direct sum; each product is 0 where a tap is; no tap is lost beside
        larger ones, see `_are_close`. r is at most 8, and r (fh + fw) < fh fw. Factors of whole
        numbers are whole: so are their sums. None where there is no such r.

    Notes
    -----
    By adaptive cross approximation with full pivoting: the largest element's row and column are
    taken out until nothing is left, in r passes over the filter and without LAPACK, whose threads
    would hold up the loops that follow.

    References
    ----------
    M. Bebendorf, "Approximation of boundary element matrices", Numer. Math. 86 (2000), 565-589.
    """
    filter, (fh, fw) = filter[::-1, ::-1], filter.shape
    most = min(_MOST, (fh * fw - 1) // max(fh + fw, 1))
    if most < 1:
        return None
    if max(fh, fw) > 2 * _SAMPLE:
        sample = filter[:: -(-fh // _SAMPLE), :: -(-fw // _SAMPLE)]
        limit = min(most, *sample.shape)
        if limit < min(sample.shape) and _crosses(sample, limit) is None:
            return None  # no part has a higher rank than the whole
    return _crosses(filter, most)


def is_whole(x: np.ndarray) -> bool:
    """Whether all numbers of a matrix are whole; most matrices differ in their first row."""
    return all(bool((np.rint(part) == part).all()) for part in (x[:1], x[1:]))


def _crosses(filter: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    """Products of columns and rows that are as close as `low_rank` says; None where ``most`` are
    not enough."""
    taps = filter.astype(np.float64)
    rest, total = taps.copy(), float(np.abs(taps).sum())
    if not np.isfinite(total):
        return None
    info, whole = np.finfo(filter.dtype), total < 1 / np.finfo(np.float64).eps and is_whole(taps)
    enough = 2.0 * float(info.eps) * total
    columns: list[np.ndarray] = []
    rows: list[np.ndarray] = []
    while len(rows) < most:
        i, j = divmod(int(np.abs(rest).argmax()), rest.shape[1])
        pivot = rest[i, j]
        if pivot == 0.0:
            break
        scale = abs(pivot) ** 0.5
        column, row = rest[:, j] / np.copysign(scale, pivot), rest[i] / scale
        if whole:
            share = np.gcd.reduce(np.abs(rest[:, j]).astype(np.int64))
            column, row = rest[:, j] / share, rest[i] * share / pivot
            if not is_whole(row[None]):
                return None
        rest -= column[:, None] * row
        columns.append(column)
        rows.append(row)
        if float(np.abs(rest).sum()) <= enough:
            found = np.array(columns).astype(filter.dtype), np.array(rows).astype(filter.dtype)
            return found if _are_close(taps, found, enough, info) else None
    return None


def _are_close(taps: np.ndarray, found: tuple[Any, Any], enough: float, info: np.finfo) -> bool:
    """Whether rounded factors are right, and small taps count beneath large ones.

    There is no rounding where a tap is 0. Each tap is right to 1e3 eps of itself; or its products
    nearly cancel, and it is right to their rounding. The products' size is no more than 1e3 times
    the taps around; if none is negative, than the tap itself, so that no sum is.
    """
    products = [c[:, None].astype(np.float64) * r for c, r in zip(*found, strict=True)]
    error, size = np.abs(taps - sum(products)), sum(map(np.abs, products))
    if size[taps == 0.0].any() or float(error.sum()) > enough:
        return False
    sizes = around = np.abs(taps)
    if not (taps >= 0.0).all():
        padded = np.pad(sizes, 1)
        around = np.lib.stride_tricks.sliding_window_view(padded, (3, 3)).max(axis=(2, 3))
    right = (error <= _OFF * info.eps * sizes + info.tiny) | (error <= 4.0 * info.eps * size)
    return bool((right & (size <= _OFF * around + info.tiny)).all())


# -- Values that a transform spreads or loses ------------------------------------------------------
# A transform's error is eps times the norm of the filter times the root mean square of a tile of
# the image; the direct sum's is eps times the sum of the products' absolute values at each point.
# One value of 1e20 among others of 1 leaves nothing of them in a transform's result.

SUMS = loops.register("convolutions", "hetero.ops.convolve2d.methods:examples")
_LOST = 1e3  # eps of the sum of the products' absolute values by which a transform may be off
_LARGEST = 32  # one in this many of a filter's values may be as large as it likes


class Facts(NamedTuple):
    """What a transform has to know of a filter's taps."""

    whole: bool
    positive: bool  # none is negative
    zeros: bool  # some are 0
    size: float  # sum of their absolute values
    norm: float  # 2-norm in terms of the largest; 0 where all are, or where one is not finite
    mean: float  # of all but the largest, likewise


@np.errstate(all="ignore")
def facts_of(filter: np.ndarray) -> Facts:
    """The facts of a filter."""
    sizes = np.abs(filter, dtype=np.float64).ravel("K")
    largest, total = float(sizes.max()), float(sizes.sum())
    norm = mean = 0.0
    if 0.0 < largest < np.inf:
        sizes /= largest
        rest = sizes.size - max(np.count_nonzero(sizes) // _LARGEST, 1)
        sizes.partition(rest)  # in place, as all of this: new memory takes longer than sums
        mean = float(sizes[:rest].sum()) / sizes.size
        # Not by BLAS: its threads would spin while the loops of the check run.
        norm = float(np.sqrt(np.square(sizes, out=sizes).sum()))
    signs = bool((filter >= 0.0).all()), bool((filter == 0.0).any())
    return Facts(is_whole(filter), *signs, total, norm, mean)


def is_finite(x: np.ndarray | None) -> bool:
    """Whether an array of float32 or float64, if its values are known, holds neither NaN nor
    infinity; by threads, where there are many values."""
    if x is None:
        return True
    values = loops.as_loops_take(x).ravel("K")
    return isfinite(on_vectors(x.dtype, x.size).times_zero(values))


@np.errstate(all="ignore")
def is_wide(image: np.ndarray | None, filter: Filter, window: Window) -> bool | None:
    """Whether a transform may be off by more than 1e3 eps of the sum of absolute products.

    None where sums are not finite, so that a transform would spread NaN or infinity. Values that
    are not known, of an image or of a filter, count as even.

    Looked at, in one pass, are blocks of at most half the filter's extents, rounded up: every
    window of the image that the filter covers holds one. A tile's mean square is at most the
    largest value times the largest mean of a block. The sum of products is estimated by the least
    block that is not zero and the mean of the filter without its largest values; results that meet
    less than a block do not count.
    """
    if filter.array is None:
        return False
    facts = filter.found(facts_of)
    if facts.norm == 0.0 and not np.isfinite(filter.array).all():
        return None
    if image is None:
        return facts.norm > _LOST * facts.mean * filter.array.size
    rows, columns = (window.filter_height + 1) // 2, (window.filter_width + 1) // 2
    planes = loops.as_loops_take(image).reshape(-1, *image.shape[-2:])
    planes = np.ascontiguousarray(planes)  # each further layout would be compiled, for seconds
    batch, height, width = planes.shape
    down, across = -(-height // rows), -(-width // columns)
    bounds = np.empty((batch, down, 3))
    loops.vectors_for(SUMS, image.dtype).block_bounds(planes, across, bounds)
    means, least, peaks = bounds[..., 0].max(1), bounds[..., 1].min(1), bounds[..., 2].max(1)
    if not np.isfinite(means).all():
        return None
    fill = abs(filter.fillvalue) if window.filled else 0.0
    peak, mean = (np.sqrt(np.maximum(x, fill)) for x in (peaks, means))
    return bool((facts.norm * peak * mean > _LOST * facts.mean * least).any())


# Seconds of a look: fixed; for a byte of the image on one core (16 cores of an H100's host go over
# 8192 x 8192 numbers of float32 in 5 ms); for a block, at most; for an element of a filter that is
# not remembered.
_CALL, _BYTE, _BLOCK, _TAP = 7e-5, 2.8e-10, 5.5e-9, 3e-8
_MOST_CORES = 16  # more are not faster than the memory


def with_look(plan: Plan, machine: dict[str, dict[str, Any]]) -> Plan:
    """The plan, with the time that `is_wide` takes for its image added to the candidates that
    transform, on a machine with these descriptions of devices; the cheapest is first."""
    (image, filter), cpu, w = plan.problem.inputs, machine.get(CPU, {}), plan.problem.options
    compiled = cpu.get("elsewhere") or loops.is_ready(loops.named(SUMS, image.dtype))
    cores = min(cpu.get("cores") or 1, _MOST_CORES) if compiled else 1
    rows, columns = (w.filter_height + 1) // 2, (w.filter_width + 1) // 2
    blocks = plan.problem.batch * -(-w.height // rows) * -(-w.width // columns)
    look = _CALL + image.nbytes * _BYTE / cores + blocks * _BLOCK
    look += (filter.size > LARGEST_REMEMBERED) * filter.size * _TAP
    able = possible(plan.candidates)  # the first of them
    for i, c in enumerate(able):
        if c.method == FFT and c.seconds is not None:
            able[i] = with_terms(c._replace(terms={"look": look}), c.terms)
    others = plan.candidates[len(able) :]
    return replace(plan, candidates=(*sorted(able, key=rank), *others))
