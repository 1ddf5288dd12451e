"""``python -m hetero.accel [-v] [--report FILE] [--dry-run] (script.py | -m module) [args...]``."""

from __future__ import annotations

import atexit
import builtins
import importlib.machinery
import io
import os
import pkgutil
import runpy
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from hetero import accel
from hetero.imports import load

USAGE = """\
usage: python -m hetero.accel [-v] [--report FILE] [--dry-run] (script.py | -m module) [args...]

  -v, --verbose  print each call that is taken or left alone and why, and a table at the end
  --report FILE  write the table as a page for a browser
  --dry-run      decide, and take no call"""


class Asked(NamedTuple):
    """What a command line asks for: options, and the script or module with its arguments."""

    verbose: bool
    dry_run: bool
    report: str | None
    module: bool
    command: list[str]


def parsed(arguments: Sequence[str]) -> Asked | None:
    """A command line; None where it is wrong, or asks for help."""
    rest, verbose, dry_run, report = list(arguments), False, False, None
    while rest and rest[0].startswith("-") and rest[0] != "-m":
        option = rest.pop(0)
        if option in ("-v", "--verbose"):
            verbose = True
        elif option == "--dry-run":
            dry_run = True
        elif option == "--report" and rest:
            report = rest.pop(0)
        elif option.startswith("--report="):
            report = option.partition("=")[2]
        else:
            return None
    module = rest[:1] == ["-m"]
    command = rest[module:]
    return Asked(verbose, dry_run, report, module, command) if command else None


def main(arguments: Sequence[str]) -> int:
    """Run a command line; returns the exit code of a wrong one, else ends as the script does."""
    asked = parsed(arguments)
    if asked is None:
        print(USAGE, file=sys.stderr)
        return 2
    if not asked.module and not os.path.exists(asked.command[0]):
        print(f"hetero.accel: there is no file {asked.command[0]}", file=sys.stderr)
        return 2
    noisy = asked.verbose or asked.dry_run
    installed = accel.install(noisy, asked.dry_run, recording=asked.report is not None)
    if noisy or asked.report is not None:  # after threads and the script's own handlers
        atexit.register(_end, asked, noisy, installed, os.getpid())
    run(asked.module, asked.command)
    return 0


def _end(asked: Asked, noisy: bool, installed: accel.Installed, process: int) -> None:
    if os.getpid() != process:  # a fork of it
        return
    if noisy:
        print(f"\n{installed.session.book}", file=sys.stderr)
    if asked.report is not None:
        try:
            load("hetero.accel.page").write(asked.report, asked.command, installed)
        except OSError as error:
            print(f"hetero.accel: no report: {error}", file=sys.stderr)


def run(module: bool, command: list[str]) -> None:
    """Run a script or a module as ``python`` does, with its arguments."""
    sys.argv = list(command)
    path = os.path.abspath(command[0])
    main = sys.modules["__main__"] = ModuleType("__main__")  # it stays: threads may need it
    vars(main).update(__builtins__=builtins, __file__=path, __cached__=None, __annotations__={})
    folder = not module and pkgutil.get_importer(command[0]) is not None  # or a zip file
    if module or folder:
        if folder or not sys.flags.safe_path:
            sys.path[: not sys.flags.safe_path] = [path if folder else os.getcwd()]
        runpy._run_module_as_main(  # type: ignore[attr-defined]
            command[0] if module else "__main__", module
        )
        return
    if not sys.flags.safe_path:
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    loader = importlib.machinery.SourceFileLoader("__main__", path)
    main.__loader__ = loader
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
