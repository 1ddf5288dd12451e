"""Tables of plans and calls, all emptied at once when something changes that these depend on.

That is the machine's profile; the devices, where some come, break or are disabled, or the process
is forked; and the CPU's loops, where some were compiled. Descriptions of devices are made anew too.
"""

from __future__ import annotations

from typing import Any

from hetero import locks

_MOST = 4096  # entries of a table


class _Tables:
    """All tables, and how many times they were emptied."""

    def __init__(self) -> None:
        self.lock = locks.new(self.forget)
        self.tables: list[dict[Any, Any]] = []
        self.generation = 0

    def forget(self) -> None:
        with self.lock:
            self.generation += 1
            for table in self.tables:
                table.clear()


_all = _Tables()
forget = _all.forget


def new_table() -> dict[Any, Any]:
    """A dict that is emptied whenever plans become out of date; `remember` fills it."""
    table: dict[Any, Any] = {}
    _all.tables.append(table)
    return table


def generation() -> int:
    """Number of the current generation of plans; take it before planning, give it to `remember`."""
    return _all.generation


def remember(table: dict[Any, Any], key: Any, value: Any, generation: int) -> None:
    """Put an entry into a table, unless plans were forgotten since ``generation``."""
    with _all.lock:
        if generation != _all.generation:
            return
        if len(table) >= _MOST:
            table.clear()
        table[key] = value
