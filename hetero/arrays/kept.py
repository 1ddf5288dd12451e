"""Arrays on the host that devices may hold copies of: promised not to change, or watched.

Promised are arrays that `keep` gave; a merely read-only one may be made writeable again. Watched
are ordinary arrays that are used again. From the second use on their pages are write-protected
(`hetero.host.write_tracking`), and each later call asks whether one was written to. A write drops
the copies, and the array is left alone for twice as many uses as the time before. It is the memory
that counts: X, X.T and a new array object on the same buffer are one operand.

Finalizers run anywhere, so that what they touch has no lock, and is changed by single operations.
"""

from __future__ import annotations

import ctypes
import os
import time
import weakref
from collections import OrderedDict
from typing import Any

import numpy as np

from hetero import locks
from hetero.arrays.operand import addresses, is_pinned, key_of
from hetero.host import write_tracking
from hetero.tables import forced

LEAST = 4096  # bytes: moving a smaller operand takes no longer than starting any copy
LEAST_WATCHED = 1 << 20  # bytes: what is smaller is moved in the time that a call takes anyway
FLOATS = "fd"  # what devices compute in
OFF = "HETERO_WATCH"
_MOST_VIEWS = 1024  # of one promised array, such as the rows of a matrix, that are known
_MOST = 64  # watched arrays, and sources of results; the one that was used first is forgotten
_IDLE = 30.0  # seconds without a call, after which an array is forgotten when another one is used
_FIRST, _MOST_WAIT = 2, 1 << 12  # uses that are needed, at first and at most
_TRIAL = 2 * write_tracking.PAGE  # bytes in which there is a whole page
_LARGE = 16 << 20  # bytes, of which a watch in vain takes milliseconds, and a trial 20 us


class Kept:
    """A block of host memory, or a view with gaps: whether it may change, how often calls had it,
    and who holds copies. Arrays over the same elements, such as A and A.T, share one."""

    def __init__(self, promised: bool = False) -> None:
        self.held: dict[Any, Any] = {}  # `Storage` of a device's context -> its `Copy`
        self.promised = promised
        self.line, self.coming = "", 0  # of the program that kept it; how many more uses it said
        self.watch: Any = None  # that of its first pages is a trial
        self.watched = False  # all of it
        self.uses, self.needed = 0, _FIRST  # since the last write; until it is watched
        self.source: Kept | None = None  # of a result, until a call has it
        self.start = b""  # the result's first values, which other data in its memory would not have
        self.last = 0.0  # when a call had it, by `time.monotonic`

    @property
    def copies(self) -> tuple[str, ...]:
        """Names of the devices that hold a copy now."""
        return tuple(dict.fromkeys([copy.device for copy in list(self.held.values())]))

    def is_intact(self) -> bool:
        """Whether nobody wrote there since it was promised or watched; an array on it must live."""
        watch = self.watch
        return self.promised or (self.watched and watch is not None and not watch.is_written())

    def use(self, span: tuple[int, int]) -> None:
        """Count a call that has it, which is watched when it had enough without a write."""
        source, self.source = self.source, None
        if self.watch is not None and self.watch.is_written():
            self.begin_anew()
            if source is not None:
                source.begin_anew()
        elif source is not None and self.start == _start(span):  # each lets two stay
            source.uses = min(source.uses + 2, 2 * source.needed)
        if self.watched:  # the plan counts it
            return
        left = self.needed - self.uses  # uses until it is watched, with this one
        if left <= 1:
            self.begin(span)
        elif left == 2 and (self.needed > _FIRST or span[1] - span[0] >= _LARGE):
            self.release()
            self.watch = write_tracking.watch(span[0], span[0] + _TRIAL)
        self.uses += not self.watched

    def begin(self, span: tuple[int, int]) -> None:
        """Watch it from now on."""
        self.release()
        self.watch = write_tracking.watch(*span)
        self.watched = self.watch is not None
        self.held = {}  # without what the call of a signal handler copied meanwhile
        if self.watched:
            self.uses = 1
        else:
            self.needed = self.uses + _MOST_WAIT

    def begin_anew(self) -> None:
        """There was a write: twice as many uses are needed, if it came soon."""
        is_soon = self.uses < 2 * self.needed
        self.uses, self.needed = 0, min(2 * self.needed, _MOST_WAIT) if is_soon else _FIRST
        self.release()

    def release(self) -> None:
        """Stop watching, and drop the copies."""
        watch, self.watch, self.watched = self.watch, None, False
        if watch is not None:
            watch.close()
        self.held = {}

    def __reduce__(self) -> Any:
        return type(None), ()  # kept copies are not pickled or copied


