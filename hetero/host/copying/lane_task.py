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

# A task, in 64-bit words: whether helpers may join; how many there are; chunks that were taken, and
# that may be; of each buffer, the chunks that were copied. The rest stays as it is. First addresses
# of C functions; send(to, from, bytes, stream), as drivers do. Row and pitch: bytes of a row, and
# from one to the next on the host. Lead: bytes that the first slice lacks, so that others begin
# where pages do. Base: of the buffers, one after the other. Cancel: address of a word, not 0 when
# nobody wants the copy any longer. Team: address of `SHARED`. Past: bytes of a row from which on
# what is stored goes past the caches. Download: 0 or 1. Rest: microseconds that the one who leads
# sleeps where there is nothing to send, 0: it copies chunks and looks again; patience: how often it
# does so while nobody takes a chunk, before it copies until somebody does. Most: who help, at most.
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

# What the tasks of a process share, and then the tasks: whether helpers are to end, how many sleep,
# how often they look before they do, C functions, how many there are, a semaphore, how many tasks
# are open.
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
TASKS = 16
TASKS_AT = 5 * _LINE
BLOCK = TASKS_AT + TASKS * TASK
