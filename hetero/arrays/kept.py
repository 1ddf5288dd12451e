"""Arrays on the host that do not change, so that devices may hold copies of them.

These are arrays that `keep` promises not to change, and those in memory that nothing can write to:
that of a bytes object. A merely read-only array may be made writeable again, and does not count.
Finalizers run anywhere, also within other code of this file, so that what they touch has no lock:
they do single operations on dicts, in any order.
"""

from __future__ import annotations

import os
import weakref
from typing import Any

import numpy as np

from hetero.arrays.operand import addresses, key_of

LEAST = 4096  # bytes: moving a smaller operand takes no longer than starting any copy
_MOST = 1024  # blocks of one root, such as the rows of a matrix, that are remembered without a copy
FLOATS = "fd"  # what devices compute in


class Kept:
    """A block of host memory, or a view with gaps, that does not change.

    Arrays over the same elements, such as A and A.T, share one.

    Attributes
    ----------
    shape, dtype
        Of the array that it was first seen as.
    nbytes : int
    held : dict
        What holds a copy, `hetero.devices.storage.Copies` -> name of its device.
    lost : dict
        Device name -> (seconds lost by not having moved there, in how many calls).
    due : set of str
        Devices that keep it when it is moved there next.
    uses : int
        How often it is expected to be used, 0 if that was not given.
    calls : int
        How often it was used.
    line : str
        Line of the program that kept it, "" where none did.
    checksum : bytes or None
        Of its values when they were copied, where that is asked for.
    watched : bool
        Whether nobody promised that it does not change: `hetero.arrays.watched` looks.
    over : bool
        Whether nobody looks any longer, so that no copy may be held: there was a write, perhaps.
    """

    __slots__ = (
        *("__weakref__", "calls", "checksum", "dtype", "due", "held", "lost", "nbytes"),
        *("over", "shape", "line", "uses", "watched"),
    )

    def __init__(self, array: Any, watched: bool = False) -> None:
        self.shape, self.dtype, self.nbytes = array.shape, array.dtype, array.nbytes
        self.held: dict[Any, str] = {}
        self.lost: dict[str, tuple[float, int]] = {}
        self.due: set[str] = set()
        self.uses = self.calls = 0
        self.line = ""
        self.checksum: bytes | None = None
        self.watched, self.over = watched, False

    @property
    def copies(self) -> tuple[str, ...]:
        """Names of the devices that hold a copy now."""
        return tuple(dict.fromkeys(list(self.held.values())))

    def drop(self) -> None:
        """Free all copies."""
        for copies in list(self.held):
            copies.remove(self)

    def __reduce__(self) -> Any:
        return type(None), ()  # kept copies are not pickled or copied


class _Root:
    """The blocks and promises within one array's memory, which all views of it share."""

    __slots__ = ("blocks", "spans")

    def __init__(self) -> None:
        self.blocks: dict[Any, tuple[int, int, Kept]] = {}
        self.spans: dict[int, tuple[int, int]] = {}  # id of a kept array -> addresses

    def covers(self, low: int, high: int) -> bool:
        spans = list(self.spans.values())
        return (low, high) in spans or any(begin <= low and high <= end for begin, end in spans)

    def within(self, low: int, high: int) -> list[tuple[Any, int, int, Kept]]:
        """(key, first address, end, block) of the blocks that share bytes with these addresses."""
        return [
            (key, begin, end, block)
            for key, (begin, end, block) in list(self.blocks.items())
            if begin < high and low < end
        ]

    def drop(self, low: int, high: int) -> None:
        """Forget blocks in this range that no promise covers any longer."""
        spans: set[tuple[int, int]] | None = None
        for key, begin, end, block in self.within(low, high):
            spans = set(self.spans.values()) if spans is None else spans
            # Most blocks have the bounds of a promise: test that first.
            if (begin, end) not in spans and not self.covers(begin, end):
                self.blocks.pop(key, None)
                block.drop()


_roots: dict[int, _Root] = {}


def find(array: np.ndarray) -> Kept | None:
    """What is known of an array that does not change; None for one that may."""
    flags = array.flags
    if flags.writeable or array.nbytes < LEAST or array.dtype.char not in FLOATS:
        return None
    root, fixed = root_of(array)
    known = _roots.get(id(root))
    if known is None:
        if not fixed:
            return None
        known = _add(root)
    key, (low, high) = key_of(array)
    if not (fixed or known.spans.get(id(array)) == (low, high) or known.covers(low, high)):
        return None
    entry = known.blocks.get(key)
    if entry is None:
        if len(known.blocks) >= _MOST:
            known.blocks = {k: each for k, each in list(known.blocks.items()) if each[2].held}
        entry = known.blocks.setdefault(key, (low, high, Kept(array)))
    return entry[2]


def keep(array: np.ndarray, uses: int, where: str) -> np.ndarray:
    """A read-only array of the same data; the promise lasts as long as it; see `hetero.keep`."""
    if array.flags.writeable:
        array = array.view()
        array.flags.writeable = False
    root, fixed = root_of(array)
    if not fixed:
        known = _roots.get(id(root)) or _add(root)
        if id(array) not in known.spans:
            known.spans[id(array)] = addresses(array)
            weakref.finalize(array, _end, id(root), id(array)).atexit = False
    kept = find(array)
    if kept is not None:
        kept.line = where
        kept.uses = kept.calls + uses if uses else 0
    return array


def written(array: np.ndarray) -> None:
    """Free the copies of an array's memory, which hetero has written to."""
    known = _roots.get(id(root_of(array)[0])) if _roots else None
    for _, _, _, block in () if known is None else known.within(*addresses(array)):
        block.drop()
        block.checksum = None


def root_of(array: np.ndarray) -> tuple[np.ndarray, bool]:
    """The owner of an array's memory, and whether it can never be written to."""
    root = array
    while isinstance(root.base, np.ndarray):
        root = root.base
    return root, type(root.base) is bytes


def _add(root: np.ndarray) -> _Root:
    known = _roots[id(root)] = _Root()
    weakref.finalize(root, _forget, id(root)).atexit = False
    return known


def _forget(root: int) -> None:
    """The memory is about to be freed."""
    known = _roots.pop(root, None)
    if known is not None:
        for _, _, block in list(known.blocks.values()):
            block.drop()


def _end(root: int, holder: int) -> None:
    """An array that `keep` gave has died: its promise ends."""
    known = _roots.get(root)
    span = None if known is None else known.spans.pop(holder, None)
    if span is not None:
        known.drop(*span)


def every() -> list[Kept]:
    """All that is known now."""
    return [block for root in list(_roots.values()) for _, _, block in list(root.blocks.values())]


def _after_fork() -> None:
    """The copies are the parent's, and its devices hold them."""
    for block in every():
        block.held = {}


os.register_at_fork(after_in_child=_after_fork)
