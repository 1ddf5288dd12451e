"""The command line: info, calibrate, compile, explain, verify, bench, ladder, sweep,
probe, transfer, advise, accel, report, demo, completion.

Every command prints JSON with ``--json``. Exit codes: `hetero.cli.commands`.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence

from hetero import terminal
from hetero.cli.commands import DONE, FAILED, INTERRUPTED, NO_CHOICE, USAGE
from hetero.cli.parser import parser
from hetero.errors import HeteroError, NotPriced

__all__ = ["DONE", "FAILED", "INTERRUPTED", "NO_CHOICE", "USAGE", "main"]

_LONGEST_MESSAGE = 2000  # characters of an error that are shown
# What arguments can cause; other errors that are reported are of the machine. Anything else is a
# mistake of hetero's own and keeps its traceback.
_WRONG = (ValueError, TypeError, ArithmeticError)
# What earlier versions had: a command and an argument of it.
_REMOVED = {
    ("bench", "programs"): "run docs/benchmarks/programs.py of the repository",
    ("sweep", "--metrics"): "it prints how far input parameters describe the times",
}
log = logging.getLogger("hetero")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    handler = terminal.LogHandler(sys.stderr)
    logging.basicConfig(format="hetero: %(message)s", level=logging.WARNING, handlers=[handler])
    (commands, _), given = parser(), sys.argv[1:] if argv is None else argv
    for (name, argument), instead in _REMOVED.items():
        if given[:1] == [name] and argument in given:
            return _refuse(f"hetero {name} {argument} was removed in 0.2: {instead}", USAGE)
    try:
        arguments = commands.parse_args(given)
        if "run" not in arguments:  # no command
            commands.print_help(sys.stderr)
            return USAGE
        try:
            return arguments.run(arguments) or DONE
        finally:
            terminal.clear()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        return _refuse("interrupted", INTERRUPTED)
    except (HeteroError, *_WRONG, OSError, MemoryError) as error:
        log.debug("%s failed", given[:1], exc_info=True)
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        code = USAGE if isinstance(error, _WRONG) else FAILED
        return _refuse(text, NO_CHOICE if isinstance(error, NotPriced) else code)


def _refuse(text: str, code: int) -> int:
    print(f"hetero: {' '.join(text.split())[:_LONGEST_MESSAGE]}", file=sys.stderr)
    return code
