"""A rung's kernel as CUDA C, with its macros expanded and what it does not need left out; a rung's
loop on the CPU in Python.

A kernel's text has macros for its shape, dtype and dialect, so that one text serves many launches.
Whoever reads one rung wants the text of its own launch.
"""

from __future__ import annotations

import inspect
import io
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from hetero import kernels, registry
from hetero.calibration.ahead.listing import Listing, kernels_of
from hetero.errors import one_of
from hetero.evaluation.climbing import Ground
from hetero.ops import benchmark, rungs
from hetero.ops.cases import Place
from hetero.pricing.plan import CPU
from hetero.profile import shipped

INSTALL = "--source expands macros by pcpp, the extra 'source': pip install pcpp"
_CARD = "h200"  # whose launch is shown
_OWN = (
    "_rungs.cu",
    "_rungs_shared.cu",
    "_rungs_column.cu",
    "_rungs_registers.cu",
    "_tuned.cu",
    "_persistent.cu",
)  # files of the rungs
_WIDTH = 100
# A comment, then a function with its body or a declaration.
_PIECE = re.compile(r"((?://[^\n]*\n)*)(^[^\s/#}][^;{}]*)(;|\{.*?^\})", re.MULTILINE | re.DOTALL)
_NAMED = re.compile(r"(\w+)\s*(?:\((?:[^()]|\([^()]*\))*\)|\[[^]]*\])?\s*$")


class _Named(Listing):
    """Notes the rungs' kernels with their names."""

    def __init__(self, name: str, info: dict[str, Any]) -> None:
        super().__init__(name, info)
        self.rungs: dict[str, tuple[str, Any]] = {}  # of the largest operands

    def build(self, text: str, kernel: str, defines: Any) -> None:
        if text.endswith(_OWN):
            self.rungs[kernel] = text, defines


def of_rung(operation: registry.Operation, method: str, dtype: str | None = None) -> str:
    """The CUDA C of a rung's kernels for large operands as an H200 compiles it.

    Parameters
    ----------
    operation : Operation
    method : str
        A rung's.
    dtype : {"float32", "float64"}, optional
        Default: as for the ladder.

    Raises
    ------
    ValueError
        If the operation has no such rung; the message names those that it has.
    ImportError
        Without pcpp.
    """
    info = shipped(_CARD).data["devices"]["cuda:0"]
    row, device = _named(method, operation, info["kind"]), _Named("cuda:0", info)
    own = dtype or benchmark.dtype_of(operation)
    ground = Ground(operation, Place(device.name, info, (device,)), own, 1.0)
    kernels_of(device, [ground.case(row)])
    pieces = [_comment(_title(operation, row))]
    for launched in dict.fromkeys(device.rungs.values()):
        file, defines = launched
        pieces.append(_comment(f"{file}, {', '.join(f'{n} = {value}' for n, value in defines)}."))
        names = {name for name in device.rungs if device.rungs[name] == launched}
        pieces += [p for p in _needed(expanded(file, defines), names) if p not in pieces]
    return "\n\n".join(pieces) + "\n"


def of_loop(operation: registry.Operation, method: str) -> str:
    """The Python source of a rung on the CPU: its loop, and what of its module that takes.

    Raises
    ------
    ValueError
        If the operation has no such rung; the message names those that it has.
    """
    row = _named(method, operation, CPU)
    loop = rungs.loop_of(row)
    text = Path(inspect.getfile(inspect.unwrap(loop))).read_text("utf-8")
    pieces = {names: line for line, names in re.findall(r"^(([A-Z]\w+).* = .*)$", text, re.M)}
    pieces |= {f[1]: b for b in text.split("\n\n\n") if (f := re.search(r"^def (\w+)", b, re.M))}
    title = _title(operation, row)
    wanted = _with_callees(pieces, {loop.__name__})
    return "\n\n\n".join([_comment(title, "# "), *(pieces[name] for name in wanted)]) + "\n"


def _named(method: str, operation: registry.Operation, kind: str) -> registry.Implementation:
    rows = {row.method: row for row in benchmark.rungs(operation, kind)}
    if method not in rows:
        raise ValueError(one_of(f"--source of {operation.function}", rows, method))
    return rows[method]


def _title(operation: registry.Operation, row: registry.Implementation) -> str:
    rung = row.rung
    place = f"instead of {rung.instead_of}" if rung.instead_of else f"rung {rung.number}"
    seed = f" ({rung.seed})" if rung.seed else ""
    return f"{operation.function}, {place}, {row.method}: {rung.idea}{seed}."


def _comment(text: str, sign: str = "// ") -> str:
    return textwrap.fill(text, _WIDTH, initial_indent=sign, subsequent_indent=sign)


def expanded(file: str, defines: tuple[tuple[str, Any], ...]) -> str:
    """A kernel file as the compiler sees it behind the preprocessor; comments stay."""
    import pcpp

    class Preprocessor(pcpp.Preprocessor):
        def on_comment(self, token: Any) -> bool:
            return True

    preprocessor = Preprocessor()
    preprocessor.line_directive = None
    for name, value in defines:
        preprocessor.define(f"{name} {value}")
    text = re.sub(r"^(#define.*?)\s*//.*", r"\1", kernels.source(file), flags=re.MULTILINE)
    preprocessor.parse(f"{kernels.prelude('cuda')}\n{text}")
    out = io.StringIO()
    preprocessor.write(out)
    return re.sub(r"_Pragma\(\"(.*?)\"\)[ ]*\n?", r"\n#pragma \1\n", out.getvalue())


def _needed(text: str, wanted: set[str]) -> Iterator[str]:
    """Functions and what they call, each with the comment in front of it."""
    pieces = {}
    for found in _PIECE.finditer(text):
        if named := _NAMED.search(found[2]):
            pieces[named[1]] = found[0].strip()
    for name in _with_callees(pieces, wanted):
        lines = (wrapped for line in pieces[name].split("\n") for wrapped in _wrapped(line))
        yield "\n".join(lines)


def _with_callees(pieces: dict[str, str], wanted: set[str]) -> list[str]:
    left = list(wanted)
    while left:
        more = {*re.findall(r"\w+", pieces[left.pop()])} & pieces.keys() - wanted
        wanted |= more
        left += more
    return [name for name in pieces if name in wanted]


def _wrapped(line: str) -> list[str]:
    """A line of code; a statement in each, and lines within them, where macros made a long one."""
    line = line.rstrip()
    if len(line) <= _WIDTH or line.lstrip().startswith("//"):
        return [line] if line else []
    indent = re.match(r"\s*", line)[0]
    statements = re.split(r"(?<=[;{}])\s+(?![^(]*\))", line.strip())
    return [
        wrapped
        for statement in statements
        for wrapped in textwrap.wrap(
            statement, _WIDTH, initial_indent=indent, subsequent_indent=f"{indent}        "
        )
    ]
