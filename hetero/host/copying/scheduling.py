"""How threads of ours that copy share busy cores with the program: who goes first, who comes soon.

Linux has it for each thread. A nice thread gets a small share of a busy core. By itself the system
gives it that in time slices of 3 ms, which are then 30 ms and more apart; with slices of 0.1 ms it
comes soon, and as often as its share allows (Linux 6.12).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import threading

__all__ = ["be_nice", "be_punctual"]

_NICE = 15  # steps of nice(2): a thirtieth of the time of a usual thread
_SLICE = 100_000  # nanoseconds, the least that the system takes
_SLACK = 1_000  # nanoseconds that the system may let a thread oversleep; usually 50 000
_SET_TIMER_SLACK = 29  # prctl's PR_SET_TIMERSLACK
_CALLS = {"x86_64": 314, "aarch64": 274}  # numbers of sched_setattr


class _Attributes(ctypes.Structure):
    """sched_attr, its first version; 0 is SCHED_OTHER."""

    _fields_ = [
        *((name, ctypes.c_uint32) for name in ("size", "policy")),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        *((name, ctypes.c_uint64) for name in ("runtime", "deadline", "period")),
    ]


def be_nice(steps: int = _NICE) -> None:
    """Let the program's own threads go first on busy cores, with short slices of what is left."""
    with contextlib.suppress(OSError):
        own = os.getpriority(os.PRIO_PROCESS, os.getpid())  # of the thread that began it all
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), min(own + steps, 19))
    _take_short_slices()


def be_punctual() -> None:
    """Wake up in time from short sleeps, with the program's priority."""
    ctypes.CDLL(None).prctl(_SET_TIMER_SLACK, ctypes.c_ulong(_SLACK), 0, 0, 0)


def _take_short_slices() -> None:
    """Ask for them, if this thread has the usual policy; an older kernel takes no notice."""
    number = _CALLS.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    nice = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    asked = _Attributes(ctypes.sizeof(_Attributes), os.SCHED_OTHER, 0, nice, 0, _SLICE)
    ctypes.CDLL(None).syscall(ctypes.c_long(number), 0, ctypes.byref(asked), 0)