# id of an array that promises -> its addresses, and what is known of it and of its views
_promises: dict[int, tuple[int, int, dict[Any, Kept]]] = {}
lock = locks.new()  # watches begin and end within it
# Watched arrays, and calls that compute results with the number of those that were used again, in
# the order of their last use.
remembered: OrderedDict[Any, Kept] = OrderedDict()
_of_parent: list[dict[Any, Any]] = []


def find(array: np.ndarray, used: bool = False, source: Any = None) -> Kept | None:
    """What is known of an array that nobody writes to, by promise or as it is watched; None of one
    that may change, or was written to since another call.

    ``used`` counts a call that has it. ``source`` is what computed a result that nobody has seen:
    that is watched, and can stay on the device, where earlier ones were operands of later calls.
    """
    readonly = not array.flags.writeable and bool(_promises)
    if array.nbytes < (LEAST if readonly else LEAST_WATCHED) or array.dtype.char not in FLOATS:
        return None
    key, span = key_of(array)
    for begin, end, views in list(_promises.values()) if readonly else ():
        if begin <= span[0] and span[1] <= end:
            if key not in views and len(views) >= _MOST_VIEWS:
                views.clear()
            return views.get(key) or views.setdefault(key, Kept(promised=True))
    if array.nbytes < LEAST_WATCHED or obstacle() or is_pinned(array):
        return None
    if not used and source is None:
        known = remembered.get(key)
        return known if known is not None and known.is_intact() else None
    with lock:
        if used:
            known = _remember(key, remembered.get(key) or Kept())
            known.use(span)
        else:
            earlier = _remember(source, remembered.get(source) or Kept())
            remembered.pop(key, earlier).release()  # of an array that is gone
            known = _remember(key, Kept())
            known.source, known.start = earlier, _start(span)
            if earlier.uses >= earlier.needed:
                earlier.uses -= 1
                known.begin(span)
        return known if known.watched else None


def _start(span: tuple[int, int]) -> bytes:
    """The first values of a watched size of memory."""
    return ctypes.string_at(span[0], 64)


def promise(array: np.ndarray) -> None:
    """Count on an array's values as long as it lives; what is known of it goes with it."""
    if id(array) not in _promises:
        _promises[id(array)] = *addresses(array), {}
        weakref.finalize(array, _promises.pop, id(array)).atexit = False


def written(array: np.ndarray) -> None:
    """Free the copies of an array's memory, which hetero has written to."""
    low, high = addresses(array) if _promises else (0, 0)
    for begin, end, views in list(_promises.values()):
        for known in list(views.values()) if begin < high and low < end else ():
            known.held = {}


def _remember(key: Any, known: Kept) -> Kept:
    """Remember an array as the one that was used last; forget the one that was used first, where
    there are many, or that was long ago. A weak reference would tell its end, but NumPy resizes no
    array that has one."""
    remembered.pop(key, None)
    known.last = time.monotonic()
    for first, oldest in list(remembered.items())[:1]:
        if len(remembered) >= _MOST or known.last - oldest.last > _IDLE:
            remembered.pop(first, Kept()).release()
    remembered[key] = known
    return known


def obstacle() -> str | None:
    """Why arrays are not watched; None where they are."""
    outer = forced.get()
    if (wanted := outer and outer.watch) is None and os.environ.get(OFF) == "0":
        return f"{OFF}=0"
    return "switched off by hetero.use" if wanted is False else write_tracking.obstacle()


def every() -> list[Kept]:
    """All that is known now, promised or watched."""
    promised = [known for *_, views in list(_promises.values()) for known in list(views.values())]
    return [*promised, *list(remembered.values())]


def _after_fork() -> None:
    """The copies are on the parent's devices: they are not used here, nor freed."""
    for known in every():
        _of_parent.append(known.held)
        known.held = {}
    remembered.clear()


os.register_at_fork(after_in_child=_after_fork)
