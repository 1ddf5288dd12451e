"""Lazy imports.

They go through `load` alone, which one thread runs at a time.

While a thread imports a package, Python lets another one import a module of it. Circular imports
then fail in both, and in some packages, such as Numba, for as long as the process lives. And a
child that is forked meanwhile waits for ever for a module that no thread finishes. So modules are
imported under one lock, which a fork waits for, and each package before the modules within.
"""

from __future__ import annotations

import importlib
import logging  # noqa: F401  # first: a fork takes the locks of later imports before this one's
import os
import sys
from typing import Any

from hetero import locks

_PATIENCE = 20.0  # seconds, the most that a fork waits for each lock
# What brings the packages of the extras in setup.cfg. They are named one by one, because
# 'pip install hetero[...]' would ask an index for hetero.
INSTALL = {
    "cuda": "pip install cuda-bindings nvidia-cuda-nvrtc",
    "library": "pip install cuda-pathfinder nvidia-cublas nvidia-cufft",
    "opencl": "pip install pyopencl intel-opencl-rt intel-cmplr-lib-rt",
    "dask": "pip install 'dask[array]' distributed",
    "mpi": "pip install mpi4py",
}
_lock = locks.new()
compiling = locks.new()  # held while Numba compiles, see `hetero.host.threads`
_held: list[list[Any]] = []  # the locks of each fork in progress
_whole: dict[str, Any] = {}  # modules by their names, the import of which has ended


def load(name: str) -> Any:
    """The module of this name, imported if necessary.

    Parameters
    ----------
    name : str
        Its full name, such as "scipy.signal".

    Raises
    ------
    ImportError
        As by the ``import`` statement.
    """
    module = sys.modules.get(name)
    if module is not None and _whole.get(name) is module:
        return module
    if module is not None:
        module = importlib.import_module(name)  # which waits where another thread is importing it
    else:
        parts = name.split(".")
        with _lock:
            for number in range(len(parts)):
                module = importlib.import_module(".".join(parts[: number + 1]))
    _whole[name] = module
    return module


def no_fork() -> Any:
    """The lock under which modules are imported: a fork waits until nobody holds it."""
    return _lock


def _before_fork() -> None:
    """Wait for imports, and for Numba's compiler, which imports and calls LLVM under its lock."""
    _held.append([lock for lock in (_lock, compiling) if lock.acquire(timeout=_PATIENCE)])


def _after_fork() -> None:
    for lock in _held.pop():
        lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
