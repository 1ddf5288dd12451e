"""Commands about scripts that know nothing of hetero: accel, advise; each returns an exit code."""

from __future__ import annotations

import argparse
import dataclasses
import sys
import sysconfig
from pathlib import Path

from hetero import paths
from hetero.cli.values import DONE, FAILED, Parser, file, show

_FILE = "hetero-accel.pth"
# Python runs a line of such a file that begins with import, in each process.
_LINE = (
    "import os; os.environ.get('HETERO_ACCEL', '0') not in ('', '0') and "
    "__import__('importlib.util').util.find_spec('hetero') and "
    "__import__('hetero.accel').accel.enable()"
)
_ON = "Scripts of this environment run with hetero.accel where HETERO_ACCEL=1 is set: {}"
_OFF = "No script of this environment runs with hetero.accel by itself: there is no {}"


def accel_options(sub: Parser) -> None:
    """Add those of accel."""
    which = sub.add_mutually_exclusive_group()
    text = "let HETERO_ACCEL=1 switch it on for all scripts of this environment"
    which.add_argument("--enable", action="store_true", help=text)
    text = "take that back"
    which.add_argument("--disable", action="store_true", help=text)


def accel(arguments: argparse.Namespace) -> int:
    """Say whether an environment's scripts can be accelerated, or change that."""
    path = Path(sysconfig.get_path("purelib")) / _FILE
    if arguments.enable:
        paths.replace_file(path, f"{_LINE}\n".encode())  # not what a link there points to
        path.chmod(0o644)  # whatever the umask: each process of this environment runs it
    elif arguments.disable:
        path.unlink(missing_ok=True)
    found = {"enabled": path.exists(), "file": str(path)}
    show(arguments, found, lambda: (_ON if found["enabled"] else _OFF).format(path))
    return DONE


def advise_options(sub: Parser) -> None:
    """Add those of advise."""
    text = "another machine, by its profile: h100, h200, or a profile's file (default: this one)"
    sub.add_argument("--on", type=file, metavar="NAME|FILE", help=text)
    sub.add_argument("-m", action="store_true", dest="module", help="the script is a module's name")
    sub.add_argument("script", type=file, help="a script that knows nothing of hetero")
    sub.add_argument(
        "arguments", nargs=argparse.REMAINDER, help="the script's own arguments and options"
    )


def advise(arguments: argparse.Namespace) -> int:
    """Run a script here, and say what another machine would do with it."""
    from hetero.accel import advice

    if not arguments.module and not Path(arguments.script).exists():
        raise ValueError(f"there is no file {arguments.script}")
    command = [arguments.script, *arguments.arguments]
    given, ending = advice.advise(command, arguments.on, arguments.module)
    show(arguments, dataclasses.asdict(given), lambda: str(given))
    if isinstance(ending, SystemExit):
        raise ending
    if ending is None:
        return DONE
    sys.excepthook(type(ending), ending, ending.__traceback__)
    return FAILED
