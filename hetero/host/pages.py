"""Reuse of the memory of large results, which avoids page faults.

A new array of 1 GiB has no pages: the first write to each is a page fault, in which the system
allocates and clears it. That takes longer than downloading the values from a device, or than
computing them if that is cheap. So the memory of a large array that was made here is kept when the
array and all its views are gone, for the next one of about that size: as long as large copies or
results are made, and no more than a share of the machine's memory, or of what the process may have
(``ulimit -v``). Memory that is unused for a moment may be reclaimed by the system (``MADV_FREE``);
not at once, since that call interrupts every processor that runs a thread of this process, and the
next write to the pages may fault again.
"""

from __future__ import annotations

import contextlib
import functools
import math
import mmap
import os
import queue
import resource
import sys
import threading
import time
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hetero import locks

__all__ = [
    "PURPOSE",
    "Lent",
    "clear",
    "close",
    "empty",
    "kept_by_malloc",
    "maker",
    "open_",
    "sizes",
]

PURPOSE = "for results, used before"
_LEAST = 4 << 20  # bytes; malloc keeps what is smaller by itself
# Bytes that malloc keeps at most, in a program that asks for them again: with its own, a page at
# most, they are not more than 32 MiB.
_MALLOC = (32 << 20) - mmap.PAGESIZE
_IDLE = 60.0  # seconds without a large result of the CPU, after which none is kept
_REST = 0.25  # seconds within which memory in constant use is taken again
_VERY_LARGE = 1 << 30  # bytes of a block that the system may reclaim at once
_SHARE = 1 / 16  # of the machine's memory, at most
_SPARE = 1.25  # times what is asked for, at most
_PAGE = 2 << 20  # bytes of a huge page
_LIMITS = resource.RLIMIT_AS, resource.RLIMIT_DATA  # of address space and data segment

_kept: list[_Block] = []  # in order of use; each change is one atomic operation
users: set[str] = set()  # users of large arrays; nothing is kept without any
_COPIES, _RESULTS = "copies", "results"
# Time of the last result, in seconds; the thread of `_look_after`, and whether it sleeps until
# `_disturb` wakes it.
_state: dict[str, Any] = {"asked": 0.0, "thread": None, "sleeps": False}
_wake: queue.SimpleQueue[None] = queue.SimpleQueue()  # put by finalizers, too
_lock = locks.new()


