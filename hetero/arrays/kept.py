"""Arrays on the host that devices may hold copies of: promised not to change, or watched.

Promised are arrays that `keep` gave, and those in memory that nothing can write to: that of a bytes
object. A merely read-only array may be made writeable again, and does not count.

Watched are ordinary arrays that are used again. From the second use on their pages are
write-protected (`hetero.host.write_tracking`), and each later call asks whether one was written to.
A write drops the copies, and the array is left alone for twice as many uses as the time before.

It is the memory that counts: X, X.T and a new array object on the same buffer are one operand.

Finalizers run anywhere, also within other code of this file, so that what they touch has no lock:
they do single operations on dicts, in any order.
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
_ENOUGH = 8  # uses more than are needed, after which a write makes the next wait a short one
_SAMPLES = 64  # values that are compared before a watch begins
_SPREAD = 4  # times its bytes: an array that is spread over more memory is not watched


class Kept:
    """What is known of a block of host memory, or a view with gaps, that does not change.

    Arrays over the same elements, such as A and A.T, share one.
    """

    __slots__ = (
        *("__weakref__", "calls", "checksum", "dtype", "due", "held", "line", "nbytes"),
        *("shape", "uses", "watch"),
    )

    def __init__(self, array: Any, watch: Any = None, calls: int = 0) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.held: dict[Any, str] = {}  # `hetero.devices.storage.Copies` -> name of its device
        self.due: set[str] = set()  # devices that keep it when it is moved there next
        self.uses = 0  # how many more were promised
        self.calls = calls  # without a copy that would have made them faster, since the last one
        self.line = ""  # of the program that kept it, where that is asked for
        self.checksum: bytes | None = None  # when it was copied, where that is asked for
        self.watch = watch  # None where it was promised

    @property
    def copies(self) -> tuple[str, ...]:
        """Names of the devices that hold a copy now."""
        return tuple(dict.fromkeys(list(self.held.values())))

    def is_intact(self) -> bool:
        """Whether nobody wrote there; an array on it must live."""
        return self.watch is None or not self.watch.is_written()

    def drop(self) -> None:
        """Free all copies."""
        for copies in list(self.held):
            copies.remove(self)

    def __reduce__(self) -> Any:
        return type(None), ()  # kept copies are not pickled or copied


# -- Promised --------------------------------------------------------------------------------------

# id of an array that promises -> its addresses, what is known of them
_promises: dict[int, tuple[int, int, dict[Any, Kept]]] = {}


def _promise(array: np.ndarray) -> None:
    """Count on an array's values as long as it lives."""
    if id(array) not in _promises:
        _promises[id(array)] = *addresses(array), {}
        weakref.finalize(array, _end, id(array)).atexit = False


def _end(promise: int) -> None:
    """An array that promised has died."""
    for block in list(_promises.pop(promise)[2].values()):
        block.drop()


def find(array: np.ndarray) -> Kept | None:
    """What is known of an array that does not change by promise; None for one that may."""
    flags = array.flags
    if flags.writeable or array.nbytes < LEAST or array.dtype.char not in FLOATS:
        return None
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    if type(root.base) is bytes:
        _promise(root)
    key, (low, high) = key_of(array)
    own = _promises.get(id(array))
    for begin, end, blocks in [own] if own else list(_promises.values()):
        if begin <= low and high <= end:
            if key not in blocks and len(blocks) >= _MOST_BLOCKS:
                for other in [k for k, block in list(blocks.items()) if not block.held]:
                    blocks.pop(other, None)
            return blocks.get(key) or blocks.setdefault(key, Kept(array))
    return None


def keep(array: np.ndarray, uses: int, where: str) -> np.ndarray:
    """A read-only array of the same data; the promise lasts as long as it; see `hetero.keep`."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    _promise(array)
    if (known := find(array)) is not None:
        known.line, known.uses = where, uses
    return array


def written(array: np.ndarray) -> None:
    """Free the copies of an array's memory, which hetero has written to."""
    low, high = addresses(array) if _promises else (0, 0)
    for begin, end, blocks in list(_promises.values()):
        for block in list(blocks.values()) if begin < high and low < end else ():
            block.drop()
            block.checksum = None


# -- Watched ---------------------------------------------------------------------------------------


