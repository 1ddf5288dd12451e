"""Small mistakes that can be planted in a source file.

Each is one a person could make: a comparison with its edge on the wrong side, a condition dropped,
an entry left out of a key, a number one off. Text nobody computes with (docstrings, messages,
annotations) is left alone.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import NamedTuple

_COMPARISONS = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.Is: ("is", "is not"),
    ast.IsNot: (r"is\s+not", "is"),
    ast.In: ("in", "not in"),
    ast.NotIn: (r"not\s+in", "in"),
}
_ARITHMETIC = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "//"),
    ast.BitAnd: ("&", "|"),
    ast.BitOr: ("|", "&"),
}
_NO_LOCK = "__import__('contextlib').nullcontext()"
_MESSAGES = ("log", "logging", "warnings")  # what is called on these only speaks


class Mutation(NamedTuple):
    """Replace the bytes ``start:end`` of a file by ``text``.

    Attributes
    ----------
    function : str
        Qualified name of the function or class around it; "" at a module's top.
    line : int
        Number of its first line, from 1.
    change : str
        "old -> new", for people and for lists of exclusions.
    """

    start: int
    end: int
    text: str
    function: str
    line: int
    change: str

    def apply(self, source: bytes) -> bytes:
        """The source with the mistake in it."""
        return source[: self.start] + self.text.encode() + source[self.end :]


def mutations(source: bytes) -> list[Mutation]:
    """Every mutation of a module's source that still compiles, in the order of the text."""
    found = sorted(set(_Finder(source).module()))
    return [m for m in found if _compiles(m.apply(source))]


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "mutant", "exec", dont_inherit=True)
    except SyntaxError:
        return False
    return True


class _Finder:
    def __init__(self, source: bytes) -> None:
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))

    def module(self) -> Iterator[Mutation]:
        yield from self._inside(ast.parse(self._source), "")

    def _span(self, node: ast.AST) -> tuple[int, int]:
        return (
            self._starts[node.lineno - 1] + node.col_offset,
            self._starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def _make(self, start: int, end: int, text: str, function: str) -> Mutation:
        old = " ".join(self._source[start:end].decode().split())
        line = self._source.count(b"\n", 0, start) + 1
        return Mutation(start, end, text, function, line, f"{old} -> {text}")

    def _replaced(self, node: ast.AST, text: str, function: str) -> Mutation:
        return self._make(*self._span(node), text, function)

    def _between(
        self, left: ast.AST, right: ast.AST, pattern: str, text: str, function: str
    ) -> Iterator[Mutation]:
        """The operator between two expressions replaced."""
        start, end = self._span(left)[1], self._span(right)[0]
        pattern = rf"\b{pattern}\b" if pattern[0].isalpha() else re.escape(pattern)
        match = re.search(pattern.encode(), self._source[start:end])
        if match:
            yield self._make(start + match.start(), start + match.end(), text, function)

    def _inside(self, node: ast.AST, function: str) -> Iterator[Mutation]:
        """The mutations of a node and of all below it."""
        if isinstance(node, (ast.JoinedStr, ast.Import, ast.ImportFrom, ast.Raise)):
            yield from self._statement(node, function)
            return
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            return
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            return  # a docstring
        if isinstance(node, ast.Call) and _owner(node) in _MESSAGES:
            return
        if isinstance(node, ast.keyword) and node.arg == "strict":
            return  # which lengths meet is no choice
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            function = f"{function}.{node.name}".lstrip(".")
        yield from self._statement(node, function)
        yield from self._expression(node, function)
        for name, child in ast.iter_fields(node):
            if name in ("annotation", "returns", "decorator_list", "bases", "type_params"):
                continue
            for item in child if isinstance(child, list) else [child]:
                if isinstance(item, ast.AST):
                    yield from self._inside(item, function)

    def _statement(self, node: ast.AST, function: str) -> Iterator[Mutation]:
        if isinstance(node, (ast.If, ast.IfExp)):
            test = ast.get_source_segment(self._source.decode(), node.test)
            yield self._replaced(node.test, f"(not ({test}))", function)
        elif isinstance(node, ast.Raise) or (
            isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and _owner(node.value) not in _MESSAGES
            and function
        ):
            yield self._replaced(node, "pass", function)
        elif isinstance(node, ast.With) and "lock" in ast.unparse(node.items[0].context_expr):
            yield self._replaced(node.items[0].context_expr, _NO_LOCK, function)
        elif isinstance(node, ast.AugAssign) and type(node.op) in _ARITHMETIC:
            old, new = _ARITHMETIC[type(node.op)]
            yield from self._between(node.target, node.value, old + "=", new + "=", function)
        elif isinstance(node, ast.Assign) and "key" in ast.unparse(node.targets[0]):
            for item in ast.walk(node.value):
                if isinstance(item, ast.Tuple):
                    for entry in item.elts:
                        if not isinstance(entry, ast.Starred):
                            yield self._replaced(entry, "None", function)

    def _expression(self, node: ast.AST, function: str) -> Iterator[Mutation]:
        if isinstance(node, ast.Compare):
            terms = [node.left, *node.comparators]
            for left, right, op in zip(terms, terms[1:], node.ops, strict=False):
                yield from self._between(left, right, *_COMPARISONS[type(op)], function)
        elif isinstance(node, ast.BinOp) and type(node.op) in _ARITHMETIC:
            yield from self._between(node.left, node.right, *_ARITHMETIC[type(node.op)], function)
        elif isinstance(node, ast.BoolOp):
            word, other, neutral = (
                ("and", "or", "True") if isinstance(node.op, ast.And) else ("or", "and", "False")
            )
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self._between(left, right, word, other, function)
            for value in node.values:
                yield self._replaced(value, neutral, function)
        elif isinstance(node, ast.UnaryOp):
            operand = ast.get_source_segment(self._source.decode(), node.operand)
            if isinstance(node.op, (ast.Not, ast.USub)):
                yield self._replaced(node, f"({operand})", function)
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            if name in ("min", "max"):
                other = "max" if name == "min" else "min"
                yield self._replaced(node.func, other, function)
            for keyword in node.keywords:
                if keyword.arg and keyword.arg != "strict":
                    yield self._replaced(keyword, "**{}", function)
        elif isinstance(node, ast.Constant) and function:
            if isinstance(node.value, bool):
                yield self._replaced(node, str(not node.value), function)
            elif isinstance(node.value, int):
                yield self._replaced(node, str(node.value + 1), function)
                if node.value > 1:
                    yield self._replaced(node, str(node.value - 1), function)
            elif isinstance(node.value, float):
                yield self._replaced(node, f"({node.value!r} * 2.0 + 1.0)", function)


def _owner(call: ast.Call) -> str:
    """``x`` of a call ``x.f(...)``, or ``f`` of a call ``f(...)``."""
    return ast.unparse(call.func).partition(".")[0]
