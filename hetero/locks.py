"""Locks that outlive a fork and a signal.

A thread that holds a lock does not exist in a forked child: an ordinary lock stays taken there for
ever. And a signal handler runs in the middle of whatever its thread does, which may be holding the
lock that the handler needs.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_all: weakref.WeakSet[Any] = weakref.WeakSet()


def new() -> Any:
    """A reentrant lock (`threading.RLock`) that is free in a forked child.

    The state that it guards must be consistent at every step for the thread that holds it, since a
    signal handler or a KeyboardInterrupt can come in between.
    """
    lock = threading.RLock()
    _all.add(lock)
    return lock


def condition() -> Any:
    """A condition with a lock of `new`."""
    return threading.Condition(new())


def _after_fork() -> None:
    for lock in list(_all):
        if lock.acquire(blocking=False):  # free, or held by the thread that forked
            lock.release()
        else:
            lock._at_fork_reinit()  # as the standard library does with its own


# Hooks run in the order of registration: a module with a hook that needs a lock imports this first.
os.register_at_fork(after_in_child=_after_fork)
