"""Reuse of the memory of large results, which avoids page faults.

The first write to each page of a new array is a fault, in which the system allocates and clears it:
that takes longer than to download the values. So the memory of the last large arrays is kept when
the array and all its views are gone, for the next one of about that size.
"""

from __future__ import annotations

import contextlib
import functools
import mmap
import os
import resource
import weakref
from math import prod
from typing import Any

import numpy as np

PURPOSE = "for results, used before"
LEAST = 4 << 20  # bytes; malloc keeps what is smaller by itself
_MALLOC = (32 << 20) - mmap.PAGESIZE  # bytes that malloc keeps, if a program asks for them again
_BLOCKS, _SHARE = 8, 1 / 16  # that are kept at most; of the memory that the process may have
_SPARE = 1.25  # times what is asked for, at most
_PAGE = 2 << 20  # bytes of a huge page
_MACHINE = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE
_LIMITS = resource.RLIMIT_AS, resource.RLIMIT_DATA  # of address space and data segment
_kept: list[mmap.mmap] = []  # in order of use; each change is one atomic operation


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As ``np.empty``, but that a large array has memory of a block (``owndata`` is False)."""
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    if size < LEAST or dtype.hasobject or dtype.fields is not None:
        return np.empty(shape, dtype)
    nbytes = size + _PAGE - size % -_PAGE  # the array begins where a huge page does
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
        with contextlib.suppress(AttributeError, OSError):  # a system without them
            block.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(block, np.uint8)  # dies with the last of its views
    weakref.finalize(whole, _keep, block).atexit = False
    begin = -whole.__array_interface__["data"][0] % _PAGE
    return whole[begin : begin + size].view(dtype).reshape(shape)


def _keep(block: mmap.mmap) -> None:
    """Keep what nobody uses any longer; any thread may be here at any time, so there is no lock."""
    _kept.append(block)
    limits = [resource.getrlimit(which)[0] for which in _LIMITS]
    most = _SHARE * min([_MACHINE, *(each for each in limits if each >= 0)])
    with contextlib.suppress(IndexError):  # another thread frees them
        while len(_kept) > _BLOCKS or sum(sizes().values()) > most:
            _kept.pop(0)


@functools.cache
def kept_by_malloc() -> None:
    """Have malloc keep what is freed: it keeps twice the largest block that was freed."""
    with contextlib.suppress(MemoryError):
        np.empty(_MALLOC - mmap.PAGESIZE, np.uint8)


def clear() -> None:
    """Free what is kept."""
    del _kept[:]


os.register_at_fork(after_in_child=clear)  # a child would copy each page that it writes to


def sizes() -> dict[str, int]:
    """Purpose -> bytes that are kept."""
    return {PURPOSE: sum(map(len, kept))} if (kept := list(_kept)) else {}
