"""What a convolution's ``run`` gets beside the image: the filter and the fill value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import Operand
from hetero.imports import load
from hetero.ops.convolve2d import factors

LARGEST_REMEMBERED = 4096  # elements of a filter whose content is compared from call to call
PURPOSE = "convolution filters"
_KEPT = 8  # things of filters, in each context


class _computed_once:
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

    Parameters
    ----------
    array : (fh, fw) ndarray, or None
        Where its values are known; C-contiguous.
    held, operand : array, Operand
        Where they are not: the caller's array on a device, and its description.
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

    def held(self) -> Filter:
        """The filter, for which `kept` keeps things as long as this one lives, however large."""
        if self.content is not None or self.array is None:
            return self
        held = Filter(self.array)
        held.made = {}
        return held

    @_computed_once
    def content(self) -> bytes | None:
        """The values of a small filter; what is kept for it is found by them."""
        small = self.array is not None and self.array.size <= LARGEST_REMEMBERED
        return self.array.tobytes() if small else None

    @_computed_once
    def taps(self) -> np.ndarray:
        """The flipped filter, rotated by 180 degrees, C-contiguous: convolution by correlation."""
        return np.ascontiguousarray(self.array[::-1, ::-1])

    @_computed_once
    def _both_factors(self) -> Any:
        if self.array is None:
            return None
        if self.content is not None:
            return factors.remembered(self.content, self.array.shape, self.array.dtype.char)
        found = factors.low_rank(self.array)
        return found and (found, factors.flipped(found))

    @property
    def factors(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Columns and rows, or None; see `hetero.ops.convolve2d.factors.low_rank`."""
        return self._both_factors and self._both_factors[0]

    @property
    def flipped_factors(self) -> tuple[np.ndarray, np.ndarray]:
        """Columns and rows of the taps."""
        return self._both_factors[1]


class FilterOptions(NamedTuple):
    """The filter, and the value beyond the image's edges."""

    filter: Filter
    fillvalue: Any


def kept(device: Any, filter: Filter, what: Any, make: Callable[[], Any]) -> Any:
    """What ``make()`` made for the filter's values on a device, now or earlier.

    A graph that is captured uses what there is, and lets it live. What it makes itself is computed
    by its launches only, so that nobody else may find it.
    """
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
        if not device.capturing:
            device.storage().put(PURPOSE, key, made, _KEPT)
    device.keep(made)
    return made
