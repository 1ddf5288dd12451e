"""Lines of code that name an operation, its public function or a method: `test_names.py` asks."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Names(NamedTuple):
    """What the registry holds.

    Attributes
    ----------
    operations : frozenset of str
        Names of operations and of their public functions.
    methods : frozenset of str
    """

    operations: frozenset[str]
    methods: frozenset[str]


class Found(NamedTuple):
    """A line that names one, and what it says."""

    file: str
    line: int
    text: str


def registered() -> Names:
    """The names of every operation and method that is registered."""
    import hetero.ops  # noqa: F401  registers them
    from hetero.runtime import registry

    operations = registry.operations()
    return Names(
        frozenset(name for o in operations for name in (o.name, o.function)),
        frozenset(i.method for o in operations for i in registry.lookup(o.name)),
    )


def lines(file: Path, names: Names) -> Iterator[Found]:
    """Each line of a source that names one, once."""
    tree = ast.parse(file.read_text("utf-8"))
    docstrings = {id(node) for node in _docstrings(tree)}
    seen = set()
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        for text in _said(node, names):
            line = getattr(node, "lineno", 0)
            if line not in seen:
                seen.add(line)
                yield Found(file.name, line, text)


def _docstrings(tree: ast.AST) -> Iterator[ast.AST]:
    """Strings that stand as statements: docstrings, and whatever else is a comment in quotes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield node.value


def _said(node: ast.AST, names: Names) -> Iterator[str]:
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield from _in_text(node.value, names)
    elif isinstance(node, ast.Name):
        yield from {node.id} & names.operations
    elif isinstance(node, ast.Attribute):
        yield from {node.attr} & names.operations
    elif isinstance(node, ast.ImportFrom):
        parts = {*(node.module or "").split("."), *(a.name for a in node.names)}
        yield from parts & names.operations
    elif isinstance(node, ast.Import):
        yield from {part for a in node.names for part in a.name.split(".")} & names.operations
    elif isinstance(node, ast.keyword | ast.arg):
        yield from {node.arg} & names.operations


def _in_text(text: str, names: Names) -> Iterator[str]:
    """Operations are words anywhere in a text; methods, which are common words, in keys alone."""
    words = set(re.findall(r"\w+", text))
    yield from words & names.operations
    if not re.search(r"\s", text):
        yield from words & names.methods
