"""Imports that wait until something is needed: by `load` alone, which one thread runs at a time.

While a thread imports a package, Python lets another one import a module of it. Circular imports
then fail in both, and in some packages, such as Numba, for as long as the process lives. And a
child that was forked meanwhile waits for ever for the module that nobody finishes. So modules are
imported under one lock, for which a fork waits, and each package before the modules within.
"""

from __future__ import annotations

import importlib
import logging  # noqa: F401  # first: a fork takes the locks of later imports before this one's
import os
import sys
import threading
from types import ModuleType
from typing import Any

_PATIENCE = 60.0  # seconds that a fork waits for an import at most
_lock = threading.RLock()
_held: list[bool] = []  # whether each fork that is under way got the lock


def load(name: str) -> Any:
    """The module of this name, which is imported unless it was.

    Parameters
    ----------
    name : str
        Its whole name, such as "scipy.signal".

    Raises
    ------
    ImportError
        As by the ``import`` statement.
    """
    found = sys.modules.get(name)
    if found is not None and not _is_being_imported(found):
        return found
    with _lock:
        at = name.find(".")
        while at >= 0:
            importlib.import_module(name[:at])
            at = name.find(".", at + 1)
        return importlib.import_module(name)


def _is_being_imported(module: ModuleType) -> bool:
    return bool(getattr(getattr(module, "__spec__", None), "_initializing", False))


def _before_fork() -> None:
    _held.append(_lock.acquire(timeout=_PATIENCE))


def _after_fork() -> None:
    if _held.pop():
        _lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_before_fork, after_in_parent=_after_fork, after_in_child=_after_fork
    )
