"""Which sources compiled loops are made of: a module's own, and those whose names it imports."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

# Names of another module are compiled in; a module as a whole (``from . import layer``) is not.
_IMPORTED = re.compile(r"^ *from (\.+)([\w.]+) import", re.MULTILINE)


def made_of(files: Iterable[Path]) -> dict[Path, str]:
    """The text of these sources and of all that they are made of.

    Raises
    ------
    OSError
        Where one of them is not there.
    """
    waiting, found = list(files), {}
    while waiting:
        path = waiting.pop()
        if path not in found:
            found[path] = path.read_text(encoding="utf-8")
            for dots, module in _IMPORTED.findall(found[path]):
                folder = path.parents[len(dots) - 1]
                waiting.append(folder.joinpath(*module.split(".")).with_suffix(".py"))
    return found


def digest(files: Iterable[Path]) -> str:
    """A digest of `made_of`, wherever the package lies."""
    parts = sorted((path.parent.name, path.name, text) for path, text in made_of(files).items())
    return hashlib.sha256(repr(parts).encode()).hexdigest()
