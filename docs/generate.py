"""What the site takes from the code: functions, options of commands, exceptions, log lines.

A page has a line ``<!-- generated: NAME -->``; `conf.py` puts the text of ``GENERATED[NAME]()``
there. ``python docs/generate.py`` runs the commands that pages show in blocks of "console" again,
and writes what they print now.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import inspect
import io
import re
from collections.abc import Iterator
from html import escape
from pathlib import Path

import hetero
from hetero import cli, errors
from hetero.cli.parser import parser

ROOT = Path(__file__).parent.parent
SOURCES = ("hetero", "kernels", "calibration")
LEVELS = ("warning", "info", "debug")


def groups() -> Iterator[tuple[str, list[str]]]:
    """What the rows of the package's table say, and the public names of each."""
    for names, text in re.findall(r"^(`\w.*`)  +(.*)$", hetero.__doc__, re.M):
        yield text[0].upper() + text[1:], re.findall(r"`(\w+)`", names)


def functions() -> str:
    """Every public name, by the rows of that table; then the ways to more machines."""
    parts = []
    for text, names in groups():
        parts.append(f"## {text}\n")
        parts += [documented("hetero", name) for name in names]
    for module in ("hetero.mpi", "hetero.dask", "hetero.accel"):
        with contextlib.suppress(ImportError):
            found = __import__(module, fromlist=["*"])
            parts.append(f"## {module}\n\n{inspect.getdoc(found).splitlines()[0]}\n")
            parts += [documented(module, name) for name in getattr(found, "__all__", [])]
    return "\n".join(parts)


def documented(module: str, name: str) -> str:
    """A name with the first line of its docstring; below it, to unfold, the whole one."""
    value = getattr(__import__(module, fromlist=[name]), name)
    if inspect.ismodule(value):
        return f"`hetero.{name}`: [messages.md](messages.md).\n"
    kind = "class" if inspect.isclass(value) else "function"
    members = "\n   :members:" if kind == "class" else ""
    shown = f"```{{eval-rst}}\n.. auto{kind}:: {module}.{name}{members}\n```"
    first = re.sub("`+([^`]*)`+", r"<code>\1</code>", escape(inspect.getdoc(value).split("\n")[0]))
    summary = f"<summary><code>{module}.{name}</code>: {first}</summary>"
    return f"<details>{summary}\n\n{shown}\n\n</details>\n"


def commands() -> str:
    """What each command's help prints."""
    parts = []
    actions = parser()[0]._subparsers._group_actions
    for name, sub in actions[0].choices.items():
        if sub.options is not None:
            sub.options(sub)
        sub.formatter_class = lambda prog: argparse.HelpFormatter(prog, width=88)
        parts.append(f"### hetero {name}\n\n```text\n{sub.format_help().rstrip()}\n```\n")
    return "\n".join(parts)


def exceptions() -> str:
    """A row for each class of hetero.errors."""
    rows = ["| exception | is also | means |", "|---|---|---|"]
    for name, value in vars(errors).items():
        if inspect.isclass(value) and issubclass(value, errors.HeteroError):
            also = ", ".join(f"`{base.__name__}`" for base in value.__bases__)
            first = inspect.getdoc(value).splitlines()[0].replace("``", "`")
            rows.append(f"| `{name}` | {also} | {first} |")
    return "\n".join(rows)


def calls(*names: str) -> Iterator[tuple[str, str, ast.Call]]:
    """Every call of a method by one of these names in the sources: file, method, the call."""
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                    owner = getattr(node.func.value, "id", "")
                    if node.func.attr in names and owner in ("log", "warnings"):
                        yield file.relative_to(ROOT).as_posix(), node.func.attr, node


@functools.cache
def constants() -> dict[str, str]:
    """Every text that a module has by a name in capitals."""
    found = {}
    for folder in SOURCES:
        for file in sorted((ROOT / folder).rglob("*.py")):
            for node in ast.parse(file.read_text("utf-8")).body:
                match node:
                    case ast.Assign(targets=[ast.Name(id=name)], value=ast.Constant(value=str(v))):
                        found[name] = v
    return found


def shown(node: ast.expr) -> str:
    """A message as it stands in the source, its parts that are filled in as %s or {}; "" where it
    is made elsewhere."""
    if isinstance(node, ast.Name):
        return constants().get(node.id, "")
    if isinstance(node, ast.Constant):
        return str(node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(v.value if isinstance(v, ast.Constant) else "%s" for v in node.values)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return shown(node.func.value)
    return ""


def log() -> str:
    """A row for each line of the logger."""
    rows = ["| level | line | from |", "|---|---|---|"]
    found = sorted(calls(*LEVELS), key=lambda one: (LEVELS.index(one[1]), one[0]))
    for file, level, call in found:
        if message := shown(call.args[0]):
            rows.append(f"| {level} | {cell(message)} | `{file}` |")
    return "\n".join(rows)


def warned() -> str:
    """A row for each call of warnings.warn."""
    rows = ["| category | message | from |", "|---|---|---|"]
    for file, _, call in calls("warn"):
        category = f"`{ast.unparse(call.args[1])}`" if len(call.args) > 1 else "`UserWarning`"
        if not category.endswith("Warning`"):  # a parameter
            category = "of the function that is called"
        if message := shown(call.args[0]):
            rows.append(f"| {category} | {cell(message)} | `{file}` |")
    return "\n".join(rows)


def cell(text: str) -> str:
    """Letters of a cell of a table, as code."""
    return "`" + " ".join(text.split()).replace("|", "\\|").replace("`", "'") + "`"


GENERATED = {
    "functions": functions,
    "commands": commands,
    "errors": exceptions,
    "log": log,
    "warnings": warned,
}


def printed(line: str) -> str:
    """What a command prints."""
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        cli.main(line.split()[2:])
    return output.getvalue()


def main() -> None:
    """Run what pages show again."""
    block = re.compile(r"^```console\n(\$ hetero .*\n)(?:.*\n)*?```$", re.M)
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        text = page.read_text("utf-8")
        again = block.sub(lambda m: f"```console\n{m[1]}{printed(m[1])}```", text)
        if again != text:
            page.write_text(again, "utf-8")
            print(f"{page.name}: changed")


if __name__ == "__main__":
    main()
