"""``python -m hetero.accel [-v] [--report FILE] [--dry-run] (script | -m module | -) [args]``."""

from __future__ import annotations

import atexit
import builtins
import contextlib
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from getopt import GetoptError, getopt
from itertools import pairwise
from types import ModuleType
from typing import Any

from hetero import accel
from hetero.imports import load

USAGE = """\
usage: python -m hetero.accel [-v] [--report FILE] [--dry-run] (script.py | -m module | -) [args...]

  -v, --verbose  print each call that is taken or left alone and why, and a table at the end
  --report FILE  write the table as a page for a browser
  --dry-run      decide, and take no call"""


def parsed(arguments: Sequence[str]) -> tuple[bool, bool, str | None, bool, list[str]] | None:
    """What a command line asks for: verbose, a dry run, a report's file, a module, the command.

    None where it is wrong, or asks for help.
    """
    try:
        options, command = getopt(list(arguments), "vm", ["verbose", "report=", "dry-run"])
    except GetoptError:
        return None
    given = dict(options)
    verbose = bool(given.keys() & {"-v", "--verbose"})
    asked = verbose, "--dry-run" in given, given.get("--report"), "-m" in given, command
    return asked if command else None


def main(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code of a wrong one, else ends as the script does."""
    asked = parsed(arguments)
    if asked is None:
        print(USAGE, file=sys.stderr)
        return 2
    verbose, dry_run, report, module, command = asked
    file, noisy = command[0], verbose or dry_run
    why = None
    if not (module or file == "-" or os.access(file, os.R_OK)):
        why = f"there is no file {file} to read"
    elif report is not None and not report.endswith(".html") and os.path.exists(report):
        why = f"{report} is there already, and is no page: its name does not end in .html"
    if why is not None:
        print(f"hetero.accel: {why}", file=sys.stderr)
        return 2
    installed = accel.install(noisy, dry_run, recording=report is not None)
    process = os.getpid()

    def end() -> None:
        if os.getpid() != process:  # a fork of it
            return
        if noisy:
            print(f"\n{installed.session.book}", file=sys.stderr)
        if report is not None:
            _write(report, command, installed)

    atexit.register(end)  # after threads and the script's own handlers
    run(module, command)
    return 0


def _write(report: str, command: list[str], installed: accel.Installed) -> None:
    """Write the table as a page for a browser, in the style of `hetero report`'s."""
    markup, book = load("hetero.evaluation.markup"), installed.session.book
    rows, (first, *advice) = book.table(), book.sums()
    taken = [row for row in rows if row[-1].startswith("taken")]
    sections = {}
    for title, shown in (("Taken", taken), ("Left alone", [r for r in rows if r not in taken])):
        head = load("hetero.accel.notes").HEAD  # without columns that are empty: for telephones
        used = [column for column in zip(head, *shown, strict=True) if any(column[1:])]
        sections[title] = markup.table(zip(*used, strict=True)) if shown else "None."
    for title, lines in (("To gain more", advice), ("Not caught", installed.missed)):
        sections[title] = "".join(map(markup.paragraph, lines))
    page = markup.document(" ".join(command), markup.paragraph(first), sections)
    try:
        paths = load("hetero.paths")
        paths.replace_file(paths.Path(report), page.encode())
    except OSError as error:
        print(f"hetero.accel: no report: {error}", file=sys.stderr)


def run(module: bool, command: list[str]) -> None:
    """Run a script or a module as ``python`` does, with its arguments."""
    sys.argv, is_stdin = list(command), command[0] == "-" and not module
    main = sys.modules["__main__"] = ModuleType("__main__")  # it stays: threads may need it
    path = "<stdin>" if is_stdin else os.path.abspath(command[0])
    vars(main).update(__builtins__=builtins, __file__=path, __cached__=None, __annotations__={})
    folder = not module and pkgutil.get_importer(command[0]) is not None  # or a zip file
    if folder or not sys.flags.safe_path:
        home = "" if is_stdin else os.path.dirname(os.path.realpath(path))
        sys.path[: not sys.flags.safe_path] = [path if folder else os.getcwd() if module else home]
    try:
        if module or folder:
            name = command[0] if module else "__main__"
            runpy._run_module_as_main(name, module)  # type: ignore[attr-defined]
        else:
            _execute(path, main)
    except BaseException as error:
        _hide(error)
        raise


def _execute(path: str, main: Any) -> None:
    """Execute a file, compiled before or not, or the standard input."""
    machinery, is_stdin = importlib.machinery, path == "<stdin>"
    with contextlib.nullcontext(sys.stdin.buffer) if is_stdin else io.open_code(path) as file:
        content = file.read()
    code = pkgutil.read_code(io.BytesIO(content))
    loader = machinery.SourceFileLoader if code is None else machinery.SourcelessFileLoader
    main.__loader__ = machinery.BuiltinImporter if is_stdin else loader("__main__", path)
    exec(code or compile(content, path, "exec", dont_inherit=True), vars(main))


def _hide(error: BaseException) -> None:
    """Have the error that ends a script shown without the frames of hetero.accel."""
    hook, kept, at = sys.excepthook, [], error.__traceback__
    while at is not None:
        within = at.tb_frame.f_globals
        if within is not globals() and not within.get("__name__", "").startswith("hetero.accel"):
            kept.append(at)
        at = at.tb_next
    for at, below in pairwise([*kept, None]):
        at.tb_next = below

    def excepthook(kind: Any, value: Any, traceback: Any) -> None:
        sys.excepthook = hook
        if value is error:
            traceback = sys.last_traceback = kept[0] if kept else None
        hook(kind, value.with_traceback(traceback), traceback)

    if not isinstance(error, SystemExit):
        sys.excepthook = excepthook


if __name__ == "__main__" and (wrong := main(sys.argv[1:])):  # else -i goes on
    sys.exit(wrong)
