"""Lazy imports.

They go through `load` alone, which one thread runs at a time.

While a thread imports a package, Python lets another one import a module of it. Circular imports
then fail in both, and in some packages, such as Numba, for as long as the process lives. And a
child that is forked meanwhile waits for ever for a module that no thread finishes. So modules are
imported under one lock, which a fork waits for, and each package before the modules within.

Modules of a package that an exception leaves half imported fail for as long as the process lives,
too. So they are imported by another thread, where no signal handler raises anything.
"""

from __future__ import annotations

import importlib.machinery
import logging  # noqa: F401  # first: a fork takes the locks of later imports before this one's
import os
import sys
import threading
from collections.abc import Callable
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
_MACHINERY = importlib.machinery.ModuleSpec.__init__.__code__.co_filename
no_fork = locks.new()  # modules are imported under it: a fork waits until nobody holds it
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
    elif name.startswith("mpi4py"):  # initialises MPI, which the same thread has to finalise
        module = _imported(name)
    else:
        module = undisturbed(_imported, name)
    _whole[name] = module
    return module


def undisturbed(function: Callable[..., Any], *given: Any) -> Any:
    """The result of a function, which runs in a thread of its own, where nobody raises exceptions.

    What a signal handler or another thread raises in this one meanwhile is raised when that has
    ended. A second exception is raised at once; the thread goes on.
    """
    results: list[Any] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            results.append(function(*given))
        except BaseException as error:
            errors.append(error)

    if sys.is_finalizing() or _imports():
        return function(*given)
    thread = threading.Thread(target=run, daemon=True)
    try:
        thread.start()
    except RuntimeError:  # no more threads
        return function(*given)
    try:
        thread.join()
    except BaseException:
        thread.join()
        raise
    if errors:
        raise errors.pop()
    return results.pop() if results else function(*given)  # Python may have ended the thread first


def _imports() -> bool:
    """Whether the caller's thread is importing: another one might wait for what it holds."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_filename != _MACHINERY:
        frame = frame.f_back
    return frame is not None


def _imported(name: str) -> Any:
    with no_fork:
        at = name.find(".")
        while at >= 0:
            importlib.import_module(name[:at])
            at = name.find(".", at + 1)
        return importlib.import_module(name)


def _before_fork() -> None:
    """Wait for imports, and for Numba's compiler, which imports and calls LLVM under its lock."""
    _held.append([lock for lock in (no_fork, compiling) if lock.acquire(timeout=_PATIENCE)])


def _after_fork() -> None:
    for lock in _held.pop():
        lock.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork)
