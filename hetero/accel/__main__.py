"""``python -m hetero.accel [-v] [--dry-run] (script | -m module | -) [args]``."""

from __future__ import annotations

import argparse
import atexit
import builtins
import functools
import os
import pkgutil
import runpy
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType
from typing import Any

from hetero import accel


def main(arguments: Sequence[str]) -> None:
    """Run a command line; ends as the script does."""
    parser = argparse.ArgumentParser("python -m hetero.accel", allow_abbrev=False)
    add = parser.add_argument
    about = "print each call that is taken or left alone and why, and a table at the end"
    add("-v", "--verbose", action="store_true", help=about)
    add("--dry-run", action="store_true", help="decide, and take no call")
    add("-m", dest="module", action="store_true", help="run a module")
    add("script", help="a file, or - for the standard input")
    add("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args(arguments)
    if not (given.module or given.script == "-" or os.access(given.script, os.R_OK)):
        parser.error(f"there is no file {given.script} to read")
    verbose = given.verbose or given.dry_run
    session = accel.install(verbose, given.dry_run).session
    if verbose:  # after threads and the script's own handlers
        atexit.register(lambda: print(f"\n{session.book}", file=sys.stderr))
    run(given.module, [given.script, *given.arguments])


def run(module: bool, command: list[str]) -> None:
    """Run a script or a module as ``python`` does, with its arguments."""
    is_stdin = command[0] == "-" and not module
    path, sys.argv = os.path.abspath(command[0]), list(command)
    if not sys.flags.safe_path:
        folder = os.path.dirname(os.path.realpath(path))
        sys.path[0] = os.getcwd() if module else "" if is_stdin else folder
    try:
        if module:
            runpy.run_module(command[0], run_name="__main__", alter_sys=True)
        elif path.endswith(".pyc") or pkgutil.get_importer(path) is not None:  # or a folder, a zip
            runpy.run_path(path, run_name="__main__")
        else:
            path = "<stdin>" if is_stdin else path
            main = sys.modules["__main__"] = ModuleType("__main__")  # it stays: threads may need it
            vars(main).update(__builtins__=builtins, __file__=path, __cached__=None)
            with open(0 if is_stdin else path, "rb", closefd=not is_stdin) as file:
                code = compile(file.read(), path, "exec", dont_inherit=True)
            exec(code, vars(main))
    except BaseException as error:
        with suppress(Exception):
            sys.stdout.flush()  # as Python does before it reports an error
        if not isinstance(error, SystemExit):
            sys.excepthook = functools.partial(_show, sys.excepthook)
        raise


def _show(hook: Any, kind: Any, error: BaseException, at: Any) -> None:
    """Have an error shown without the frames that run the script."""
    frames = [frame.f_code for frame, _ in traceback.walk_tb(at)]
    for _ in frames[: frames.index(run.__code__) + 1] if run.__code__ in frames else ():
        at = at.tb_next
    while at and at.tb_frame.f_code.co_filename == "<frozen runpy>":
        at = at.tb_next
    hook(kind, error.with_traceback(at), at)


if __name__ == "__main__":
    main(sys.argv[1:])
