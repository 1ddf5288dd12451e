"""Ordinary arrays on the host that are used again, watched so that devices may hold copies of them.

Nobody promised anything of such an array. What is known of one is that a call had the same memory
before, with the same values as far as a sample shows. Before it is copied to a device to stay, its
pages are write-protected (`hetero.host.write_tracking`), and each later call asks whether one was
written to. If so, the copies are dropped, and the array is left alone for twice as many calls as
the time before: one that a program writes to between its calls is soon not watched any more.

It is the memory that counts: X, X.T and a new array object on the same buffer are one operand.
"""

from __future__ import annotations

import os
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np

from hetero import locks
from hetero.arrays import kept
from hetero.arrays.kept import Kept
from hetero.arrays.operand import Operand
from hetero.host import write_tracking

LEAST = 1 << 20  # bytes: what is smaller is moved in the time that a call takes anyway
OFF = "HETERO_WATCH"
_MOST = 64  # arrays that are remembered; the one that was not used for longest is forgotten
_SAMPLES = 64  # values that are compared from call to call while an array is not watched
_LONGEST = 1 << 12  # calls for which an array that was written to is left alone, at most


class _Seen:
    """What calls had of an array's memory.

    Attributes
    ----------
    block : Kept
        What plans know; its ``guard`` is this.
    root : weakref or None
        Of the array that owns the memory.
    """

    __slots__ = ("__weakref__", "_left", "_patience", "_sample", "_span", "_watch", "block", "root")

    def __init__(self, array: np.ndarray, span: tuple[int, int]) -> None:
        self.block, self._span = Kept(array), span
        self.block.guard = self
        self.root: Any = None
        self._sample = _sample(array)
        self._watch: write_tracking.Watch | None = None
        self._left, self._patience = 0, 1  # calls in which it is left alone: now, the next time

    def is_same(self, array: np.ndarray) -> bool:
        """Whether the array has the values of the call before, as far as that is known."""
        if self._watch is not None:
            if not self._watch.is_written():
                return True
            self.release()
            self._left = self._patience = min(2 * self._patience, _LONGEST)
        elif self._left:
            self._left -= 1
        else:
            before, self._sample = self._sample, _sample(array)
            if before == self._sample:
                return True
            self.block.lost.clear()
            return False
        if not self._left:
            self._sample = _sample(array)
        return False

    def arm(self) -> bool:
        """Watch from now on, before the array is copied; False where that cannot be done."""
        if self._watch is None:
            self._watch = write_tracking.watch(*self._span)
            if self._watch is None:
                self._left = _LONGEST
        return self._watch is not None

    def release(self) -> None:
        """Drop the copies, and stop watching."""
        self.block.drop()
        self.block.lost.clear()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


_lock = locks.new()
_seen: OrderedDict[Any, _Seen] = OrderedDict()


def known(array: np.ndarray, operand: Operand) -> Operand:
    """An input with what is known of its memory; the operand itself where that is nothing.

    Called once for each call that has the array.
    """
    if operand.nbytes < LEAST or operand.kept is not None or operand.pinned or is_off():
        return operand
    if array.dtype.char not in kept.FLOATS:
        return operand
    key, span = kept.key_of(array)
    seen = _seen.get(key)
    if seen is None:
        _add(key, span, array)
        return operand
    if not seen.is_same(array):
        return operand
    return operand._replace(copies=seen.block.copies, kept=seen.block)


def is_off() -> bool:
    """Whether the user switched it off, or Linux does not tell which pages were written to."""
    return os.environ.get(OFF) == "0" or write_tracking.obstacle() is not None


def _add(key: Any, span: tuple[int, int], array: np.ndarray) -> None:
    seen = _Seen(array, span)
    root, _ = kept.root_of(array)
    if root.base is None:  # else another object owns the memory, and may outlive this array
        seen.root = weakref.ref(root, lambda _: _forget(key))
    with _lock:
        _seen[key] = seen
        oldest = next(iter(_seen)) if len(_seen) > _MOST else None
    if oldest is not None:
        _forget(oldest)


def _forget(key: Any) -> None:
    seen = _seen.pop(key, None)
    if seen is not None:
        seen.release()


def every() -> list[Kept]:
    """All that is known now."""
    return [seen.block for seen in list(_seen.values())]


def clear() -> None:
    """Forget all."""
    for key in list(_seen):
        _forget(key)


def _sample(array: np.ndarray) -> bytes:
    """Some values, spread over the array."""
    flat = array.T if array.flags.f_contiguous else array
    if not flat.flags.c_contiguous:
        index = [np.linspace(0, n - 1, _SAMPLES).astype(int) for n in array.shape]
        return array[tuple(index)].tobytes()
    flat = flat.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLES)].tobytes() + flat[-1:].tobytes()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_seen.clear)
