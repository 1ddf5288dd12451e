"""Reuse of the memory of large results, which avoids page faults.

The first write to each page of a new array is a fault, in which the system allocates and clears it.
That takes longer than to download the values, or to compute them if that is cheap. So the memory of
the last large arrays made here is kept when the array and all its views are gone, for the next one
of about that size, until `clear`. Very large blocks the system may reclaim (``MADV_FREE``); not
others, since that call interrupts every processor that runs a thread of this process.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import resource
import sys
from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

PURPOSE = "for results, used before"
_LEAST = 4 << 20  # bytes; malloc keeps what is smaller by itself
_MALLOC = (32 << 20) - mmap.PAGESIZE  # bytes that malloc keeps, if a program asks for them again
_VERY_LARGE = 1 << 30  # bytes of a block that the system may reclaim
_BLOCKS, _SHARE = 8, 1 / 16  # that are kept at most; of the memory that the process may have
_SPARE = 1.25  # times what is asked for, at most
_PAGE = 2 << 20  # bytes of a huge page
_MACHINE = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
_LIMITS = resource.RLIMIT_AS, resource.RLIMIT_DATA  # of address space and data segment

_kept: list[mmap.mmap] = []  # in order of use; each change is one atomic operation


class Lent:
    """The base object of an array and its views; keeps the block when all of them are gone."""

    def __init__(self, block: mmap.mmap, shape: tuple[int, ...], dtype: np.dtype) -> None:
        self._block = block
        begin = np.frombuffer(block, np.uint8).__array_interface__["data"][0]
        found = {"shape": shape, "typestr": dtype.str, "version": 3}
        self.__array_interface__ = found | {"data": (-(-begin // _PAGE) * _PAGE, False)}

    def __del__(self, is_ending: Callable[[], bool] = sys.is_finalizing) -> None:
        # Any thread may be here, between any two steps of another: no lock is taken. At the
        # interpreter's end the names of this file may be gone.
        if is_ending():
            return
        if len(self._block) >= _VERY_LARGE:
            _advise(self._block, "MADV_FREE")
        _kept.append(self._block)
        limits = [resource.getrlimit(which)[0] for which in _LIMITS]
        most = _SHARE * min([_MACHINE, *(each for each in limits if each >= 0)])
        with contextlib.suppress(IndexError):  # another thread frees them
            while len(_kept) > _BLOCKS or sum(sizes().values()) > most:
                _kept.pop(0)


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As ``np.empty``, but that a large array has memory of a block (``owndata`` is False)."""
    dtype = np.dtype(dtype)
    nbytes = prod(shape) * dtype.itemsize
    if nbytes < _LEAST or dtype.hasobject or dtype.fields is not None:
        return np.empty(shape, dtype)
    nbytes += _PAGE - nbytes % -_PAGE  # the array begins where a huge page does
    for block in _kept[::-1]:
        if nbytes <= len(block) <= _SPARE * nbytes:
            with contextlib.suppress(ValueError):  # another thread has it
                _kept.remove(block)
                break
    else:
        try:
            block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError):  # free what is kept; if that does not suffice NumPy raises
            clear()
            return np.empty(shape, dtype)
        _advise(block, "MADV_HUGEPAGE")
    return np.asarray(Lent(block, tuple(map(int, shape)), dtype))


def _advise(block: mmap.mmap, name: str) -> None:
    with contextlib.suppress(AttributeError, OSError):  # a system without it
        block.madvise(getattr(mmap, name))


def maker(nbytes: int) -> Callable[..., np.ndarray]:
    """The allocator of results of this size that the CPU computes: ``np.empty``, or `empty`."""
    return np.empty if nbytes <= _MALLOC else empty


@functools.cache
def kept_by_malloc() -> None:
    """Have malloc keep what is freed, for arrays that each call makes and frees: it keeps twice the
    largest block that was freed, at first less than most of them take."""
    with contextlib.suppress(MemoryError):
        np.empty(_MALLOC - mmap.PAGESIZE, np.uint8)


def clear() -> None:
    """Free what is kept."""
    del _kept[:]


os.register_at_fork(after_in_child=clear)  # a child would copy each page that it writes to


def sizes() -> dict[str, int]:
    """Purpose -> bytes that are kept."""
    nbytes = sum(len(block) for block in list(_kept))
    return {PURPOSE: nbytes} if nbytes else {}
