"""Functions of other packages replaced, in every module of theirs that holds them, and put back.

What is not imported yet is replaced when its import ends, so that installing imports nothing.
"""

from __future__ import annotations

import contextlib
import importlib.abc
import sys
from collections.abc import Callable, Iterable, Mapping
from types import ModuleType
from typing import Any


class Patches(importlib.abc.MetaPathFinder):
    """What is to be replaced, and what was.

    Parameters
    ----------
    names : mapping
        Module -> names in it, such as "dot", or "KMeans.fit" of a class's method.
    replace : callable
        ``replace("module.name", original)`` gives what stands there from now on.
    done : callable
        ``done(module)`` is called when all of a module is replaced.
    """

    def __init__(
        self,
        names: Mapping[str, Iterable[str]],
        replace: Callable[[str, Any], Any],
        done: Callable[[str], object],
    ) -> None:
        self._names, self._replace, self._done = names, replace, done
        self._set: list[tuple[Any, str, Any, Any]] = []  # holder, name, original, replacement

    def set(self) -> None:
        """Replace what is imported, and the rest as it will be."""
        for name in self._names:
            module = sys.modules.get(name)
            spec = getattr(module, "__spec__", None)
            if module is not None and not getattr(spec, "_initializing", False):
                self._patch(name)
        sys.meta_path.insert(0, self)

    def restore(self) -> None:
        """Put everything back, but where somebody else has put another thing meanwhile."""
        sys.meta_path.remove(self)
        while self._set:
            holder, name, original, replacement = self._set.pop()
            if vars(holder).get(name) is replacement:
                setattr(holder, name, original)

    def missed(self) -> list[str]:
        """Names by which other modules hold what is replaced: "script.dot"."""
        wanted = {id(original) for _, _, original, _ in self._set}
        return sorted(
            f"{name}.{key}"
            for name, module in list(sys.modules.items())
            if isinstance(module, ModuleType) and _package(name) not in map(_package, self._names)
            for key, value in list(vars(module).items())
            if id(value) in wanted
        )

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """The other finders' answer; the module is patched once it was executed."""
        if name not in self._names:
            return None
        for finder in sys.meta_path:
            if isinstance(finder, Patches):
                continue
            if (spec := finder.find_spec(name, path, target)) is not None:
                self._await(spec)
                return spec
        return None

    def _await(self, spec: Any) -> None:
        loader, execute = spec.loader, spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            del loader.exec_module  # it is the class's again
            execute(module)
            if self in sys.meta_path:
                self._patch(spec.name)

        with contextlib.suppress(AttributeError):  # of a loader that takes none: nothing is caught
            loader.exec_module = exec_module

    def _patch(self, name: str) -> None:
        package = [
            module
            for other, module in list(sys.modules.items())
            if _package(other) == _package(name) and isinstance(module, ModuleType)
        ]
        for dotted in self._names[name]:
            first, _, method = dotted.partition(".")
            original, holders = getattr(sys.modules[name], first), package
            if method:
                original, holders = vars(original)[method], [original]
            replacement = self._replace(f"{name}.{dotted}", original)
            for holder in holders if replacement is not original else ():
                if vars(holder).get(method or first) is original:
                    setattr(holder, method or first, replacement)
                    self._set.append((holder, method or first, original, replacement))
        self._done(name)


def _package(name: str) -> str:
    return name.partition(".")[0]
