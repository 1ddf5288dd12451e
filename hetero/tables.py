"""Tables of plans and calls, all emptied at once when something changes that these depend on.

That is the machine's profile; the devices, where some come, break or are disabled, or the process
is forked; and the CPU's loops, where some were compiled. Descriptions of devices are made anew too.

`bound` is the call cache, which makes the second call of a shape cost a look-up. One dict for all
operations but `kmeans`, of which each call is planned: the facts of a call -> the function that
runs it. The facts begin with the operation; they are all that a plan depends on: shapes,
strides, dtypes and locations of the arrays, the other arguments, and what `use` blocks set
(`forced`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

from hetero import locks

_MOST = 4096  # entries of a table
_tables: list[dict[Any, Any]] = []
_lock, _generation = locks.new(), 0


def forget() -> None:
    """Empty all tables."""
    global _generation
    with _lock:
        _generation += 1
        for table in _tables:
            table.clear()


def new_table() -> dict[Any, Any]:
    """A dict that is emptied whenever plans become out of date; `remember` fills it."""
    table: dict[Any, Any] = {}
    _tables.append(table)
    return table


def generation() -> int:
    """Number of the current generation of plans; take it before planning, give it to `remember`."""
    return _generation


def remember(table: dict[Any, Any], key: Any, value: Any, generation: int) -> None:
    """Put an entry into a table, unless plans were forgotten since ``generation``."""
    with _lock:
        if generation != _generation:
            return
        if len(table) >= _MOST:
            table.clear()
        table[key] = value


# -- The settings of the enclosing `use` blocks ----------------------------------------------------


class Settings(NamedTuple):
    """The settings of the enclosing `use` blocks; fields that none of them sets are None.

    Attributes
    ----------
    device, method : str or None
    results : {"host", "device"} or None
        Where results of operands on the host stay; see `hetero.use`.
    memory_limit : int or None
        Bytes of a device's memory that a call may take.
    watch : bool or None
        Whether arrays that are used again are watched; see `hetero.arrays.kept`.
    """

    device: str | None = None
    method: str | None = None
    results: str | None = None
    memory_limit: int | None = None
    watch: bool | None = None


# Remembered calls hold outside of `use` blocks only.
forced: ContextVar[Settings | None] = ContextVar("hetero_forced", default=None)


@contextmanager
def setting(variable: ContextVar[Any], value: Any) -> Iterator[None]:
    """Inside the block, in this thread or task, a variable has a value."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def placement(device: str | None, method: str | None) -> tuple[str | None, str | None]:
    """What a call's ``device=`` and ``method=`` mean inside the enclosing `use` blocks."""
    outer = forced.get()
    if outer is None:
        return device, method
    return device or outer.device, method or outer.method


# -- The call cache --------------------------------------------------------------------------------

MISS = object()  # what a remembered call gives that has to go the general way
bound: dict[Any, Any] = new_table()
find = bound.get
_forced = forced.get


def bind(key: Any, make: Callable[[], Any]) -> Any:
    """What runs a call, as `bound` has it: that of its facts, or what ``make()`` gives.

    ``key`` is the operation, the facts and the placement; where it is None nothing is remembered.
    """
    if key is None:
        return make()
    outer = _forced()
    if outer is not None and not (outer.results is outer.memory_limit is None):
        key = outer.results, outer.memory_limit, key
    run = find(key)
    if run is None:
        now = generation()
        run = make()
        remember(bound, key, run, now)
    return run
