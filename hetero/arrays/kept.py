"""Arrays on the host that devices may hold copies of: promised not to change, or watched.

Promised are arrays that `keep` gave; a merely read-only one may be made writeable again. Watched
are ordinary arrays that are used again. From the second use on their pages are write-protected
(`hetero.host.write_tracking`), and each later call asks whether one was written to. A write drops
the copies, and the array is left alone for twice as many uses as the time before. It is the memory
that counts: X, X.T and a new array object on the same buffer are one operand.

Finalizers run anywhere, so that what they touch has no lock, and is changed by single operations.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import OrderedDict
from contextvars import ContextVar
from typing import Any

import numpy as np

from hetero import locks
from hetero.arrays.operand import addresses, key_of
from hetero.arrays.pinned import RANGES, holds
from hetero.host import write_tracking

LEAST = 4096  # bytes: moving a smaller operand takes no longer than starting any copy
LEAST_WATCHED = 1 << 20  # bytes: what is smaller is moved in the time that a call takes anyway
FLOATS = "fd"  # what devices compute in
OFF = "HETERO_WATCH"
asked: ContextVar[bool | None] = ContextVar("hetero_watch", default=None)  # by `use`
_MOST_BLOCKS = 1024  # of one array, such as the rows of a matrix, that are known without a copy
_MOST = 64  # arrays that are remembered; the one that was not used for longest is forgotten
_IDLE = 30.0  # seconds without a call, after which an array is forgotten when another one is used
_FIRST, _MOST_WAIT = 2, 1 << 12  # uses that are needed, at first and at most
_SAMPLES = 64  # values that are compared before a watch begins


class Kept:
    """What is known of a block of host memory, or a view with gaps: who holds copies of it, and
    whether it may change. Arrays over the same elements, such as A and A.T, share one."""

    def __init__(self, promised: bool = False, source: Kept | None = None) -> None:
        self.held: dict[Any, str] = {}  # `hetero.devices.storage.Copies` -> name of its device
        self.due: set[str] = set()  # devices that keep it when it is moved there next
        self.calls = 0  # without a copy that would have made them faster, since the last one
        self.promised = promised
        self.coming = 0  # how many more uses were promised
        self.line = ""  # of the program that kept it
        self.checksum: bytes | None = None  # when it was copied, where that is asked for
        self.watch: Any = None
        self.uses, self.needed = 0, _FIRST  # until it is watched; of a source, until results stay
        self.source = source  # of a result, until a call has it; see `note_result`
        self.values = b""  # some, of the last use but one that is needed
        self.last = time.monotonic()  # when a call had it

    @property
    def copies(self) -> tuple[str, ...]:
        """Names of the devices that hold a copy now."""
        return tuple(dict.fromkeys(list(self.held.values())))

    def is_intact(self) -> bool:
        """Whether nobody wrote there since it was promised or watched; an array on it must live."""
        watch = self.watch
        return self.promised or (watch is not None and not watch.is_written())

    def drop(self) -> None:
        """Free all copies."""
        self.checksum = None
        for copies in list(self.held):
            copies.remove(self)

    def use(self, array: np.ndarray, span: tuple[int, int]) -> None:
        """Count a call that has the array, which is watched when it had enough without a write."""
        source, self.source, self.last = self.source, None, time.monotonic()
        if self.watch is not None and not self.is_intact():
            self.begin_anew()
            if source is not None:
                source.begin_anew()
        elif source is not None:  # each lets two stay
            source.uses = min(source.uses + 2, 2 * source.needed)
        self.uses += 1
        if self.watch is None and self.uses >= self.needed - 1:
            # A watch in vain costs more than to see that values changed, where all are written.
            index = [np.linspace(0, n - 1, _SAMPLES).astype(int) for n in array.shape]
            before, self.values = self.values, array[tuple(index)].tobytes()
            if self.uses >= self.needed and before == self.values:
                self.begin(span)
            elif self.uses >= self.needed:
                self.begin_anew()

    def begin(self, span: tuple[int, int]) -> None:
        """Watch it from now on."""
        watch = write_tracking.watch(*span)
        if watch is None:
            self.needed = self.uses + _MOST_WAIT
        elif self.watch is not None:  # a signal handler's call began one, and may have a copy
            watch.close()
        else:
            self.watch, self.calls = watch, 1  # it was used before

    def begin_anew(self) -> None:
        """There was a write: twice as many uses are needed, if it came soon."""
        is_soon = self.uses < 2 * self.needed
        self.uses, self.needed = 0, min(2 * self.needed, _MOST_WAIT) if is_soon else _FIRST
        self.release()

    def release(self) -> None:
        """Drop the copies, and stop watching."""
        watch, self.watch = self.watch, None
        self.due.clear()
        if watch is not None:
            watch.close()
            self.drop()

    def __reduce__(self) -> Any:
        return type(None), ()  # kept copies are not pickled or copied


# -- Promised --------------------------------------------------------------------------------------

_promises: dict[int, tuple[int, int]] = {}  # id of an array that promises -> its addresses
_blocks: dict[Any, Kept] = {}  # key and addresses of an array within one of these


def promise(array: np.ndarray) -> None:
    """Count on an array's values as long as it lives."""
    if id(array) not in _promises:
        weakref.finalize(array, _end, id(array)).atexit = False
        _promises[id(array)] = span = addresses(array)
        _forget_within(*span)  # what a call in another thread looked up when an older one ended


