"""The CPU, and what the system allows this process of it: cores, code, and memory.

A container is a control group. Groups are nested, and each of those around the process may have a
limit: the Linux kernel's documentation, admin-guide/cgroup-v2.rst.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import mmap
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetero import locks
from hetero.imports import load

NO_CODE = "this process may not make memory executable"
_GROUPS = Path("/sys/fs/cgroup")  # where every common distribution and container runtime has them


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
    found = load("threadpoolctl").threadpool_info()
    pools = [p for p in found if p["user_api"] == "blas"]
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
    """Bytes that can be had now: of the machine, and of the control groups that the process is in.
    The page cache counts as available: the kernel takes it back when a program needs the room."""
    free = _numbers(Path("/proc/meminfo")).get("MemAvailable:")
    found = [int(describe()["memory_bytes"]) if free is None else free * 1024]
    # A container may see its own group mounted at the top, under a path of the host.
    groups = [Path(".")]
    with contextlib.suppress(OSError):  # not on Linux
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            group = Path(line[3:].lstrip("/"))
            if line.startswith("0::") and ".." not in group.parts:
                groups += [group, *group.parents]
    for folder in [_GROUPS / group for group in groups]:
        with contextlib.suppress(OSError, ValueError):  # "max" where there is no limit
            limit = int((folder / "memory.max").read_text())
            used = int((folder / "memory.current").read_text())
            kept = _numbers(folder / "memory.stat")
            used -= kept.get("inactive_file", 0) + kept.get("active_file", 0)
            found.append(max(limit - max(used, 0), 0))
    return min(found)


def _numbers(file: Path) -> dict[str, int]:
    """Name -> number of each line; empty where the system has no such file."""
    with contextlib.suppress(OSError):
        rows = [line.split() for line in file.read_text().splitlines()]
        return {row[0]: int(row[1]) for row in rows}
    return {}


def model() -> str:
    """The name of the processor."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    platform = load("platform")
    return platform.processor() or platform.machine()


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


# -- One thread of each BLAS of this process, by threadpoolctl -------------------------------------

_lock = locks.new()
_single: dict[str, Any] = {"inside": 0, "limit": None}  # how many are in `one_thread`


@contextlib.contextmanager
def one_thread() -> Iterator[None]:
    """A context in which every BLAS has one thread, for loops that call it from threads of theirs.

    BLAS has one number of threads for the process. It is put back when the last one leaves: the
    context may be entered several times, and by several threads.
    """
    with _lock:
        if not _single["inside"]:
            loops = "numba" in sys.modules
            _let_any_thread_set()
            _single["limit"] = _controller(loops).limit(limits=1, user_api="blas")
        _single["inside"] += 1
    try:
        yield
    finally:
        with _lock:
            if _single["inside"]:  # 0 where it was entered before a fork
                _single["inside"] -= 1
                if not _single["inside"]:
                    _let_any_thread_set()
                    _single["limit"].restore_original_limits()
                    _let_any_thread_set()


def _let_any_thread_set() -> None:
    """From version 3.8 on threadpoolctl sets OpenBLAS's number of threads for the thread alone that
    did so first; the one that leaves `one_thread` last may be another."""
    of_openblas = getattr(load("threadpoolctl"), "OpenBLASController", None)
    clear = getattr(of_openblas, "clear_controlling_thread", None)
    if clear is not None:
        clear(force=True)


@functools.cache
def _controller(loops: bool) -> Any:
    """Of each BLAS of this process; SciPy's is loaded for compiled loops, which call it."""
    if loops:
        load("scipy.linalg.cython_blas")  # it takes 0.1 s
    return load("threadpoolctl").ThreadpoolController()


def _in_child() -> None:
    """Whoever else was inside is not in the child. BLAS keeps one thread there: to ask it for more
    in a hook could wait for a lock that nobody opens."""
    _single.update(inside=0, limit=None)


os.register_at_fork(after_in_child=_in_child)
