"""``python -m hetero.accel [-v] [--report FILE] [--dry-run] (script.py | -m module) [args...]``."""

from __future__ import annotations

import io
import os
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
    options = {"recording": asked.report is not None}
    installed = accel.install(asked.verbose or asked.dry_run, asked.dry_run, **options)
    try:
        run(asked.module, asked.command)
    finally:  # a script ends by its last line, by sys.exit or by an error
        if asked.verbose or asked.dry_run:
            print(f"\n{installed.session.book}", file=sys.stderr)
        if asked.report is not None:
            load("hetero.accel.page").write(asked.report, asked.command, installed)
    return 0


def run(module: bool, command: list[str]) -> None:
    """Run a script or a module as ``python`` does, with its arguments."""
    sys.argv = list(command)
    if module:
        sys.path[0] = os.getcwd()
        runpy._run_module_as_main(command[0])  # type: ignore[attr-defined]
        return
    path = command[0]
    if os.path.isdir(path) or path.endswith((".zip", ".pyz")):
        runpy.run_path(path, run_name="__main__")
        return
    sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = ModuleType("__main__")  # it stays: threads and exit handlers may need it
    main.__file__, main.__builtins__ = path, __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    with io.open_code(os.path.abspath(path)) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, vars(main))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
