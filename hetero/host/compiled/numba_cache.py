"""Numba's compiled loops in a cache on disk, for the next process.

Numba's own cache raises without a folder to write to, on a full disk and on a damaged file; and it
runs machine code without checking it. Here a loop that cannot be read is compiled, and one that
cannot be written is not kept.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import logging
import pickle
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite
import numba
from numba.core import config, types
from numba.core.caching import NullCache
from numba.core.compiler import CompileResult
from numba.core.registry import cpu_target
from numba.core.serialize import dumps

from hetero.host import disk_cache
from hetero.host.compiled import sources

KIND = "numba"  # category in the cache
VERSIONS = (numba.__version__, llvmlite.__version__, sys.implementation.cache_tag)

log = logging.getLogger("hetero")
# What Numba imports once in a process, before it compiles.
cpu_target.typing_context.refresh()
cpu_target.target_context.refresh()


def njit(function: Callable[..., Any], **options: Any) -> Any:
    """`numba.njit` with results kept on disk."""
    dispatcher = numba.njit(**options)(function)
    dispatcher._cache = _Kept(function, options)
    return dispatcher


class _Kept(NullCache):
    """The cache object that Numba loads from and saves to for each set of argument types."""

    def __init__(self, function: Callable[..., Any], options: dict[str, Any]) -> None:
        self._function = function
        # A set's order is another one in each process.
        plain = {k: sorted(v) if isinstance(v, set) else v for k, v in options.items()}
        self._options = repr(sorted(plain.items()))

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        name = self._name(sig, target_context.codegen())
        content = None if name is None else disk_cache.read(KIND, name, root())
        if content is None:
            return None
        try:
            target_context.refresh()
            # `disk_cache` has checked that only this user wrote it.
            result = CompileResult._rebuild(target_context, *pickle.loads(content))
        except Exception as error:  # of another Numba, or what it needs is gone: compiled again
            log.info("the compiled loop %s cannot be used: %s", name, error)
            return None
        return result

    def save_overload(self, sig: Any, data: Any) -> None:
        name = self._name(sig, data.codegen)
        lifted = any(not part.can_cache for part in data.lifted)
        if name is None or lifted or data.library.has_dynamic_globals:
            return
        try:
            content = dumps(data._reduce())
        except Exception as error:
            log.info("the compiled loop %s cannot be kept: %s", name, error)
            return
        disk_cache.write(KIND, name, content, root())

    def _name(self, sig: Any, codegen: Any) -> str | None:
        """A file's name, by a digest of what the code depends on; None if it is not to be kept."""
        function = self._function
        if function.__closure__ is not None:
            return None
        arguments = sig if isinstance(sig, tuple) else sig.args
        if any(isinstance(argument, types.Callable) for argument in arguments):
            return None  # a function's name says nothing of its code
        try:
            digest = _digest(inspect.getfile(function))
        except OSError:  # there is no source that a version could be derived from
            return None
        key = (
            *(function.__module__, function.__qualname__, digest),
            *(str(sig), self._options, codegen.magic_tuple(), config.USING_SVML),
            *VERSIONS,
        )
        return f"{function.__name__}-{hashlib.sha256(repr(key).encode()).hexdigest()[:40]}"


def root() -> Path | None:
    """The folder that the user sets for Numba's files, if any."""
    return Path(config.CACHE_DIR) / "hetero" if config.CACHE_DIR else None


@functools.cache
def _digest(file: str) -> str:
    """Of a source and of those that it is made of."""
    return sources.digest([Path(file)])
