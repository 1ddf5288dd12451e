"""Whether the idle threads of NumPy's OpenBLAS spin now, by the processor time of one of them.

A thread of OpenBLAS that sleeps waits for a word among its library's variables; by that it is
known. The first one has work in each product that several share, and spins on for 0.1 s. Where its
time has gone on since the last look, they spin. A look takes half a microsecond.
"""

from __future__ import annotations

import functools
import os
import time
from typing import Any

from hetero.host.blas import libraries, owner

__all__ = ["spins"]

_STAYS = 0.01  # seconds for which they count as spinning: a loop may have taken their cores
_AGAIN = 0.2  # seconds between two searches, while they are awake, and are not found by that
_TASKS = "/proc/self/task"
_CLOCK = 6  # the number of a thread's clock is ~thread << 3 | _CLOCK
# The thread's clock and its time; when to search for it, and whether others ran at the last search.
_state: dict[str, Any] = {"clock": 0, "time": 0, "until": 0.0, "search": 0.0, "running": False}


def spins() -> bool:
    """Whether they ran since this was asked before, or a moment ago; True where it is not known."""
    clock = _state["clock"]
    if not clock:
        return _search()
    try:
        now = time.clock_gettime_ns(clock)
    except OSError:  # the thread has ended; OpenBLAS starts others after a fork
        _state.update(clock=0, search=0.0)
        return True
    moment = time.monotonic()
    if now != _state["time"]:
        _state.update(time=now, until=moment + _STAYS)
    return moment < _state["until"]


def _search() -> bool:
    """Find the thread's clock. Whether threads run meanwhile, of which it may be one."""
    path, now = _path(), time.monotonic()
    if path is None or now < _state["search"]:
        return path is not None and _state["running"]
    begin, end = _span(path)
    running = 0
    for thread in sorted(map(int, os.listdir(_TASKS))):
        try:
            with open(f"{_TASKS}/{thread}/syscall", encoding="ascii") as file:
                number, *given = file.read().split()
            running += number == "running"
            if given and begin <= int(given[0], 16) < end:
                clock = ~thread << 3 | _CLOCK
                _state.update(clock=clock, time=time.clock_gettime_ns(clock))
                return False
        except (OSError, ValueError):  # it has ended, or the system does not tell
            continue
    _state.update(search=now + _AGAIN, running=running > 0)  # the caller is in a call
    return running > 0


@functools.cache
def _path() -> str | None:
    """NumPy's OpenBLAS, None where it has no threads of its own."""
    for library in libraries():
        kind = library.get("internal_api"), library.get("threading_layer")
        if kind == ("openblas", "pthreads") and owner(library["filepath"]) == "numpy":
            return os.path.realpath(library["filepath"]) if library["num_threads"] > 1 else None
    return None


def _span(path: str) -> tuple[int, int]:
    """From where to where a library lies in memory, its variables after it, which have no name."""
    begin = end = 0
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            addresses, _, _, _, _, *name = line.rstrip("\n").split(maxsplit=5)
            here, there = (int(address, 16) for address in addresses.split("-"))
            if name == [path] or (here == end and not name):
                begin, end = begin or here, there
    return begin, end
