"""The constants that tune the CPU's side, with their reasons: ``make constants`` writes their page.

A constant is a number that a module has under a name in capitals. Its reason is the comment on its
line, or the one above it.
"""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "constants.md"
ROOMS = ("hetero/host", "hetero/arrays", "hetero/moving", "hetero/devices", "kernels/cpu")
HEAD = """\
# Constants of the CPU's side

What calibration measures stands in a profile ([models](models.md)), what was measured for kernels
in [their plans](kernels.md). These are the other numbers that decide how threads, pages,
copies and loops on the host work; each was chosen by measuring, and is the same on every machine.
`make constants` writes this page from the sources.

| constant | value | what it is |
|---|---|---|
"""


class Constant(NamedTuple):
    """A number with a name.

    Attributes
    ----------
    where : str
        Module and name.
    value : str
        As it is written.
    reason : str
        Empty where the source gives none.
    """

    where: str
    value: str
    reason: str


def constants() -> list[Constant]:
    """All of `ROOMS`, in the order of the sources."""
    files = sorted(file for room in ROOMS for file in (ROOT / room).rglob("*.py"))
    return [constant for file in files for constant in _of(file)]


def _of(file: Path) -> list[Constant]:
    text = file.read_text("utf-8")
    lines, module = text.splitlines(), file.relative_to(ROOT).as_posix()
    found = []
    for node in ast.parse(text).body:
        if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)):
            continue
        name, value = node.targets[0].id, ast.unparse(node.value)
        if name.strip("_").isupper() and re.fullmatch(r"[-\d.e_+*/<>() ]+", value):
            reason = lines[node.lineno - 1].partition("#")[2].strip()
            above = node.lineno - 2
            while not reason.count(" ") and lines[above].startswith("#"):
                reason = f"{lines[above].removeprefix('#').strip()} {reason}".strip()
                above -= 1
            found.append(Constant(f"`{module}` `{name}`", f"`{value}`", reason))
    return found


def page() -> str:
    """The page's text."""
    rows = (f"| {c.where} | {c.value} | {c.reason} |\n" for c in constants())
    return HEAD + "".join(rows)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
    sys.exit(bool([print(f"{c.where} has no reason") for c in constants() if not c.reason]))
