"""Which BLAS this process has, whose copy each is, who may be in it, and one thread of each."""

from __future__ import annotations

import functools
import os
import sys
import threading
from typing import Any

from hetero import locks
from hetero.imports import load

__all__ = ["libraries", "one_thread", "others", "owner"]

OWN = "hetero-"  # how the names of our threads begin; they never call BLAS


def libraries() -> list[dict[str, Any]]:
    """Every BLAS of this process, as threadpoolctl describes it."""
    threadpoolctl = load("threadpoolctl")

    return [x for x in threadpoolctl.threadpool_info() if x["user_api"] == "blas"]


@functools.cache
def owner(path: str) -> str:
    """Whose copy a library is: "numpy", "scipy", or its file's name."""
    folder, name = os.path.split(path)
    package, dot, _ = os.path.basename(folder).partition(".libs")
    return package if dot else name


def others() -> list[str]:
    """Other threads that run Python, by name; our own that never call BLAS are none."""
    running, here = sys._current_frames(), threading.get_ident()
    running.pop(here, None)
    beside = []
    for thread in threading.enumerate():
        ident, name = thread.ident, thread.name
        running.pop(ident, None)  # type: ignore[arg-type]
        if ident != here and not name.startswith(OWN):
            beside.append(name or "without a name")
    return beside + ["without a name"] * len(running)  # that Python did not start


class _OneThread:
    """A context manager in which every BLAS has one thread: that of a loop whose threads call it.

    BLAS has one number of threads for the process. It is put back when the last one leaves: it may
    be entered several times, and by several threads.
    """

    def __init__(self) -> None:
        self._lock = locks.new()
        self.forget()

    def forget(self) -> None:
        """As in a new process."""
        self._inside = 0
        self._limit: Any = None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._limit = _controller().limit(limits=1, user_api="blas")
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            if not self._inside:  # entered before a fork
                return
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


one_thread = _OneThread()


@functools.cache
def _controller() -> Any:
    load("scipy.linalg.cython_blas")  # loads SciPy's BLAS, which compiled loops call
    ThreadpoolController = load("threadpoolctl").ThreadpoolController
    return ThreadpoolController()


# The child has the forking thread alone; whoever else was inside is not there. BLAS keeps one
# thread then: to ask it for more in a hook could wait for a lock that nobody opens.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=one_thread.forget)
