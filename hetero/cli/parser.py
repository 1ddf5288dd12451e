"""Commands: their names, what runs them, their options."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import hetero
from hetero.cli import commands
from hetero.errors import one_of
from hetero.imports import load


class _Parser(argparse.ArgumentParser):
    """A parser that refuses wrong arguments in one line, as everything else is refused."""

    options = None  # nothing is left to be made later

    def error(self, message: str) -> NoReturn:
        raise ValueError(f"{message} ('{self.prog} --help' lists all)")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            name = "/".join(action.option_strings) or str(action.metavar)
            raise argparse.ArgumentError(None, one_of(name, map(str, action.choices), value))


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
    made.set_defaults(run=lambda _: made.print_help(sys.stderr) or commands.USAGE)
    subparsers = made.add_subparsers(metavar="COMMAND")
    for name, options in _COMMANDS.items():
        run = getattr(commands, "compile_loops" if name == "compile" else name)
        text = " ".join((run.__doc__ or "").split())
        sub = subparsers.add_parser(name, help=text, description=text, epilog=made.epilog)
        sub.set_defaults(run=run, parser=made)
        for option in filter(None, f"--json, --markdown, {options}".split(", ")):
            text, more = _OPTIONS[option]
            sub.add_argument(option.split()[0], help=text, **more)
    return made, [*_COMMANDS]


# -- What arguments are ----------------------------------------------------------------------------


def _type(convert: Callable[[str], Any], wanted: str) -> Callable[[str], Any]:
    """The type of an argument: what ``convert`` makes of it; what it raises is "must be wanted"."""

    def typed(text: str) -> Any:
        try:
            return convert(text)
        except Exception:  # of any kind, for what a dtype can be written as
            shown = repr(text) if len(text) < 40 else f"{text[:20]!r}... ({len(text)} characters)"
            raise argparse.ArgumentTypeError(f"must {wanted}, got {shown}") from None

    return typed


def _from(least: float, most: float, of: type = int) -> dict[str, Any]:
    """A number that has bounds."""

    def convert(text: str) -> Any:
        value = of(text)
        if not least <= value <= most:
            raise ValueError
        return value

    wanted = "a whole number" if of is int else "a number"
    return {"type": _type(convert, f"be {wanted} from {least:g} to {most:g}")}


def _bytes(text: str) -> int:
    return 0 if text.strip() == "0" else load("hetero.pricing.places").parsed_limit(text, "it")


def _file(text: str) -> str:
    if not text or "\0" in text:
        raise ValueError
    return text


def _written(text: str, folder: bool = True) -> str:
    """A file to write; OSError, before anything is measured, if that cannot be.

    Without ``folder`` whoever writes it makes its folder.
    """
    target = Path(_FILE["type"](text))
    if folder and not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {text}")
    if target.is_dir():
        raise IsADirectoryError(f"a file must be named, {text} is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{text} cannot be written")
    return text


_FLAG = {"action": "store_true"}
_NEEDED = {"required": True}
_NAME = {"metavar": "NAME"}
_OPERATION = {"metavar": "OPERATION"}
_SEVERAL = _NAME | {"action": "append"}
_WHOLE = {"type": _type(int, "be a whole number")}
_SECONDS = {"type": float, "metavar": "SECONDS"}
_DTYPE = {"type": _type(lambda x: load("numpy").dtype(x) and x, "be a dtype such as float32")}
_SIZES = {"type": _type(lambda x: [*map(int, x.split(","))], "be whole numbers, such as 512,4096")}
_BYTES = {"nargs": "?", "type": _type(_bytes, "be a number of bytes, such as 64MiB, 1e9 or 0")}
_FILE = {"type": _type(_file, "name a file"), "metavar": "FILE"}
_PROFILE = _FILE | {"metavar": "NAME|FILE"}
_WRITTEN = _FILE | {"type": _written}
_PATH = {"type": partial(_written, folder=False)}
_WORK = {"nargs": "+", "metavar": ("SECONDS|OPERATION", "SECONDS|DIMS")}
_LADDERS = _OPERATION | {"action": "append", "default": []}
_CALLS = _from(1, 100_000) | {"metavar": "CALLS"}  # that many take 3 s to count
_DRAWING = _from(0, 10**6, float) | {"default": 60.0}
_FUNCTIONS = "matvec, matmul, convolve2d, solve_cg, solve_poisson, kmeans"
_FORMS = (
    "matvec M K | matmul M N K | convolve2d H W FH FW | solve_poisson NY NX or NZ NY NX | "
    "kmeans N D K (N rows, D columns, K clusters) | "
    "solve_cg N or NY NX or NZ NY NX (N: a dense matrix; else hetero.Poisson)"
)
_PROFILES = "tesla-t10, h100, h200, h100x2, h200x2, or a profile's file"

# -- Options, by their names and what tells those of one name apart; commands ----------------------

_OPTIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "operation": (_FORMS, {}),
    "operation to verify": (f"{_FUNCTIONS} (default: matvec and matmul)", {"nargs": "*"}),
    "operation to time": (f"{_FUNCTIONS}, movement (copies)", _OPERATION),
    "operation of a ladder": (_FUNCTIONS.replace("solve_cg, ", ""), _OPERATION),
    "probe": ("a pattern of access", {"choices": commands.PROBES, "metavar": "PROBE"}),
    "dims": ("extents, 1 or more each", _WHOLE | {"nargs": "+", "metavar": "DIM"}),
    "up": ("bytes to the device, such as 64MiB (default: the operands of --work)", _BYTES),
    "down": ("bytes back from it, 0 or more (default: the result of --work)", _BYTES),
    "file": ("to write, such as report.html", _WRITTEN),
    "shell": ("bash, zsh or fish", {"choices": ("bash", "zsh", "fish"), "metavar": "SHELL"}),
    "script": ("a script that need not import hetero", _FILE | {"metavar": None}),
    "arguments": ("the script's own arguments and options", {"nargs": argparse.REMAINDER}),
    "-m": ("the script is a module's name", _FLAG | {"dest": "module"}),
    "--again": ("also a loop of this number of calls over the same large operands", _CALLS),
    "--all": ("list every method, or every block that was timed", _FLAG),
    "--case": ("in place of --work: the product of a report, such as blog", _NAME),
    "--cases": ("sizes that others measured, such as cmu", _NAME),
    "--cluster": ("forecast an iteration of a solve on the cluster of this JSON file", _FILE),
    "--count": ("problems for each operation (default: 100)", _from(0, 10**6) | {"default": 100}),
    "--device": ("only this device, such as cpu or cuda:0", {}),
    "--device of several": ("only this one and the CPU; may be repeated", _SEVERAL),
    "--device to time": ("of products and movement (default: cuda:0, else cpu)", {}),
    "--device first": ("such as cuda:0 (default: the first GPU, else OpenCL device)", {}),
    "--dims": ("one size by its dimensions, in place of --sizes", _SIZES | {"metavar": "N,N,N"}),
    "--disable": ("take that back", _FLAG),
    "--dtype": ("of the operands (default: float64)", _DTYPE | {"default": "float64"}),
    "--dtype to time": ("of the operands", {"choices": ("float32", "float64")}),
    "--enable": ("let HETERO_ACCEL=1 switch it on for all scripts of this environment", _FLAG),
    "--filter": ("extent of a convolution's filter (default: 15)", {"type": int}),
    "--iterations": ("of solve_cg: a number; default: those to expect", {}),
    "--json": ("print JSON", _FLAG),
    "--ladder": ("measure and show this operation's ladder; may be repeated", _LADDERS),
    "--largest": ("largest extent (default: 4096; 16384 on a GPU)", _from(8, 2**24)),
    "--largest shown": ("largest extent (default: 2048; 8192 on a GPU)", _from(16, 2**24)),
    "--limit": ("leave out what takes longer (default: 1 on a GPU, else 0.5)", _SECONDS),
    "--markdown": ("print tables as Markdown", _FLAG),
    "--method": ("only this method, as the plan names it", {}),
    "--method of a ladder": ("a kernel of the ladder with blocks of several shapes", _NEEDED),
    "--mode": ("of convolve2d: full, same, valid; which results; default: full", {}),
    "--on": ("where the operands lie: host, cuda:0, ... (default: host)", {"default": "host"}),
    "--on another": ("a machine's profile: h100, h200, or a file (default: this one)", _PROFILE),
    "--only": ("only this operation, device or method, merged into what is stored", _SEVERAL),
    "--order": ("the matrix of a product by rows (C) or columns (F)", {"choices": ("C", "F")}),
    "--path": ("file to write (default: HETERO_PROFILE, or the user's cache)", _PATH),
    "--picture": ("save the filtered photograph (PGM)", _WRITTEN),
    "--plot": ("save a picture, by matplotlib", _WRITTEN),
    "--profile": (f"of another machine: {_PROFILES}", _PROFILE),
    "--quick": ("less exact; once loops are compiled 10 seconds on two cores without a GPU", _FLAG),
    "--seconds": ("begin no new problem after this time (default: 60)", _DRAWING),
    "--seed": ("of the random problems (default: 0)", _WHOLE | {"default": 0}),
    "--sizes": ("extents: a problem has the same one in each dimension", _SIZES),
    "--threads": ("with --device cpu: numbers of threads to time", _SIZES | {"default": ()}),
    "--verbose": ("print all that is known", _FLAG),
    "--work": (f"done there: seconds on the CPU and perhaps the device; or {_FORMS}", _WORK),
}
_OWN = "--mode, --iterations"  # those that operations have
_LADDER = (
    "operation of a ladder, --dtype to time, --device first, --dims, --filter, --plot, --sizes"
)
_COMMANDS = {
    "info": "--verbose",
    "calibrate": "--quick, --path, --device of several, --only, --verbose",
    "compile": "",
    "explain": f"operation, dims, --dtype, {_OWN}, --on, --device, --method, --all, --profile, "
    "--again, --cluster, --plot",
    "verify": "operation to verify, --on, --count, --seconds, --seed, --largest",
    "bench": "operation to time, --dtype to time, --device to time, --order, --cases",
    "ladder": f"{_LADDER}, --threads, --limit",
    "sweep": f"{_LADDER}, --method of a ladder, --all",
    "probe": "probe, --device first, --plot",
    "transfer": f"up, down, --work, --case, --dtype, --device first, --profile, {_OWN}, --plot",
    "advise": "--on another, -m, script, arguments",
    "accel": "--enable, --disable",
    "report": "file, --profile, --ladder",
    "demo": "--largest shown, --picture",
    "completion": "shell",
}
