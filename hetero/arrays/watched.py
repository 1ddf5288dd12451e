"""Ordinary arrays on the host that are used again, watched so that devices may hold copies of them.

Nobody promised anything of such an array. When a call has the memory of an earlier call again, with
the same values as far as a sample shows, its pages are write-protected
(`hetero.host.write_tracking`), and each later call asks whether one was written to. As long as none
was, the array counts as one that does not change: what is lost by not having it on a device adds up
(`hetero.moving.ski_rental`), until it is copied there. A write drops the copies, and the array is
left alone for some calls, the more of them the less its last watch was good for.

It is the memory that counts: X, X.T and a new array object on the same buffer are one operand.
"""

from __future__ import annotations

import os
import time
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any

import numpy as np

from hetero import locks
from hetero.arrays import kept
from hetero.arrays.kept import Kept
from hetero.arrays.operand import key_of
from hetero.arrays.pinned import RANGES, holds
from hetero.host import write_tracking

LEAST = 1 << 20  # bytes: what is smaller is moved in the time that a call takes anyway
OFF = "HETERO_WATCH"
asked: ContextVar[bool | None] = ContextVar("hetero_watch", default=None)  # by `use`
_MOST = 64  # arrays that are remembered; the one that was not used for longest is forgotten
_IDLE = 30.0  # seconds without a call, after which an array is forgotten when another one is used
_SAMPLES = 64  # values that are compared with those of the call before, until an array is watched
_ENOUGH = 8  # calls without a write, for which watching was worth its price
_MOST_CREDIT, _MOST_SOURCES = 8, 1 << 12  # results that stay unused; kinds of calls counted
_LEAST_PATIENCE, _MOST_PATIENCE = 4, 1 << 12  # calls for which an array that was written to is left
_UNSEEN = 16  # of those calls, for which not even that is looked up: it takes 5 us, these 0.3 us
_SPREAD = 4  # times its bytes: an array that is spread over more memory is not watched


class _Seen:
    """What calls had of an array's memory.

    Attributes
    ----------
    block : Kept or None
        What plans know, while it is watched.
    used : float
        When a call had it last, in seconds of `time.monotonic`.
    source : Any
        Of a result that was left on a device, until a call has it; see `note_result`. Else None.
    """

    __slots__ = (
        *("_intact", "_left", "_patience", "_sample", "_span", "_watch", "block", "source"),
        "used",
    )

    def __init__(self, array: np.ndarray, span: tuple[int, int]) -> None:
        self.block: Kept | None = None
        self._span, self.source = span, None
        self.used = time.monotonic()
        self._sample = _sample(array)
        self._watch: write_tracking.Watch | None = None
        self._intact = 0  # calls since the watch began
        self._left, self._patience = 0, _LEAST_PATIENCE

    def is_intact(self, array: np.ndarray) -> bool:
        """Whether nobody wrote to the array since an earlier call; asked once by each call."""
        watch = self._watch
        if watch is not None:
            if not watch.is_written():
                self._intact += 1
                return True
            self._leave()
            return False
        if not self._left:
            self._begin(array)
        if self._left:
            calls = min(self._left, _UNSEEN)
            self._left -= calls
            _leave_unseen(array, calls - 1)
        if not self._left:
            self._sample = _sample(array)
        return self._watch is not None

    def watch_now(self, array: np.ndarray) -> bool:
        """Watch a new result; whether that is possible."""
        self.block = Kept(array, watched=True)
        self._watch = write_tracking.watch(*self._span)
        return self._watch is not None

    def look(self) -> None:
        """Drop the copies if the memory was written to or given back; the array may be gone."""
        watch = self._watch
        if watch is not None and watch.is_gone():
            self._leave()

    def _leave(self) -> None:
        """Leave the array alone for some calls."""
        in_vain = self._intact < _ENOUGH
        self._patience = min(4 * self._patience, _MOST_PATIENCE) if in_vain else _LEAST_PATIENCE
        self._left = self._patience
        self.release()

    def is_clean(self) -> bool:
        """Whether it is watched, and nobody wrote there."""
        watch = self._watch  # another thread may stop watching
        return watch is not None and not watch.is_written()

    def _begin(self, array: np.ndarray) -> None:
        """Watch it if its values are those of the call before."""
        if _sample(array) != self._sample:
            self._left = _UNSEEN
            return
        block, watch = Kept(array, watched=True), write_tracking.watch(*self._span)
        if watch is None:
            self._left = _MOST_PATIENCE
        elif self._watch is not None:  # a signal handler's call began one, and may have a copy
            watch.close()
        else:
            self.block, self._intact, self._watch = block, 0, watch

    def release(self) -> None:
        """Drop the copies, and stop watching.

        A call in another thread may be about to make a copy for the block that it was given: a
        later watch has another block, which never has that copy.
        """
        old, self.block = self.block, None
        if old is not None:
            old.over = True
            old.drop()
        watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()


_lock = locks.new()
remembered: OrderedDict[Any, _Seen] = OrderedDict()
_results: OrderedDict[Any, tuple[Any, bytes]] = OrderedDict()  # key -> (source, sample)
_credit: dict[Any, int] = {}  # source -> how many results stay on the device, used or not
_unseen: dict[int, int] = {}  # id of an array, or of what it is a view of -> calls that it is left


