"""What commands share: exit codes, types of arguments, common options, how results are shown."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from hetero import terminal
from hetero.imports import load

DONE = 0
FAILED = 1  # a file that cannot be written, a device that fails, a calibration not to trust
USAGE = 2  # unknown operation, device, method or profile, wrong dimensions; no command
NO_CHOICE = 3  # no candidate could be chosen, as the printed reasons say
INTERRUPTED = 130

Options = Iterable[tuple[Any, ...]]  # of a command; see `hetero.cli.parser`
FLAG = {"action": "store_true"}
DTYPES = {"choices": ("float32", "float64")}


# -- Arguments -------------------------------------------------------------------------------------


def whole(text: str) -> int:
    """A whole number from an argument."""
    try:
        return int(text)
    except ValueError:  # not a number, or of thousands of digits
        shown = text if len(text) < 40 else f"{text[:20]}... ({len(text)} characters)"
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shown!r}") from None


def dtype(text: str) -> str:
    """A dtype's name from an argument."""
    import numpy as np

    try:
        np.dtype(text)
    except Exception:  # of any kind, for what a dtype can be written as
        raise argparse.ArgumentTypeError(
            f"must be a dtype such as float32 or float64, got {text[:40]!r}"
        ) from None
    return text


def file(text: str) -> str:
    """A file's name from an argument."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must name a file, got {text[:40]!r}")
    return text


FILE = {"type": file, "metavar": "FILE"}
PROFILE = {"type": file, "metavar": "NAME|FILE"}


def operations() -> tuple[Any, ...]:
    """All operations, which are loaded when the options of a command are made."""
    import hetero.ops.functions  # noqa: F401  # registers them
    from hetero import registry

    return registry.operations()


def forms() -> str:
    """Each operation with its dimensions."""
    return " | ".join(f"{o.function} {' or '.join(o.dims)}{o.dims_note}" for o in operations())


def check_file(option: str, path: str | None, folder: bool = True) -> None:
    """Raise OSError, before anything is measured, if a file that is named cannot be written.

    Without ``folder`` whoever writes it makes its folder.
    """
    if path is None:
        return
    target = Path(path)
    if folder and not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {option} {path}")
    if target.is_dir():
        raise IsADirectoryError(f"{option} must name a file, {path} is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{option}: {path} cannot be written")


def check_picture(path: str | None) -> None:
    """Likewise of a picture; ValueError if matplotlib does not write such files."""
    if path is None:
        return
    check_file("--plot", path)
    if (empty := load("hetero.evaluation.report").figure(1.0, 1.0)) is None:
        return
    kinds = empty.canvas.get_supported_filetypes()
    if _kind(path) not in kinds:
        ends = ", ".join(f".{kind}" for kind in sorted(kinds))
        raise ValueError(f"a picture's file must end in one of {ends}, got {path!r}")


def _kind(path: str) -> str:
    return Path(path).suffix[1:].lower() or "png"


def check(option: str, value: float | None, least: float, most: float) -> None:
    """Raise ValueError if a number that is given is out of bounds."""
    if value is not None and not least <= value <= most:
        raise ValueError(f"{option} must be from {least:g} to {most:g}, got {value}")


def compile_first(operations: tuple[Any, ...]) -> None:
    """Compile what is about to be timed."""
    from hetero import registry
    from hetero.host import loops

    if any(row.loops for o in operations for row in registry.lookup(o.name)):
        loops.ensure(loops.every())


# -- Results ---------------------------------------------------------------------------------------


def show(arguments: argparse.Namespace, found: Any, text: Callable[[], str]) -> None:
    """Print a result, as JSON or as text."""
    terminal.clear()
    if arguments.json:
        print(json.dumps(found, indent=2))
    else:
        print(text() if arguments.markdown else terminal.aligned(text()))


def plot(arguments: argparse.Namespace, found: Any, module: Any) -> int:
    """Save a picture where that is asked for; its size and how it is drawn is the module's."""
    if arguments.plot is None:
        return DONE
    report = load("hetero.evaluation.report")
    picture = report.figure(*module.PICTURE)
    if picture is None:
        print(f"hetero: {report.INSTALL}", file=sys.stderr)
        return FAILED
    module.draw(found, picture)
    picture.savefig(arguments.plot, format=_kind(arguments.plot))
    return DONE
