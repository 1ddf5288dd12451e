"""What a convolution's ``run`` gets beside the image: the filter, its factors, the fill value."""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import Operand
from hetero.imports import load

LARGEST_REMEMBERED = 4096  # elements of a filter whose content is compared from call to call
PURPOSE = "convolution filters"
_KEPT = 8  # things of filters, in each context
_MOST = 8  # factors; more are not looked for
_SAMPLE = 24  # rows and columns that are looked at first
_ROWS = 64  # that are looked at while they are in a cache
_LOST = 1e3  # eps by which a tap may be off, and how much larger its products may be


# Whether results of the CPU's transforms are to be 0 where the direct sum's are.
exact_zeros = ContextVar("exact_zeros", default=True)


class computed_once:
    """As `functools.cached_property`, whose lock, in Python 3.11, a fork leaves taken."""

    def __init__(self, compute: Callable[[Any], Any]) -> None:
        self._compute = compute
        self.__doc__ = compute.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        found = instance.__dict__[self._name] = self._compute(instance)
        return found


class Filter:
    """A filter on the host, or one that stays on its device.

    The array is C-contiguous, or None where its values are not known: then ``held`` and ``operand``
    are the caller's array on a device, and its description.
    """

    def __init__(
        self, array: np.ndarray | None, held: Any = None, operand: Operand | None = None
    ) -> None:
        self.array = array
        self._held = held
        self._operand = operand
        self.made: dict[Any, Any] | None = None  # where it keeps things by itself
        if operand is not None:
            self.pointer: Any = operand.pointer
            self.strides = operand.staged_strides()[-2:]

    def downloaded(self) -> Filter:
        """The filter with its values known."""
        if self.array is not None:
            return self
        transfer = load("hetero.moving.transfer")
        return Filter(np.ascontiguousarray(transfer.to_host(self._held, self._operand)))

    def at(self, pointer: int) -> Filter:
        """One on its device for another of the same kind, which the caller keeps alive."""
        if self.array is not None:
            return self
        other = copy.copy(self)
        other._held, other.pointer = None, pointer
        return other

    def held(self) -> Filter:
        """The filter, for which `kept` keeps things as long as this one lives, however large."""
        if self.content is not None or self.array is None:
            return self
        held = Filter(self.array)
        held.made = {}
        return held

    @computed_once
    def content(self) -> bytes | None:
        """The values of a small filter; what is kept for it is found by them."""
        small = self.array is not None and self.array.size <= LARGEST_REMEMBERED
        return self.array.tobytes() if small else None

    @computed_once
    def taps(self) -> np.ndarray:
        """The flipped filter, rotated by 180 degrees, C-contiguous: convolution by correlation."""
        return np.ascontiguousarray(self.array[::-1, ::-1])

    @computed_once
    def facts(self) -> SimpleNamespace:
        """What the filter's values, which are known, say.

        Its factors and those of the flipped one, see `low_rank`; whether taps are ``whole``, none
        is negative (``positive``), some are 0 (``zeros``); the sum of their sizes.
        """
        return self.found(_facts)

    def found(self, look: Callable[[np.ndarray], Any]) -> Any:
        """``look(array)``, which for a small filter is remembered."""
        if self.content is None:
            return look(self.array)
        return _remembered(look, self.content, self.array.shape, self.array.dtype.char)

    @property
    def rank(self) -> int:
        """Number of its factors; 0 where there are too many, or its values are not known."""
        found = None if self.array is None else self.facts.factors
        return 0 if found is None else len(found[0])


class FilterOptions(NamedTuple):
    """The filter, and the value beyond the image's edges."""

    filter: Filter
    fillvalue: Any


def kept(device: Any, filter: Filter, what: Any, make: Callable[[], Any]) -> Any:
    """What ``make()`` made for the filter's values on a device, now or earlier."""
    if filter.content is None:
        if filter.made is None:
            return make()
        if what not in filter.made:
            filter.made[what] = make()
        return filter.made[what]
    array = filter.array
    key = filter.content, array.shape, array.dtype.char, what
    made = device.storage().find(PURPOSE, key)
    if made is None:
        made = make()
        device.storage().put(PURPOSE, key, made, _KEPT)
    return made