def _id(array: np.ndarray) -> int:
    """Id that calls with the same array have in common, 0 for a part of one."""
    base = array.base
    if base is None:
        return id(array)
    return id(base) if type(base) is np.ndarray and base.nbytes == array.nbytes else 0


def _leave_unseen(array: np.ndarray, calls: int) -> None:
    if len(_unseen) >= _MOST:
        _unseen.clear()
    _unseen[_id(array)] = calls


def note(array: np.ndarray) -> Kept | None:
    """Count a call that has an array; what is known of it if nobody wrote there since another."""
    if array.nbytes < LEAST or array.dtype.char not in kept.FLOATS:
        return None
    left = _unseen.get(same := _id(array))
    if left and same:
        _unseen[same] = left - 1
        return None
    if _off():
        return None
    key, span = key_of(array)
    if span[1] - span[0] > _SPREAD * array.nbytes:
        return None
    with _lock:
        seen = remembered.get(key)
        _look_at_oldest(key)
        if seen is None:
            source, sample = _results.pop(key, (None, b""))
            if source is not None and sample == _sample(array):
                _trust(source)
            if not (RANGES and holds(array)):
                remembered.setdefault(key, _Seen(array, span))
            return None
        remembered[key] = remembered.pop(key, seen)  # the last one
        seen.used = time.monotonic()
        intact = seen.is_intact(array)
        if remembered.get(key) is not seen:  # a signal handler forgot it meanwhile
            seen.release()
            return None
        if seen.source is not None and intact:
            _trust(seen.source)
        seen.source = None
        return seen.block if intact else None


def note_result(array: np.ndarray, source: Any) -> Kept | None:
    """Count a result that a device computed, and that nobody else has yet.

    Where results of the same source were operands of later calls, and were not written to before,
    this one is watched from now on, and what is known of it is returned: then it can stay on the
    device. Each that stays takes one of the source's credits, and gives two when a call has it.
    """
    if array.nbytes < LEAST or array.dtype.char not in kept.FLOATS or _off():
        return None
    key, span = key_of(array)
    with _lock:
        _unseen.pop(_id(array), None)
        _forget(key)  # of an array that is gone
        if not _credit.get(source):
            _results[key] = source, _sample(array)
            if len(_results) > _MOST:
                _results.popitem(last=False)
            return None
        _credit[source] -= 1
        seen = _Seen(array, span)
        if not seen.watch_now(array):
            return None
        _look_at_oldest(key)
        seen.source, remembered[key] = source, seen
        return seen.block


def _trust(source: Any) -> None:
    """Let results of a source stay, as one of them was an operand."""
    if len(_credit) > _MOST_SOURCES:
        _credit.clear()
    _credit[source] = min(_credit.get(source, 0) + 2, _MOST_CREDIT)


def _look_at_oldest(present: Any) -> None:
    """Drop the copies of the array that was not used for longest, if it is gone by all appearances.

    A weak reference would tell its end, but NumPy resizes no array that has one.
    """
    key = [*remembered, present][0]
    oldest = remembered.get(key)
    if key == present or oldest is None:
        return
    if len(remembered) >= _MOST or time.monotonic() - oldest.used > _IDLE:
        _forget(key)
    else:
        oldest.look()


def peek(array: np.ndarray) -> Kept | None:
    """What is known of an array that is watched and was not written to; counts no call."""
    if not remembered or array.nbytes < LEAST or _off():
        return None
    seen = remembered.get(key_of(array)[0])
    block = None if seen is None else seen.block  # before it is asked: later it may be another one
    return block if block is not None and seen.is_clean() else None


def obstacle() -> str | None:
    """Why arrays are not watched; None where they are."""
    return _off() or write_tracking.obstacle()


def _off() -> str | None:
    """Who switched it off."""
    wanted = asked.get()
    if wanted is False or (wanted is None and os.environ.get(OFF) == "0"):
        return f"{OFF}=0" if wanted is None else "switched off by hetero.use"
    return None


def _forget(key: Any) -> None:
    seen = remembered.pop(key, None)
    if seen is not None:
        seen.release()


def every() -> list[Kept]:
    """All that is known now."""
    return [block for seen in list(remembered.values()) if (block := seen.block) is not None]


def clear() -> None:
    """Forget all."""
    with _lock:
        _unseen.clear()
        for key in list(remembered):
            _forget(key)
        _results.clear()
        _credit.clear()


def _sample(array: np.ndarray) -> bytes:
    """Some values, spread over the array."""
    flat = array.T if array.flags.f_contiguous else array
    if not flat.flags.c_contiguous:
        index = [np.linspace(0, n - 1, _SAMPLES).astype(int) for n in array.shape]
        return array[tuple(index)].tobytes()
    flat = flat.reshape(-1)
    return flat[:: max(1, flat.size // _SAMPLES)].tobytes() + flat[-1:].tobytes()


os.register_at_fork(after_in_child=remembered.clear)  # the copies are the parent's
