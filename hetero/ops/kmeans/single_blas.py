"""Products inside of loops that are shared among threads: one thread of BLAS for each.

The loops' products are SciPy's BLAS's. It has one number of threads for the process, which is
lowered while such loops run, and put back when the last of them is done.
"""

from __future__ import annotations

import functools
import os
from types import TracebackType
from typing import Any

from hetero import locks
from hetero.imports import load

__all__ = ["alone"]


class _Alone:
    """A context manager that may be entered several times, and by several threads."""

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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._lock:
            if not self._inside:  # entered before a fork
                return
            self._inside -= 1
            if not self._inside:
                self._limit.restore_original_limits()


alone = _Alone()


@functools.cache
def _controller() -> Any:
    load("scipy.linalg.cython_blas")  # loads SciPy's BLAS
    ThreadpoolController = load("threadpoolctl").ThreadpoolController
    return ThreadpoolController()


# The child has the forking thread alone; whoever else was inside is not there. BLAS keeps one
# thread then: to ask it for more in a hook could wait for a lock that nobody opens.
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=alone.forget)
