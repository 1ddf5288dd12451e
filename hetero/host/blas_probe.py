"""Finds where OpenBLAS keeps how long its idle threads spin: in a process of its own.

    python blas_probe.py LIBRARY

prints how many bytes from the library's beginning in memory the number lies, or nothing. It is a
variable of no name, and the same distance away in every process. OpenBLAS sets it from its
environment when it starts its threads: they are ended and started with three numbers, and the one
place that takes all of them is it.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

VARIABLE = "OPENBLAS_THREAD_TIMEOUT"
WORD = 4  # bytes of the number
_CALLS = ("openblas_read_env", "blas_thread_shutdown_", "blas_thread_init")
_TRIED = (29, 27, 23)  # powers of two


def main(path: str) -> None:
    """Print where the number lies in the library of that path, if one place alone can be it."""
    os.environ["OPENBLAS_NUM_THREADS"] = "2"  # it sets nothing where there is one
    library = ctypes.PyDLL(path)
    read_environment, end, start = (getattr(library, name) for name in _CALLS)
    places: set[int] | None = None
    for exponent in _TRIED:
        os.environ[VARIABLE] = str(exponent)
        read_environment()
        end()
        start()
        candidates = set(_places(path, 1 << exponent))
        places = candidates if places is None else places & candidates
    if places is not None and len(places) == 1:
        print(places.pop())


def _places(path: str, value: int) -> Iterator[int]:
    """Where a number stands among a library's variables, in bytes from its beginning."""
    pattern = value.to_bytes(WORD, sys.byteorder)
    parts = mapped(path)
    for begin, end, is_writable in parts:
        if not is_writable:
            continue
        content = ctypes.string_at(begin, end - begin)
        at = content.find(pattern)
        while at >= 0:
            if at % WORD == 0:
                yield begin + at - parts[0][0]
            at = content.find(pattern, at + 1)


def mapped(path: str) -> list[tuple[int, int, bool]]:
    """The parts of a file in this process's memory: from, to, whether it may be written."""
    parts = []
    with open("/proc/self/maps", encoding="utf-8", errors="surrogateescape") as maps:
        for line in maps:
            addresses, rights, _, _, _, *name = line.rstrip("\n").split(maxsplit=5)
            if name and name[0] == path:
                begin, end = (int(address, 16) for address in addresses.split("-"))
                parts.append((begin, end, "w" in rights))
    return parts


if __name__ == "__main__":
    main(sys.argv[1])
