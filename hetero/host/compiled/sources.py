"""Which sources compiled loops are made of: a module's own, and those that it imports from."""

from __future__ import annotations

import hashlib
import importlib.util
import re
import struct
from collections.abc import Iterable
from pathlib import Path

# Names of another module are compiled in; a module as a whole (``from . import layer``) is not.
_IMPORTED = re.compile(r"^ *from (\.+|hetero\.)([\w.]+) import", re.MULTILINE)


def made_of(files: Iterable[Path]) -> dict[Path, str]:
    """The text of these sources and of all that they are made of.

    Raises
    ------
    OSError
        Where one of them is not there, or where Python runs the bytecode of an earlier text.
    """
    waiting, texts = list(files), {}
    while waiting:
        path = waiting.pop()
        if path not in texts:
            if _has_stale_bytecode(path):
                raise OSError(f"{path} has changed within a second, and its bytecode has not")
            texts[path] = path.read_text(encoding="utf-8")
            waiting += [_place(path, *name) for name in _IMPORTED.findall(texts[path])]
    return texts


def _place(path: Path, beginning: str, module: str) -> Path:
    """The file of a module that a source imports from."""
    if beginning.startswith("."):
        folder = path.parents[len(beginning) - 1]
        return folder.joinpath(*module.split(".")).with_suffix(".py")
    spec = importlib.util.find_spec(beginning + module)
    if spec is None or spec.origin is None:
        raise OSError(f"{beginning}{module}, which {path} imports, is not there")
    return Path(spec.origin)


def _has_stale_bytecode(path: Path) -> bool:
    """Whether Python takes bytecode that is older than the source.

    It compares sizes and whole seconds, and so does not see a second change within a second.
    """
    try:
        compiled = Path(importlib.util.cache_from_source(str(path)))
        head, source = compiled.read_bytes()[4:16], path.stat()
        is_older = compiled.stat().st_mtime_ns < source.st_mtime_ns
    except (OSError, NotImplementedError):
        return False
    seconds, size = int(source.st_mtime) & 0xFFFFFFFF, source.st_size & 0xFFFFFFFF
    return is_older and head == struct.pack("<III", 0, seconds, size)


def digest(files: Iterable[Path]) -> str:
    """A digest of `made_of`, wherever the package lies."""
    parts = sorted((path.parent.name, path.name, text) for path, text in made_of(files).items())
    return hashlib.sha256(repr(parts).encode()).hexdigest()
