"""The CPU, and what the system allows this process of it: cores, code, and memory.

A container is a control group (versions 1 and 2). Groups are nested, and each of those around the
process may have a limit. The kernel counts the page cache of files as used memory, and takes it
back when a program needs the room; so what is in the page cache counts as available here.

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
from typing import Any, NamedTuple

from hetero.imports import load


@functools.cache
def describe() -> dict[str, Any]:
    """Description of the CPU and the BLAS that NumPy calls.

    Returns
    -------
    dict
        kind, name, cores (those this process may use), memory_bytes, blas, blas_version,
        blas_threads.
    """
    load("numpy")  # whose BLAS is looked at
    threadpool_info = load("threadpoolctl").threadpool_info
    pools = [p for p in threadpool_info() if p["user_api"] == "blas"]
    pool = next((p for p in pools if "numpy" in p["filepath"]), pools[0] if pools else {})
    count = cores()
    return {
        "kind": "cpu",
        "name": model(),
        "cores": count,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "blas": pool.get("internal_api", "unknown"),
        "blas_version": pool.get("version") or "unknown",
        "blas_threads": min(pool.get("num_threads", count), count),
    }


def available_memory() -> int:
    """Bytes that can be had now: of the machine, and of the container that the process is in."""
    available = int(describe()["memory_bytes"])
    try:
        for line in Path("/proc/meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                available = int(line.split()[1]) * 1024
    except (OSError, ValueError):
        pass
    limited = _within_groups()
    return available if limited is None else min(available, limited)


def model() -> str:
    """The name of the processor."""
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    platform = load("platform")
    return platform.processor() or platform.machine()


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


def _within_groups() -> int | None:
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
