"""``python -m hetero.accel [-v] [--dry-run] (script | -m module | -) [args]``."""

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
from itertools import pairwise
from types import ModuleType
from typing import Any

from hetero import accel

USAGE = """\
usage: python -m hetero.accel [-v] [--dry-run] (script.py | -m module | -) [args...]

  -v, --verbose  print each call that is taken or left alone and why, and a table at the end
  --dry-run      decide, and take no call"""
_OPTIONS = "-v", "--verbose", "--dry-run", "-m"


def parsed(arguments: Sequence[str]) -> tuple[bool, bool, bool, list[str]] | None:
    """What a command line asks for: verbose, a dry run, a module, the command.

    None where it is wrong, or asks for help.
    """
    given, command = set(), list(arguments)
    while "-m" not in given and command and command[0] in _OPTIONS:
        given.add(command.pop(0))
    if not command or (command[0].startswith("-") and command[0] != "-"):
        return None
    return bool(given & {"-v", "--verbose"}), "--dry-run" in given, "-m" in given, command


def main(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code of a wrong one, else ends as the script does."""
    asked = parsed(arguments)
    if asked is None:
        print(USAGE, file=sys.stderr)
        return 2
    verbose, dry_run, module, command = asked
    if not (module or command[0] == "-" or os.access(command[0], os.R_OK)):
        print(f"hetero.accel: there is no file {command[0]} to read", file=sys.stderr)
        return 2
    installed = accel.install(verbose or dry_run, dry_run)
    process = os.getpid()

    def end() -> None:
        if (verbose or dry_run) and os.getpid() == process:  # and not a fork of it
            print(f"\n{installed.session.book}", file=sys.stderr)

    atexit.register(end)  # after threads and the script's own handlers
    run(module, command)
    return 0


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