# -- Filters of low rank: sums of a few products of a column and a row -----------------------------


@np.errstate(all="ignore")  # what underflows is too small to count, and NaN ends the search
def low_rank(filter: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
    """Factors of a filter whose rank is low enough to save work.

    Parameters
    ----------
    filter : (fh, fw) ndarray of float32 or float64

    Returns
    -------
    (columns, rows) : (r, fh) and (r, fw) ndarray, or None
        Their products add up to the filter up to twice the rounding of its dtype, in the 1-norm:
        ``abs(filter - columns.T @ rows).sum() <= 2 eps abs(filter).sum()``, less than the bound on
        the rounding of the direct sum; each of them is 0 where a tap is; and no tap is lost beside
        larger ones: see `_kept`. r is at most 8, and r (fh + fw) < fh fw. Of whole numbers they are
        whole: so are their sums. None where there is no such r.

    Notes
    -----
    By adaptive cross approximation with full pivoting: the largest element's row and column are
    taken out until nothing is left. It needs r passes over the filter and, unlike an SVD, no
    LAPACK, whose threads would hold up the loops that follow.

    References
    ----------
    M. Bebendorf, "Approximation of boundary element matrices", Numer. Math. 86 (2000), 565-589.
    """
    fh, fw = filter.shape
    if not filter.size:
        return None
    most = min(_MOST, (fh * fw - 1) // (fh + fw))
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
    parts = (x[i : i + _ROWS] for i in range(1, len(x), _ROWS))
    return all(bool((np.rint(part) == part).all()) for part in (x[:1], *parts))


def _crosses(filter: np.ndarray, most: int) -> tuple[np.ndarray, np.ndarray] | None:
    taps = filter.astype(np.float64)
    rest = taps.copy()
    total = float(np.abs(rest).sum())
    if not np.isfinite(total):
        return None
    whole = total < 1 / np.finfo(np.float64).eps and is_whole(taps)
    info = np.finfo(filter.dtype)
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
        if float(np.abs(rest).sum()) > enough:
            continue
        rounded = np.array(columns).astype(filter.dtype), np.array(rows).astype(filter.dtype)
        products = [c[:, None].astype(np.float64) * r for c, r in zip(*rounded, strict=True)]
        error, size = np.abs(taps - sum(products)), sum(map(np.abs, products))
        exact = not size[taps == 0.0].any()  # no rounding where SciPy has 0
        right = exact and float(error.sum()) <= enough and _kept(taps, error, size, info)
        return rounded if right else None
    return None


def _kept(taps: np.ndarray, error: np.ndarray, size: np.ndarray, info: np.finfo) -> bool:
    """Whether small taps count where the image is small, or 0, beneath the large ones.

    Each tap is right to 1e3 eps of itself; or its products nearly cancel, and it is right to their
    rounding. The products' ``size`` is no more than 1e3 times the taps around; if none is negative,
    than the tap itself, so that no sum is.
    """
    around, positive = np.abs(taps), bool((taps >= 0.0).all())
    taps = around
    if not positive:
        around = np.lib.stride_tricks.sliding_window_view(np.pad(taps, 1), (3, 3)).max(axis=(2, 3))
    right = (error <= _LOST * info.eps * taps + info.tiny) | (error <= 4.0 * info.eps * size)
    return bool((right & (size <= _LOST * around + info.tiny)).all())


@functools.lru_cache(maxsize=512)
def _remembered(
    look: Callable[[np.ndarray], Any], content: bytes, shape: tuple[int, int], dtype: str
) -> Any:
    return look(np.frombuffer(content, dtype).reshape(shape))


@np.errstate(all="ignore")
def _facts(filter: np.ndarray) -> SimpleNamespace:
    found = low_rank(filter)
    flipped = found and tuple(np.ascontiguousarray(lines[:, ::-1]) for lines in found)
    return SimpleNamespace(
        factors=found,
        flipped=flipped,
        whole=is_whole(filter),
        positive=bool((filter >= 0.0).all()),
        zeros=bool((filter == 0.0).any()),
        size=float(np.abs(filter, dtype=np.float64).sum()),
    )
