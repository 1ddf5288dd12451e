"""Memory that threads share which copy together, see `lane`: where what lies, in 64-bit words."""

from __future__ import annotations

__all__ = [
    *("BLOCK", "BUFFERS", "CANCELLED", "DONE", "FIELDS", "LIMIT", "LOOPS", "NEXT", "OPEN"),
    *("SHARED", "TASK", "TASKS", "TASKS_AT", "USERS"),
]

LOOPS = ("upload", "download", "serve")
BUFFERS = 16  # of a task, at most
CANCELLED = -1  # what a loop returns
_LINE = 8  # words of a cache line; what several threads write lies in lines of its own

# A task and what the tasks of a process share, as the structures of lane.c, which says what each
# field is.
OPEN, USERS, NEXT, LIMIT, DONE = (_LINE * line for line in range(5))
_FIRST = DONE + BUFFERS
_NAMES = (
    *("memcpy", "send", "record", "query", "await", "drain", "yield", "post", "nap"),
    *("host", "device", "bytes", "lead", "slice", "chunk", "stream", "row", "pitch"),
    *("base", "buffers", "cancel", "team", "past", "download"),
    *("rest", "patience", "most"),
    *(f"event {number}" for number in range(BUFFERS)),
)
FIELDS = {name: _FIRST + at for at, name in enumerate(_NAMES)}
TASK = -(-(_FIRST + len(_NAMES)) // _LINE) * _LINE

SHARED = {
    "stop": 0,
    "asleep": _LINE,
    "looks": 2 * _LINE,
    "sleep": 2 * _LINE + 1,
    "yield": 2 * _LINE + 2,
    "threads": 2 * _LINE + 3,
    "semaphore": 3 * _LINE,
    "open": 4 * _LINE,
}
TASKS = 16  # copies that may be open at once
TASKS_AT = 5 * _LINE
BLOCK = TASKS_AT + TASKS * TASK
