"""The CPU's compiled loops by family: whether they are in the cache on disk, and what puts them in.

Numba takes seconds for a family of loops, and the interpreter stands still meanwhile. A family is
therefore compiled by a process of its own, which runs a few small problems. What it compiled lies
in the cache on disk for all later processes, with a list of its files, so that an
incomplete set shows. The list's name is a digest of what machine code depends on: sources, versions
and the processor.

`loop_compiler` starts such processes. Where they cannot be, or their files cannot be
kept, loops are compiled by the call that needs them.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import platform
import signal
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from hetero import paths
from hetero.host import cgroup, disk_cache
from hetero.host.compiled import sources
from hetero.imports import load

OFF = "HETERO_COMPILE_AHEAD"  # "0": loops are compiled by the call that needs them
_KIND, _CODE = "loops", "numba"  # folders of the lists, and of what they list
_LOOPS = "hetero.kernels.cpu"  # the package of the compiled loops
_DTYPES = ("float32", "float64")
_LONGEST = 900  # seconds after which a process that compiles is given up


# Names under which loops were read or written since the process began.
used: set[str] = set()


class Family(NamedTuple):
    """Loops that are compiled together, for each dtype.

    Attributes
    ----------
    name : str
        Such as "vectors".
    seconds : float
        What compiling them takes on a core, about.
    examples : str
        "module:function": ``function(dtype)`` calls all of the loops in all ways.
    """

    name: str
    seconds: float
    examples: str

    def of(self, dtype: str | np.dtype) -> str:
        """The name of its loops for a dtype, such as "vectors in float64"."""
        return _name(self.name, dtype)


@functools.cache
def _name(family: str, dtype: str | np.dtype) -> str:
    return f"{family} in {np.dtype(dtype).name}"


_families: dict[str, Family] = {}
_ready: set[str] = set()


def register(family: Family) -> Family:
    """Add a family of loops."""
    _families[family.name] = family
    return family


def every() -> list[str]:
    """The names of all loops, of each family for each dtype."""
    return [f.of(dtype) for f in _families.values() for dtype in _DTYPES]


def family_of(name: str) -> Family:
    """The family that loops belong to."""
    return _families[name.rpartition(" in ")[0]]


def seconds(name: str) -> float:
    """What compiling loops of this name takes, about, whether or not they are compiled."""
    return family_of(name).seconds


def seconds_left(name: str) -> float:
    """Seconds of compiling before loops can be used: 0 where they are compiled.

    0 also where they cannot be compiled ahead: the first call compiles them then.
    """
    return 0.0 if is_ready(name) else seconds(name)


@functools.cache
def obstacle() -> str | None:
    """What this system denies the process, so that Numba cannot be imported and no loop be run."""
    try:
        os.sched_getaffinity(0)
    except OSError:
        return "this process may not ask for its cores (sched_getaffinity)"
    return None if cgroup.makes_code() else cgroup.NO_CODE


def is_ready(name: str) -> bool:
    """Whether loops can be called without waiting for a compilation; looks at the disk."""
    if name in _ready:
        return True
    if obstacle() is None and (not can_be_made() or _on_disk(name)):
        _ready.add(name)
        return True
    return False


def can_be_made() -> bool:
    """Whether another process can compile for this one."""
    if os.environ.get(OFF) == "0" or _made_of() is None or getattr(sys, "frozen", False):
        return False
    python = os.path.basename(sys.executable or "").lower()
    if "python" not in python or obstacle():  # part of another program
        return False
    folder = folder_of_lists()
    return folder is not None and os.access(folder, os.W_OK)


def folder_of_lists() -> Path | None:
    """The folder of the lists and of their locks; None where nothing can be kept."""
    return paths.private_folder(_KIND, root=_root())


def lock_of(name: str) -> Path | None:
    """The file that a process locks which compiles loops of this name; None without a folder."""
    folder = folder_of_lists()
    return None if folder is None else folder / f"{name.replace(' ', '-')}.lock"


def compile_here(name: str, examples: str, nice: int = 0) -> None:
    """Compile loops of one name in this process, which is there for nothing else.

    Parameters
    ----------
    name, examples : str
        As `Family.of` and `Family.examples` give them.
    nice : int
        By how much to lower this process's priority.
    """
    signal.alarm(_LONGEST)
    os.nice(nice)
    lock = lock_of(name)
    with paths.locked(lock) if lock is not None else contextlib.nullcontext():
        if _on_disk(name):
            return
        os.environ[OFF] = "0"  # what is called here is compiled here
        module, _, function = examples.partition(":")
        getattr(load(module), function)(np.dtype(name.rpartition(" in ")[2]))
        content = json.dumps(sorted(used)).encode()
        disk_cache.write(_KIND, _list_of(name), content, _root())


def _on_disk(name: str) -> bool:
    content = disk_cache.read(_KIND, _list_of(name), _root())
    if content is None:
        return False
    files = json.loads(content)
    return bool(files) and disk_cache.in_use(_CODE, files, _root())


def _list_of(name: str) -> str:
    made = hashlib.sha256(f"{name}{_made_of()}".encode()).hexdigest()[:40]
    return f"{name.replace(' ', '-')}-{made}"


def _root() -> Path | None:
    """Where Numba's files lie, if the user says so."""
    named = os.environ.get("NUMBA_CACHE_DIR")
    return Path(named) / "hetero" if named else None


@functools.cache
def _made_of() -> str | None:
    """A digest of what machine code depends on but the dtype; None where sources are not there."""
    metadata = load("importlib.metadata")
    digest = hashlib.sha256(sys.implementation.cache_tag.encode())
    try:
        for package in ("hetero", "numba", "llvmlite", "numpy"):
            digest.update(f"{package} {metadata.version(package)}\n".encode())
        digest.update(sources.digest(_sources()).encode())
    except (OSError, metadata.PackageNotFoundError):  # in an archive, or not installed
        return None
    chosen = {k: v for k, v in os.environ.items() if k.startswith("NUMBA_CPU_")}
    digest.update(f"{_processor()} {sorted(chosen.items())}".encode())
    return digest.hexdigest()


def _sources() -> list[Path]:
    """The files of all compiled loops."""
    spec = load("importlib.util").find_spec(_LOOPS)
    return sorted(Path(spec.submodule_search_locations[0]).glob("*.py"))


def _processor() -> str:
    """Model and features of the processor, as the system describes its first core."""
    try:
        with open("/proc/cpuinfo", "rb") as file:
            first = file.read(1 << 14).partition(b"\n\n")[0]
    except OSError:
        return platform.processor() or platform.machine()
    facts = (b"vendor_id", b"cpu family", b"model", b"flags", b"Features", b"CPU ")
    return repr([line for line in first.splitlines() if line.startswith(facts)])


__all__ = ["as_loops_take"]


class _Writable:
    """An array's memory, presented as writable."""

    def __init__(self, array: np.ndarray) -> None:
        interface: dict[str, Any] = dict(array.__array_interface__)
        interface["data"] = (interface["data"][0], False)
        self.__array_interface__ = interface
        self.array = array  # keeps the memory alive


def as_loops_take(array: np.ndarray) -> np.ndarray:
    """The array, or another one of its memory that counts as writable; loops only read it.

    One that is not aligned is copied.
    """
    flags = array.flags
    if not flags.aligned:
        return array.copy()
    return array if flags.writeable else np.asarray(_Writable(array))
