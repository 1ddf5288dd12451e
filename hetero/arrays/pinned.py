"""Which arrays on the host lie in pinned memory that hetero allocated, by their addresses."""

from __future__ import annotations

import bisect
import contextlib
import weakref
from collections import Counter

import numpy as np

from hetero import locks

_lock = locks.new()
RANGES: list[tuple[int, int, str]] = []  # first address, the one behind the last, purpose; sorted


def holds(array: np.ndarray) -> bool:
    """Whether an array lies in pinned memory that was made here."""
    if not RANGES:
        return False
    address = array.__array_interface__["data"][0]
    place = bisect.bisect_right(RANGES, (address, 1 << 64))
    # As a slice: one may go meanwhile, in another thread or a finalizer.
    return any(address < end for _, end, _ in RANGES[max(place - 1, 0) : place])


def sizes() -> dict[str, int]:
    """Purpose -> bytes of the pinned memory that this process holds."""
    found: Counter[str] = Counter()
    for begin, end, purpose in list(RANGES):
        found[purpose] += end - begin
    return dict(found)


def known(array: np.ndarray, purpose: str) -> np.ndarray:
    """Register an array of pinned memory for `holds`, as long as it or one of its views lives."""
    begin = array.__array_interface__["data"][0]
    entry = begin, begin + array.nbytes, purpose
    with _lock:
        bisect.insort(RANGES, entry)
    weakref.finalize(array, _forget, entry).atexit = False
    return array


def _forget(entry: tuple[int, int, str]) -> None:
    with _lock, contextlib.suppress(ValueError):
        RANGES.remove(entry)
