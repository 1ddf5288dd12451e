"""Tables of plans and calls, all emptied at once when something changes that these depend on.

That is the machine's profile; the devices, where some come, break or are disabled, or the process
is forked; and the CPU's loops, where some were compiled. Descriptions of devices are made anew too.
"""

from __future__ import annotations

from typing import Any

from hetero import locks

_MOST = 4096  # entries of a table


_tables: list[dict[Any, Any]] = []
_generation = 0


def forget() -> None:
    """Empty all tables."""
    global _generation
    with _lock:
        _generation += 1
        for table in _tables:
            table.clear()


_lock = locks.new(forget)


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
