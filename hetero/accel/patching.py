"""Functions of other packages replaced, in every module of theirs that holds them, and put back.

What is not imported yet is replaced when its import ends, so that installing imports nothing.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FunctionType, MethodType, ModuleType
from typing import Any

from hetero.imports import load

log = logging.getLogger("hetero")


class Patches:
    """What is to be replaced, and what was; one of `sys.meta_path`.

    ``names`` are by module, such as "dot", or "KMeans.fit" of a class's method.
    ``replace("module.name", original)`` gives what stands there from now on, ``done(module)`` is
    called when all of a module is replaced.
    """

    def __init__(
        self,
        names: Mapping[str, Iterable[str]],
        replace: Callable[[str, Any], Any],
        done: Callable[[str], object],
    ) -> None:
        self._names, self._replace, self._done = names, replace, done
        self._originals: dict[Any, Any] = {}  # by their replacements
        self._classes: list[type] = []
        self._begun: set[str] = set()
        self._is_set = True

    def set(self) -> None:
        """Replace what is imported, and the rest as it will be."""
        for name in self._names:
            if sys.modules.get(name) is not None:
                load(name)  # which waits where another thread is importing it
                self._patch(name)
        sys.meta_path.insert(0, self)

    def restore(self) -> None:
        """Put everything back, also where it was imported by name meanwhile."""
        with contextlib.suppress(ValueError):  # somebody has put back an older list
            sys.meta_path.remove(self)
        self._is_set = False
        for holder in (*_modules(), *self._classes):
            for key, value in list(vars(holder).items()):
                if (original := self._original(value)) is not None:
                    setattr(holder, key, original)

    def missed(self) -> list[str]:
        """Names by which other modules hold what is replaced: "script.convolve2d"."""
        wanted, own = set(map(id, self._originals.values())), set(map(_package, self._names))
        others = [m for m in _modules() if _package(m.__name__) not in own]
        held = ((m.__name__, key, value) for m in others for key, value in [*vars(m).items()])
        return sorted({f"{name}.{key}" for name, key, value in held if id(value) in wanted})

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The other finders' answer; the module is patched once it was executed."""
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, Patches) or not hasattr(finder, "find_spec"):
                continue
            if (spec := finder.find_spec(name, path, target)) is not None:
                with contextlib.suppress(AttributeError):  # a loader that takes none: not caught
                    self._await(spec)
                return spec
        return None

    def _await(self, spec: Any) -> None:
        loader, execute = spec.loader, spec.loader.exec_module

        @unseen
        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # it is the class's again
            execute(module)
            if self._is_set:
                self._patch(spec.name)

        loader.exec_module = exec_module

    def _patch(self, name: str) -> None:
        package = [m for m in _modules() if _package(m.__name__) == _package(name)]
        for dotted in self._names[name]:
            first, _, method = dotted.partition(".")
            original, holders = getattr(sys.modules[name], first, None), package
            if method and original is not None:
                self._classes.append(original)
                original, holders = vars(original).get(method), [original]
            if original is None:
                log.warning("%s.%s is left as it is: there is none", name, dotted)
            elif self._original(original) is None:  # it is replaced already where it is reloaded
                replacement = self._replace(f"{name}.{dotted}", original)
                if replacement is original:
                    continue
                self._originals[replacement] = original
                for holder in holders:
                    if vars(holder).get(method or first) is original:
                        setattr(holder, method or first, replacement)
        if name not in self._begun:
            self._begun.add(name)
            self._done(name)

    def _original(self, value: Any) -> Any:
        """What a replacement stands for; None for anything else."""
        is_ours = isinstance(value, FunctionType | Standin)
        return self._originals.get(value) if is_ours else None


class Standin:
    """A function of another package with other code; see `standin`."""

    def __init__(self, original: Any) -> None:
        functools.update_wrapper(self, original)
        self._original = original

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def __eq__(self, other: object) -> bool:
        return other is self or other is self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> str:
        return str(self._original.__name__)

    def __repr__(self) -> str:
        return repr(self._original)


def standin(original: Any, code: Callable[..., Any]) -> Standin:
    """A function equal to ``original`` that runs ``code``.

    Classes with functions of their own for NumPy's (``__array_function__``), and SciPy's own tests,
    look functions up in tables: they find the original by its stand-in and the other way round.
    """
    return type("function", (Standin,), {"__call__": staticmethod(code)})(original)


def unseen(function: Any) -> Any:
    """The function itself; `warnings.warn` counts its frame no more than those of an import.

    So a warning is one of the line that calls what the function stands for.
    """
    code = function.__code__
    function.__code__ = code.replace(
        co_filename=f"<frozen importlib._bootstrap: {code.co_filename}>"
    )
    return function


def _modules() -> Iterator[Any]:
    return (m for m in list(sys.modules.values()) if isinstance(m, ModuleType))


def _package(name: str) -> str:
    return name.partition(".")[0]
