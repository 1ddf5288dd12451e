"""Python threads, where NumPy and SciPy let go of the GIL to work on parts of arrays."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable
from contextvars import copy_context
from typing import Any

from hetero.devices import cpu
from hetero.imports import load

_SHARE = 1 << 17  # points of a transform for each thread; with fewer, waking it costs more


def threads_for(points: int, cores: int | None = None) -> int:
    """How many threads transforms of so many points are worth, on so many cores or on these."""
    return max(min(cores or cpu.describe()["cores"], points // _SHARE), 1)


def parts(extent: int, most: int, threads: int) -> list[slice]:
    """An extent cut into about equal parts of at most ``most``, as many for each thread."""
    number = -(-extent // max(most, 1))
    number = min(-(-number // threads) * threads, max(extent, 1))
    return [slice(extent * i // number, extent * (i + 1) // number) for i in range(number)]


def each(work: Callable[[Any], None], items: Iterable[Any], threads: int) -> None:
    """``work(item)`` for all items, on so many threads in the caller's context."""
    items = list(items)
    if threads < 2 or len(items) < 2:
        for item in items:
            work(item)
        return
    pending = iter(items)

    def some() -> None:
        for item in pending:  # advancing a list's iterator is atomic
            work(item)

    others = []
    try:
        for _ in range(min(threads, len(items)) - 1):
            others.append(_pool().submit(copy_context().run, some))
    except RuntimeError:  # the interpreter is shutting down: this thread does all
        pass
    try:
        some()  # the calling thread works too: one less to wake, and to find a core for
    finally:
        errors = [other.exception() for other in others]  # waits for each
    for error in errors:
        if error is not None:
            raise error


@functools.cache
def _pool() -> Any:
    # RuntimeError once the main thread has ended.
    ThreadPoolExecutor = load("concurrent.futures").ThreadPoolExecutor
    return ThreadPoolExecutor(cpu.describe()["cores"], "hetero-filter")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.cache_clear)
