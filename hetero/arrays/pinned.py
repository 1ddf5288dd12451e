"""Which arrays on the host lie in pinned memory that hetero allocated, by their addresses."""

from __future__ import annotations

import bisect
import weakref

import numpy as np

from hetero import locks

_lock = locks.new()
RANGES: list[tuple[int, int]] = []  # first address and the one behind the last, in order
_nbytes: dict[str, int] = {}


def holds(array: np.ndarray) -> bool:
    """Whether an array lies in pinned memory that was made here."""
    if not RANGES:
        return False
    address = array.__array_interface__["data"][0]
    place = bisect.bisect_right(RANGES, (address, 1 << 64))
    # As a slice: one may go meanwhile, in another thread or a finalizer.
    return any(address < end for _, end in RANGES[max(place - 1, 0) : place])


def sizes() -> dict[str, int]:
    """Purpose -> bytes of the pinned memory that this process holds."""
    with _lock:
        return {purpose: nbytes for purpose, nbytes in _nbytes.items() if nbytes}


def known(array: np.ndarray, purpose: str) -> np.ndarray:
    """Register an array of pinned memory for `holds`, as long as it or one of its views lives."""
    begin = array.__array_interface__["data"][0]
    entry = begin, begin + array.nbytes
    with _lock:
        bisect.insort(RANGES, entry)
        _nbytes[purpose] = _nbytes.get(purpose, 0) + array.nbytes
    weakref.finalize(array, _forget, entry, purpose).atexit = False
    return array


def _forget(entry: tuple[int, int], purpose: str) -> None:
    with _lock:
        place = bisect.bisect_left(RANGES, entry)
        if RANGES[place : place + 1] == [entry]:
            del RANGES[place]
        _nbytes[purpose] -= entry[1] - entry[0]
