"""What hetero asks of a library of arrays; one adapter for each library answers it."""

from __future__ import annotations

import abc
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays.operand import Operand

NewArray = Callable[[tuple[int, ...], np.dtype], tuple[Any, int]]


class Access(NamedTuple):
    """How a remembered call reads and makes arrays, without a look at their interface.

    Attributes
    ----------
    facts : callable
        ``facts(A, B, out)``: all that a plan depends on, hashable; out may be None.
    address : callable
        Of an array, a number.
    usable : callable or None
        Whether an array may be read this way; None: every one may.
    maker : callable
        ``maker(device)(shape, dtype, like)`` gives a new array on the device of ``like``.
    ordered : callable
        Whether work on the library's current stream is ordered by the legacy default stream.
    context : callable or None
        Handle of the context that is current in this thread, None or 0 if there is none; None
        where the library has no function for it.
    """

    facts: Callable[..., tuple[Any, ...]]
    address: Callable[[Any], int]
    usable: Callable[[Any], bool] | None
    maker: Callable[[Any], Callable[[tuple[int, ...], Any, Any], Any]]
    ordered: Callable[[], bool]
    context: Callable[[], int | None] | None


class Library(abc.ABC):
    """Everything that hetero asks of one library's arrays.

    Attributes
    ----------
    modules : frozenset of str
        Top-level modules that define the library's array types.
    pickles : bool
        Whether its arrays can be pickled.
    """

    modules: frozenset[str] = frozenset()
    pickles: bool = False

    def defines(self, kind: type) -> bool:
        """Whether a type, or what it inherits from, is this library's own."""
        return any(base.__module__.partition(".")[0] in self.modules for base in kind.__mro__)

    def recognises(self, kind: type) -> bool:
        """Whether arrays of a type are this library's."""
        return self.defines(kind)

    def on_device(self, array: Any) -> bool:
        """Whether an array of this library lies on a device."""
        return True

    @abc.abstractmethod
    def describe(self, array: Any) -> Operand:
        """The operand; TypeError where the array has no usable description."""

    def empty(
        self, like: Any, shape: tuple[int, ...], dtype: np.dtype, new_array: NewArray
    ) -> tuple[Any, int]:
        """A new C-contiguous array on the device of ``like``, and its address.

        ``new_array(shape, dtype)`` gives a PyCUDA array on the same device, for libraries that
        cannot make one.
        """
        return new_array(shape, dtype)

    def maker(self, kind: str) -> Callable[[Any, tuple[int, ...], np.dtype], Any] | None:
        """``make(device, shape, dtype)`` gives a new C-contiguous array on a device of that kind.

        None where the library has none there, or is not installed. It is asked where a result is to
        stay on a device and no operand has a library.
        """
        return None

    def release(self, device: Any) -> bool:
        """Give memory of a device that the library keeps for later arrays back; True if there was.

        It is asked where a device runs short: results that stayed are the library's to free.
        """
        return False

    def access(self, kind: type, several: bool) -> Access | None:
        """How remembered calls use arrays of a type; None where their calls go the general way.

        Parameters
        ----------
        kind : type
        several : bool
            Whether there are several CUDA devices, so that the facts must name the array's.
        """
        return None


def layouts(A: Any, B: Any, out: Any) -> tuple[Any, ...]:
    """Shape, strides and dtype of arrays that have these as NumPy's do."""
    if out is None:
        return A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype
    return (
        *(A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype),
        *(out.shape, out.strides, out.dtype),
    )


def each(facts: Callable[[Any], tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """The facts of all arrays from those of one."""
    return lambda A, B, out: (facts(A), facts(B), out is not None and facts(out))
