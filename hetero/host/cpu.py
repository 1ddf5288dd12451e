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
import resource
import sys
import weakref
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from hetero import locks
from hetero.imports import load

NO_CODE = "this process may not make memory executable"
_MEMORY = os.sysconf("SC_PHYS_PAGES") * mmap.PAGESIZE  # bytes of the machine
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
    found = load("threadpoolctl").threadpool_info()
    pools = [p for p in found if p["user_api"] == "blas"]
    pool = next((p for p in pools if "numpy" in p["filepath"]), pools[0] if pools else {})
    count = cores()
    return {
        "kind": "cpu",
        "name": model(),
        "cores": count,
        "memory_bytes": _MEMORY,
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


# Whoever else was inside is not in the child. BLAS keeps one thread there: to ask it for more in a
# hook could wait for a lock that nobody opens.
os.register_at_fork(after_in_child=functools.partial(_single.update, inside=0, limit=None))


# -- Reuse of the memory of large results, which avoids page faults --------------------------------

# The first write to each page of a new array is a fault, in which the system allocates and clears
# it: that takes longer than to download the values. So the memory of the last large arrays is kept
# when the array and all its views are gone, for the next one of about that size.
REUSED = "for results, used before"
LEAST_REUSED = 4 << 20  # bytes; malloc keeps what is smaller by itself
_MALLOC = (32 << 20) - mmap.PAGESIZE  # bytes that malloc keeps, if a program asks for them again
_BLOCKS, _SHARE = 8, 1 / 16  # that are kept at most; of the memory that the process may have
_SPARE = 1.25  # times what is asked for, at most
_HUGE_PAGE = 2 << 20  # bytes of a huge page
_LIMITS = resource.RLIMIT_AS, resource.RLIMIT_DATA  # of address space and data segment
_reused: list[mmap.mmap] = []  # in order of use; each change is one atomic operation


def empty(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """As ``np.empty``, but that a large array has memory of a block (``owndata`` is False)."""
    dtype = np.dtype(dtype)
    size = prod(shape) * dtype.itemsize
    if size < LEAST_REUSED or dtype.hasobject or dtype.fields is not None:
        return np.empty(shape, dtype)
    nbytes = size + _HUGE_PAGE - size % -_HUGE_PAGE  # the array begins where a huge page does
    for block in _reused[::-1]:
        if nbytes <= len(block) <= _SPARE * nbytes:
            with contextlib.suppress(ValueError):  # another thread has it
                _reused.remove(block)
                break
    else:
        try:
            block = mmap.mmap(-1, nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, ValueError):  # free what is kept; if that does not suffice NumPy raises
            free_reused()
            return np.empty(shape, dtype)
        with contextlib.suppress(AttributeError, OSError):  # a system without them
            block.madvise(mmap.MADV_HUGEPAGE)
    whole = np.frombuffer(block, np.uint8)  # dies with the last of its views
    weakref.finalize(whole, _keep, block).atexit = False
    begin = -whole.__array_interface__["data"][0] % _HUGE_PAGE
    return whole[begin : begin + size].view(dtype).reshape(shape)


def _keep(block: mmap.mmap) -> None:
    """Keep what nobody uses any longer; any thread may be here at any time, so there is no lock."""
    _reused.append(block)
    limits = [resource.getrlimit(which)[0] for which in _LIMITS]
    most = _SHARE * min([_MEMORY, *(each for each in limits if each >= 0)])
    with contextlib.suppress(IndexError):  # another thread frees them
        while len(_reused) > _BLOCKS or sum(reused_sizes().values()) > most:
            _reused.pop(0)


@functools.cache
def kept_by_malloc() -> None:
    """Have malloc keep what is freed: it keeps twice the largest block that was freed."""
    with contextlib.suppress(MemoryError):
        np.empty(_MALLOC - mmap.PAGESIZE, np.uint8)


def free_reused() -> None:
    """Free what is kept."""
    del _reused[:]


os.register_at_fork(after_in_child=free_reused)  # a child would copy each page that it writes to


def reused_sizes() -> dict[str, int]:
    """Purpose -> bytes that are kept."""
    return {REUSED: sum(map(len, kept))} if (kept := list(_reused)) else {}
