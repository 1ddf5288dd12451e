"""How long the system lets a thread run before others get its core: the thread's slice.

Linux from 6.12 on takes a slice for each thread, and asks for no right: a thread that wakes gets
the core of one with a longer slice at once, where it has had no more than its share. The shares
stay what they are. Other systems, older kernels, and sandboxes that refuse the call give threads no
slices: `get` is None there.
"""

from __future__ import annotations

import ctypes
import functools
import platform
import sys

__all__ = ["get", "put", "usual"]

_CALLS = {"x86_64": (314, 315), "aarch64": (274, 275)}  # sched_setattr, sched_getattr
_SHARED = (0, 3)  # SCHED_OTHER, SCHED_BATCH: what shares a core, and has a slice


class _Attributes(ctypes.Structure):
    """``struct sched_attr``, its first version."""

    _fields_ = [
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),  # the slice, of a thread that shares its core
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    ]


def get(thread: int = 0) -> int | None:
    """The slice of a thread in nanoseconds, None where there is none.

    Parameters
    ----------
    thread : int
        Its identity by the system; 0 is the calling one.
    """
    found = _read(thread)
    return (found.runtime or None) if found is not None and found.policy in _SHARED else None


def put(nanoseconds: int, thread: int = 0) -> bool:
    """Give a thread a slice of 0.1 ms or more; 0: the usual one. Whether it has it now."""
    before = _read(thread)
    if before is None or before.policy not in _SHARED or not before.runtime:
        return False
    before.runtime = nanoseconds
    if _call(0, thread, ctypes.byref(before), 0):
        return False
    now = get(thread)
    return now is not None and nanoseconds in (now, 0)


def usual() -> int | None:
    """The slice that the calling thread has where nobody gave it one; its own stays."""
    own = get()
    if own is None or not put(0):
        return None
    found = get()
    if own != found:
        put(own)
    return found


def _read(thread: int) -> _Attributes | None:
    found = _Attributes()
    size = ctypes.sizeof(found)
    return None if _call(1, thread, ctypes.byref(found), size, 0) else found


@functools.cache
def _library() -> ctypes.PyDLL:
    return ctypes.PyDLL(None)


def _call(which: int, *arguments: object) -> int:
    """One of the system's two calls; 0 where it did what it was to do."""
    numbers = _CALLS.get(platform.machine())
    if sys.platform != "linux" or numbers is None or ctypes.sizeof(ctypes.c_void_p) != 8:
        return -1
    return int(_library().syscall(numbers[which], *arguments))
