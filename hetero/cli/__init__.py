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

# Exit codes of errors, the first class that fits: what arguments can cause, and what the machine
# can. Anything else is a mistake of hetero's own and keeps its traceback.
_CODES: dict[type[BaseException], int] = {
    NotPriced: NO_CHOICE,
    **dict.fromkeys((ValueError, TypeError, ArithmeticError), USAGE),
    **dict.fromkeys((HeteroError, OSError, MemoryError), FAILED),
    KeyboardInterrupt: INTERRUPTED,
}
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
    given = sys.argv[1:] if argv is None else argv
    try:
        for (name, argument), instead in _REMOVED.items():
            if given[:1] == [name] and argument in given:
                raise ValueError(f"hetero {name} {argument} was removed in 0.2: {instead}")
        arguments = parser()[0].parse_args(given)
        try:
            return arguments.run(arguments) or DONE
        finally:
            terminal.clear()
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except tuple(_CODES) as error:
        log.debug("%s failed", given[:1], exc_info=True)
        text = str(error) or type(error).__name__
        if isinstance(error, OSError) and error.strerror and error.filename is not None:
            text = f"{error.filename}: {error.strerror}"
        print(f"hetero: {' '.join(text.split())}", file=sys.stderr)
        return next(code for kind, code in _CODES.items() if isinstance(error, kind))
