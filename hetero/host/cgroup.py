"""What the system allows this process: cores, code, and memory by control groups (1 and 2).

A container is a control group. Groups are nested, and each of those around the process may have a
limit. The kernel counts the page cache of files as used memory, and takes it back when a program
needs the room; so what is in the page cache counts as available here.

References
----------
The Linux kernel's documentation, admin-guide/cgroup-v2.rst and admin-guide/cgroup-v1/memory.rst.
"""

from __future__ import annotations

import ctypes
import functools
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

NO_CODE = "this process may not make memory executable"
_MOUNTED = Path("/sys/fs/cgroup")  # where every common distribution and container runtime has them


class _Version(NamedTuple):
    """File names of one version of control groups."""

    limit: str
    used: str
    page_cache: tuple[str, ...]  # entries of memory.stat


_V2 = _Version("memory.max", "memory.current", ("inactive_file", "active_file"))
_V1 = _Version(
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)


def cores() -> int:
    """How many of the CPU's cores this process may use: all where the system does not say."""
    try:
        return len(os.sched_getaffinity(0))
    except OSError:  # a sandbox denies it
        return os.cpu_count() or 1


@functools.cache
def makes_code() -> bool:
    """Whether this process may make memory executable, as what compiles for the CPU has to."""
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    place = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(page)))
    access = ctypes.c_size_t(mmap.PAGESIZE), mmap.PROT_READ | mmap.PROT_EXEC
    return ctypes.CDLL(None).mprotect(place, *access) == 0


def available_memory() -> int | None:
    """Bytes that this process may still take within its control groups; None without a limit."""
    remaining = [_left(folder, version) for folder, version in _groups()]
    return min((left for left in remaining if left is not None), default=None)


def _groups() -> Iterator[tuple[Path, _Version]]:
    """The folder of each group that the process is in, innermost first."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:  # not on Linux
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            top, version = _MOUNTED, _V2
        elif "memory" in controllers.split(","):
            top, version = _MOUNTED / "memory", _V1
        else:
            continue
        # A container may see its own group mounted at the top, under a path of the host.
        group = Path(path.lstrip("/"))
        if ".." not in group.parts:
            yield from ((top / part, version) for part in (group, *group.parents) if part.parts)
        yield top, version


def _left(folder: Path, version: _Version) -> int | None:
    """Bytes below a group's limit; None where it has no limit, or its files are not there."""
    try:
        limit = int((folder / version.limit).read_text())
        used = int((folder / version.used).read_text())
    except (OSError, ValueError):  # version 2 writes "max" where there is no limit
        return None
    return max(limit - max(used - _reclaimable(folder, version), 0), 0)


def _reclaimable(folder: Path, version: _Version) -> int:
    """Bytes of a group's page cache; 0 where the kernel does not say."""
    try:
        rows = (line.split() for line in (folder / "memory.stat").read_text().splitlines())
        return sum(int(count) for name, count in rows if name in version.page_cache)
    except (OSError, ValueError):
        return 0
