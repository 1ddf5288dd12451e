"""Finds the variable of OpenBLAS that holds how long its idle threads spin.

    python blas_probe.py LIBRARY

runs in a process of its own, and prints the variable's offset from the library's base address, or
nothing. The variable has no symbol; its offset is the same in every process. OpenBLAS sets it from
the environment when it starts its threads: they are restarted with three different values, and the
one word that takes all three is the variable.
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
    """Print the offset of the variable in the library of that path, if only one is possible."""
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
    """Offsets at which a value stands among a library's variables."""
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
    """The mappings of a file in this process: begin, end, whether it may be written."""
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
