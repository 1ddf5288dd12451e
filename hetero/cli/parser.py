"""Commands: their names, what runs them, their options."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any, NoReturn

import hetero
from hetero.cli import accel, comparisons, kernels, machine
from hetero.cli.values import USAGE
from hetero.errors import one_of

Options = Callable[[argparse.ArgumentParser], None]


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

    options: Options | None = None

    def parse_known_args(self, *arguments: Any) -> Any:
        if self.options is not None:
            make, self.options = self.options, None
            make(self)
        return super().parse_known_args(*arguments)


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

    def add(name: str, run: Callable[..., int], options: Options | None, text: str) -> None:
        sub = subparsers.add_parser(name, help=text, description=text, epilog=made.epilog)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.add_argument("--markdown", action="store_true", help="print tables as Markdown")
        sub.set_defaults(run=run)
        sub.options = options

    text = "What is here: CPU, BLAS, devices, links, the profile, and what is missing."
    add("info", machine.info, machine.info_options, text)
    text = "Measure this machine and store its profile."
    add("calibrate", machine.calibrate, machine.calibrate_options, text)
    text = "Compile the CPU's loops now, not when a program first needs them."
    add("compile", machine.compile_loops, None, text)
    text = "Price every candidate for a problem; run nothing."
    add("explain", comparisons.explain, comparisons.explain_options, text)
    text = "Measure every candidate of random problems."
    add("verify", comparisons.verify, comparisons.verify_options, text)
    text = "Time every method, and the libraries that are installed."
    add("bench", kernels.bench, kernels.bench_options, text)
    text = "Each kernel of an operation from the first idea to the best: time, rates, gain."
    add("ladder", kernels.ladder, kernels.ladder_options, text)
    text = "Time a kernel with every legal shape of its blocks; how far its own is off."
    add("sweep", kernels.sweep, kernels.sweep_options, text)
    text = "What a pattern of access to memory costs: camping, banks, coalescing."
    add("probe", kernels.probe, kernels.probe_options, text)
    text = "Is it worth moving this to a GPU? The copies compared with the work there."
    add("transfer", comparisons.transfer, comparisons.transfer_options, text)
    text = "Run a script here, and predict how fast its calls would be on another machine."
    add("advise", accel.advise, accel.advise_options, text)
    text = "Let scripts of this environment run with hetero.accel, or no longer."
    add("accel", accel.accel, accel.accel_options, text)
    text = "What is known of a machine, as a page for a browser."
    add("report", machine.report, machine.report_options, text)
    text = "Compare real calls with other libraries; without a stored profile calibrate quickly."
    add("demo", machine.demo, machine.demo_options, text)
    return made, [*subparsers.choices]
