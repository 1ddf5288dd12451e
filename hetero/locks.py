"""Locks that outlive a fork and a signal.

A thread that holds a lock does not exist in a forked child: an ordinary lock stays taken there for
ever. And a signal handler runs in the middle of whatever its thread does, which may be holding the
lock that the handler needs.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

_all: weakref.WeakKeyDictionary[Any, Callable[[], None] | None] = weakref.WeakKeyDictionary()


def new(mend: Callable[[], None] | None = None) -> Any:
    """A reentrant lock (`threading.RLock`) that is free in a forked child.

    The state that it guards must be consistent at every step for the thread that holds it, since a
    signal handler or a KeyboardInterrupt can come in between. ``mend`` is called in a forked child
    where another thread held the lock: that thread's change is incomplete, and will not be
    finished.
    """
    lock = threading.RLock()
    _all[lock] = mend
    return lock


def condition() -> Any:
    """A condition with a lock of `new`."""
    return threading.Condition(new())


@contextlib.contextmanager
def sole(shared: Any, make: Callable[[], Any]) -> Iterator[Any]:
    """Exclusive use of an object by the calling thread; ``make()`` gives another one.

    It has attributes ``lock``, from `new`, and ``user``, None at first. A signal handler that
    interrupts its own thread's use gets another object.
    """
    with shared.lock:
        if shared.user == os.getpid():  # a forked child's copy is not in use
            yield make()
            return
        try:
            shared.user = os.getpid()
            yield shared
        finally:
            shared.user = None


def _after_fork() -> None:
    for lock, mend in list(_all.items()):
        if lock.acquire(blocking=False):  # free, or held by the thread that forked
            lock.release()
            continue
        lock._at_fork_reinit()  # as the standard library does with its own
        if mend is not None:
            mend()


# Hooks run in the order of registration: a module with a hook that needs a lock imports this first.
os.register_at_fork(after_in_child=_after_fork)