def _end(promise: int) -> None:
    """An array that promised has died."""
    _forget_within(*_promises.pop(promise, (0, 0)))


def _forget_within(low: int, high: int) -> None:
    for key in list(_blocks):
        if low <= key[1] and key[2] <= high and (block := _blocks.pop(key, None)):
            block.drop()


def find(array: np.ndarray) -> Kept | None:
    """What is known of an array that does not change by promise; None for one that may."""
    if not _promises or array.flags.writeable:
        return None
    if array.nbytes < LEAST or array.dtype.char not in FLOATS:
        return None
    key, (low, high) = key_of(array)
    if not any(begin <= low and high <= end for begin, end in list(_promises.values())):
        return None
    key = key, low, high
    if key not in _blocks and len(_blocks) >= _MOST_BLOCKS:
        for other in [k for k, block in list(_blocks.items()) if not block.held]:
            _blocks.pop(other, None)
    return _blocks.get(key) or _blocks.setdefault(key, Kept(promised=True))


def written(array: np.ndarray) -> None:
    """Free the copies of an array's memory, which hetero has written to."""
    low, high = addresses(array) if _promises else (0, 0)
    for (_, begin, end), block in list(_blocks.items()):
        if begin < high and low < end:
            block.drop()


# -- Watched ---------------------------------------------------------------------------------------


lock = locks.new()  # watches begin and end within it
remembered: OrderedDict[Any, Kept] = OrderedDict()  # the last one was used last
_sources: dict[Any, Kept] = {}


def note(array: np.ndarray) -> Kept | None:
    """Count a call that has an array; what is known of it if nobody wrote there since another."""
    if not _may_be_watched(array) or (RANGES and holds(array)):
        return None
    key, span = key_of(array)
    with lock:
        known = _moved_to_end(key, remembered.get(key) or Kept())
        known.use(array, span)
        if remembered.get(key) is not known:  # a signal handler forgot it meanwhile
            known.release()
        return None if known.watch is None else known


def note_result(array: np.ndarray, source: Any) -> Kept | None:
    """Count a new result that a device computed, before the caller has it.

    Where earlier ones of the same source were operands of later calls, this one is watched from now
    on, and what is known of it is returned: then it can stay on the device.
    """
    if not _may_be_watched(array):
        return None
    key, span = key_of(array)
    with lock:
        _forget(key)  # of an array that is gone
        if len(_sources) >= _MOST_WAIT:
            _sources.clear()
        earlier = _sources.setdefault(source, Kept())
        known = _moved_to_end(key, Kept(source=earlier))
        if earlier.uses >= earlier.needed:
            earlier.uses -= 1
            known.begin(span)
        return None if known.watch is None else known


def _moved_to_end(key: Any, known: Kept) -> Kept:
    """Remember an array as the one that was used last; forget the one that was used first, where
    there are many, or that was long ago. A weak reference would tell its end, but NumPy resizes no
    array that has one."""
    remembered.pop(key, None)
    for first, oldest in list(remembered.items())[:1]:
        if len(remembered) >= _MOST or time.monotonic() - oldest.last > _IDLE:
            _forget(first)
    remembered[key] = known
    return known


def peek(array: np.ndarray) -> Kept | None:
    """What is known of an array that is watched and was not written to; counts no call."""
    if not remembered or not _may_be_watched(array):
        return None
    known = remembered.get(key_of(array)[0])
    return known if known is not None and known.is_intact() else None


def _may_be_watched(array: np.ndarray) -> bool:
    return array.nbytes >= LEAST_WATCHED and array.dtype.char in FLOATS and not _off()


def obstacle() -> str | None:
    """Why arrays are not watched; None where they are."""
    return _off() or write_tracking.obstacle()


def _off() -> str | None:
    """Who switched it off."""
    if (wanted := asked.get()) is None:
        return f"{OFF}=0" if os.environ.get(OFF) == "0" else None
    return None if wanted else "switched off by hetero.use"


def _forget(key: Any) -> None:
    known = remembered.pop(key, None)
    if known is not None:
        known.release()


def clear() -> None:
    """Forget all that is watched."""
    with lock:
        for key in list(remembered):
            _forget(key)
        _sources.clear()


def every() -> list[Kept]:
    """All that is known now, promised or watched."""
    return [*list(_blocks.values()), *list(remembered.values())]


def _after_fork() -> None:
    """The copies are the parent's, and its devices hold them."""
    remembered.clear()
    for block in every():
        block.held = {}


os.register_at_fork(after_in_child=_after_fork)