class _Block:
    """Memory aligned to huge pages, which it consists of where the system has them."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes
        self.looks = 0  # rounds of `_rest` since it came back
        self._pages = mmap.mmap(-1, nbytes + _PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self._advise("MADV_HUGEPAGE")
        begin = np.frombuffer(self._pages, np.uint8).__array_interface__["data"][0]
        self.address = -(-begin // _PAGE) * _PAGE

    def rest(self) -> None:
        """Let the system reclaim the pages if it needs them."""
        self._advise("MADV_FREE")

    def _advise(self, name: str) -> None:
        if hasattr(mmap, name):
            with contextlib.suppress(OSError):  # a kernel without it
                self._pages.madvise(getattr(mmap, name))


class Lent:
    """The base object of an array and its views; returns the block when all of them are gone."""

    def __init__(self, block: _Block, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._block, self._process = block, os.getpid()
        self.__array_interface__ = {
            "shape": shape,
            "typestr": dtype.str,
            "data": (block.address, False),
            "version": 3,
        }

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # Any thread may be here, between any two steps of another: no lock is taken. At the
        # interpreter's end the names of this file may be gone.
        if is_ending():
            return
        if users and os.getpid() == self._process:
            self._block.looks = 0
            if self._block.nbytes >= _VERY_LARGE:
                self._block.rest()
            _kept.append(self._block)
            _shrink(_most())
            _disturb()


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As ``np.empty``; large arrays use memory that was kept, if there is some.

    Such an array does not own its memory (``flags.owndata``), and is like others in all else.
    """
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < _LEAST or not users or dtype.hasobject or dtype.fields is not None:
        return np.empty(shape, dtype)
    wanted = -(-nbytes // _PAGE) * _PAGE
    block = _taken(wanted)
    if block is None:
        try:
            block = _Block(wanted)
        except (OSError, ValueError):  # free what is kept; if that does not suffice NumPy raises
            clear()
            return np.empty(shape, dtype)
    return np.asarray(Lent(block, tuple(map(int, shape)), dtype))


def maker(nbytes: int) -> Callable[..., np.ndarray]:
    """The allocator of results of this size that the CPU computes: ``np.empty``, or as `empty`."""
    return np.empty if nbytes <= _MALLOC else _result


@functools.cache
def kept_by_malloc() -> None:
    """Have malloc keep what is freed, for arrays that each call makes and frees: it keeps twice the
    largest block that was freed, at first less than most of them take."""
    with contextlib.suppress(MemoryError):
        np.empty(_MALLOC - mmap.PAGESIZE, np.uint8)


def _result(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    _state["asked"] = time.monotonic()
    open_(_RESULTS)
    return empty(shape, dtype)


def _look_after() -> None:
    """The thread that lets the system reclaim unused blocks; it ends when there are no users."""
    while True:
        with contextlib.suppress(queue.Empty):
            _wake.get(timeout=_pause())
        with _lock:
            if _state["thread"] is not threading.current_thread():
                return  # another one does it
            if _state["asked"] + _IDLE <= time.monotonic():
                close(_RESULTS)
            if not users:
                _state["thread"] = None
                return
        _rest()


def _pause() -> float | None:
    """Seconds until there is something to do; None where that is not known."""
    _state["sleeps"] = True  # set first, so that a block that comes back after the check wakes it
    if any(block.looks < 2 for block in list(_kept)):
        _state["sleeps"] = False
        return _REST
    if _RESULTS in users:
        return max(_state["asked"] + _IDLE - time.monotonic(), 0.0)
    return None


def _disturb() -> None:
    """Wake the thread of `_look_after` if it sleeps."""
    if _state["sleeps"]:
        _state["sleeps"] = False
        _wake.put(None)


def _rest() -> None:
    """Let the system reclaim blocks that were unused for two rounds."""
    for block in list(_kept):
        if block.looks == 0:
            block.looks = 1
        elif block.looks == 1:
            with contextlib.suppress(ValueError):  # another thread has it
                _kept.remove(block)  # no other thread may take it meanwhile
                block.rest()
                block.looks = 2
                _kept.insert(0, block)
    if not users:
        clear()


def _after_fork() -> None:
    """Reset the state in a forked child, which does not have the thread."""
    global _wake
    _wake = queue.SimpleQueue()
    _state.update(thread=None, sleeps=False)
    users.clear()


os.register_at_fork(after_in_child=_after_fork)


def _taken(nbytes: int) -> _Block | None:
    """Take the smallest block that fits and is not much larger; of equal ones the last used."""
    fits = [block for block in _kept[::-1] if nbytes <= block.nbytes <= _SPARE * nbytes]
    for block in sorted(fits, key=lambda block: block.nbytes):
        with contextlib.suppress(ValueError):  # another thread has it
            _kept.remove(block)
            return block
    return None


def _shrink(most: float) -> None:
    """Free the least recently used blocks, until at most ``most`` bytes are kept."""
    with contextlib.suppress(IndexError):  # another thread does so
        while sum(block.nbytes for block in list(_kept)) > most:
            _kept.pop(0)


def _most() -> float:
    """Bytes that are kept at most: the system can reclaim pages, but not addresses."""
    limits = (resource.getrlimit(which)[0] for which in _LIMITS)
    return _SHARE * min(_physical(), *(each for each in limits if each >= 0), math.inf)


@functools.cache
def _physical() -> float:
    """Bytes of the machine's memory."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):  # not on Unix
        return 0.0


def open_(user: str = _COPIES) -> None:
    """Keep memory from now on, for ``user``: large copies, or large results."""
    if user in users or not _most():
        return
    with _lock:
        users.add(user)
        if _state["thread"] is not None:
            _disturb()
            return
        _state["thread"] = thread = threading.Thread(
            target=_look_after, name="hetero-results", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:  # the interpreter is ending, or there are too many
            _state["thread"] = None
            close(user)


def close(user: str = _COPIES) -> None:
    """End keeping for ``user``; free what is kept if there is no other user."""
    users.discard(user)
    if not users:
        clear()
        _wake.put(None)


def clear() -> None:
    """Free what is kept."""
    del _kept[:]


def sizes() -> dict[str, int]:
    """Purpose -> bytes that are kept."""
    nbytes = sum(block.nbytes for block in list(_kept))
    return {PURPOSE: nbytes} if nbytes else {}