class _Seen:
    """Uses of an array's memory, or of results of one kind, and how many are needed: of an array
    to be watched, of results to stay."""

    __slots__ = ("block", "last", "needed", "source", "uses", "values")

    def __init__(self, source: _Seen | None = None) -> None:
        # While it is watched. A later watch has another one: a call in another thread may be about
        # to make a copy for the block that it was given.
        self.block: Kept | None = None
        self.uses, self.needed = 0, _FIRST
        self.source = source  # of a result, until a call has it; see `note_result`
        self.values = b""  # some, of the last use but one that is needed
        self.last = time.monotonic()  # when a call had it

    def use(self, array: np.ndarray, span: tuple[int, int]) -> Kept | None:
        """Count a call that has the array; the block unless there was a write, or it waits."""
        source, self.source, self.last = self.source, None, time.monotonic()
        if (block := self.block) is not None and not block.is_intact():
            self.begin_anew()
            if source is not None:
                source.begin_anew()
        elif source is not None:  # each lets two stay
            source.uses = min(source.uses + 2, source.needed + _ENOUGH)
        self.uses += 1
        if self.block is None and self.uses >= self.needed - 1:
            before, self.values = self.values, _some(array)
            if self.uses >= self.needed and before == self.values:
                self.watch(array, span)
            elif self.uses >= self.needed:
                self.begin_anew()
        return self.block

    def begin_anew(self) -> None:
        """There was a write: twice as many uses are needed, if it came soon."""
        is_soon = self.uses < self.needed + _ENOUGH
        self.needed = min(2 * self.needed, _MOST_WAIT) if is_soon else _FIRST
        self.uses = 0
        self.release()

    def watch(self, array: np.ndarray, span: tuple[int, int]) -> None:
        """Look for writes from now on."""
        watch = write_tracking.watch(*span)
        if watch is None:
            self.needed = self.uses + _MOST_WAIT
        elif self.block is not None:  # a signal handler's call began one, and may have a copy
            watch.close()
        else:
            self.block = Kept(array, watch, calls=1)  # it was used before

    def release(self) -> None:
        """Drop the copies, and stop watching."""
        block, self.block = self.block, None
        if block is not None:
            block.watch.close()
            block.drop()


_lock = locks.new()
remembered: OrderedDict[Any, _Seen] = OrderedDict()  # the last one was used last
_sources: dict[Any, _Seen] = {}


def note(array: np.ndarray) -> Kept | None:
    """Count a call that has an array; what is known of it if nobody wrote there since another."""
    if not _may_be_watched(array) or (RANGES and holds(array)):
        return None
    key, span = key_of(array)
    if span[1] - span[0] > _SPREAD * array.nbytes:
        return None
    with _lock:
        seen = _moved_to_end(key, remembered.get(key) or _Seen())
        block = seen.use(array, span)
        if remembered.get(key) is not seen:  # a signal handler forgot it meanwhile
            seen.release()
            return None
        return block


def note_result(array: np.ndarray, source: Any) -> Kept | None:
    """Count a new result that a device computed, before the caller has it.

    Where earlier ones of the same source were operands of later calls, this one is watched from now
    on, and what is known of it is returned: then it can stay on the device.
    """
    if not _may_be_watched(array):
        return None
    key, span = key_of(array)
    with _lock:
        _forget(key)  # of an array that is gone
        if len(_sources) >= _MOST_WAIT:
            _sources.clear()
        earlier = _sources.setdefault(source, _Seen())
        seen = _moved_to_end(key, _Seen(earlier))
        seen.uses, seen.values = 1, _some(array)
        if earlier.uses >= earlier.needed:
            earlier.uses -= 1
            seen.watch(array, span)
        return seen.block


def _some(array: np.ndarray) -> bytes:
    """Some values, spread over the array: a watch in vain costs more than to see that they changed,
    where all are written between calls."""
    index = [np.linspace(0, n - 1, _SAMPLES).astype(int) for n in array.shape]
    return array[tuple(index)].tobytes()


def _moved_to_end(key: Any, seen: _Seen) -> _Seen:
    """Remember an array as the one that was used last; forget the one that was used first, where
    there are many, or that was long ago. If that is gone, there will be something else.

    A weak reference would tell its end, but NumPy resizes no array that has one.
    """
    remembered.pop(key, None)
    first, oldest = [*remembered.items(), (key, seen)][0]
    block = oldest.block if oldest is not seen else None
    if len(remembered) >= _MOST or time.monotonic() - oldest.last > _IDLE:
        _forget(first)
    elif block is not None and not block.watch.is_clean():
        oldest.begin_anew()
    remembered[key] = seen
    return seen


def peek(array: np.ndarray) -> Kept | None:
    """What is known of an array that is watched and was not written to; counts no call."""
    if not remembered or not _may_be_watched(array):
        return None
    seen = remembered.get(key_of(array)[0])
    block = None if seen is None else seen.block
    return block if block is not None and block.is_intact() else None


def _may_be_watched(array: np.ndarray) -> bool:
    return array.nbytes >= LEAST_WATCHED and array.dtype.char in FLOATS and not _off()


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


def clear() -> None:
    """Forget all that is watched."""
    with _lock:
        for key in list(remembered):
            _forget(key)
        _sources.clear()


def every() -> list[Kept]:
    """All that is known now, promised or watched."""
    promised = [block for *_, blocks in list(_promises.values()) for block in list(blocks.values())]
    return promised + [b for seen in list(remembered.values()) if (b := seen.block) is not None]


def _after_fork() -> None:
    """The copies are the parent's, and its devices hold them."""
    remembered.clear()
    for block in every():
        block.held = {}


os.register_at_fork(after_in_child=_after_fork)
