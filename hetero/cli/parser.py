"""Commands: their names, what runs them, their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import hetero
from hetero.cli import comparisons, kernels, machine
from hetero.cli.values import USAGE, Options
from hetero.errors import one_of

# A command has a function of its name in one of the modules, whose docstring is its help, and its
# options in _NAME_options: rows of name, help, and what else `add_argument` takes.
_MODULES = machine, comparisons, kernels
_NAMES = ("info", "calibrate", "compile", "explain", "verify", "bench", "ladder", "sweep", "probe")
_NAMES += ("transfer", "advise", "accel", "report", "demo")


class _Parser(argparse.ArgumentParser):
    """A parser that refuses wrong arguments in one line, as everything else is refused."""

    def error(self, message: str) -> NoReturn:
        self.exit(USAGE, f"hetero: {message} ('{self.prog} --help' lists all)\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or str(action.metavar)
            raise argparse.ArgumentError(None, one_of(name, map(str, action.choices), value))


class _Command(_Parser):
    """A command, whose options are made when it is asked for: the operations are loaded then."""

    options: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, *arguments: Any) -> Any:
        if self.options is not None:
            make, self.options = self.options, None
            make(self)
        return super().parse_known_args(*arguments)


def _add(rows: Callable[[], Options], sub: argparse.ArgumentParser) -> None:
    """Add a command's options to its parser."""
    for name, text, *more in rows():
        sub.add_argument(name, help=text, **(more[0] if more else {}))


def parser() -> tuple[argparse.ArgumentParser, list[str]]:
    """The parser of all commands, and their names; what it parses has the command's function as
    ``run``."""
    made = _Parser(
        prog="hetero",
        description="Measures this machine once, then computes each call where it is fastest: on "
        "the CPU or on a GPU. 'hetero explain --help' names what it computes.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 no candidate could be chosen.",
    )
    made.add_argument("--version", action="version", version=f"hetero {hetero.__version__}")
    subparsers = made.add_subparsers(metavar="COMMAND", parser_class=_Command)

    for name in _NAMES:
        function = "compile_loops" if name == "compile" else name
        module = next(module for module in _MODULES if hasattr(module, function))
        run = getattr(module, function)
        text = " ".join((run.__doc__ or "").split())
        sub = subparsers.add_parser(name, help=text, description=text, epilog=made.epilog)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--markdown", action="store_true", help="print tables as Markdown")
        sub.set_defaults(run=run)
        sub.options = partial(_add, getattr(module, f"_{name}_options", tuple))
    return made, [*_NAMES]
