"""`hetero transfer`: its options, and what it does."""

from __future__ import annotations

import argparse
import json
import math
import sys
from typing import Any

from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE, FAILED
from hetero.errors import ProfileError
from hetero.terminal import progress_bar


def options(sub: argparse.ArgumentParser) -> None:
    """Add them to the command."""
    import hetero.ops  # noqa: F401  # registers them
    from hetero import registry

    forms = " | ".join(
        f"{o.function} {' or '.join(o.dims)}{o.dims_note}" for o in registry.operations()
    )
    sub.add_argument(
        "up",
        nargs="?",
        type=_bytes,
        metavar="UP",
        help="bytes to the device, such as 64MiB or 1e9 (default: the operands of --work)",
    )
    sub.add_argument(
        "down",
        nargs="?",
        type=_bytes,
        metavar="DOWN",
        help="bytes back from it, 0 or more (default: the result of --work)",
    )
    sub.add_argument(
        "--work",
        nargs="+",
        metavar=("SECONDS|OPERATION", "SECONDS|DIMS"),
        help="what is done there: seconds on the CPU and, where they are known, on the device; or "
        f"{forms}",
    )
    sub.add_argument("--dtype", default="float32", help="of the operation (default: float32)")
    sub.add_argument("--device", help="such as cuda:0 (default: the first GPU)")
    sub.add_argument(
        "--profile",
        metavar="NAME|FILE",
        help="predict for another machine: tesla-t10, h100, h200, or a profile's file",
    )
    sub.add_argument(
        "--plot",
        type=values.file,
        metavar="FILE",
        help="save a picture, by matplotlib: time over size for the CPU, and for the device with "
        "and without the copies; without an operation, of the copies over bytes",
    )


def _bytes(text: str) -> int:
    from hetero.pricing.memory_limit import parsed

    if text.strip() == "0":
        return 0
    try:
        return parsed(text, "it")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number of bytes, such as 64MiB, 1e9 or 0, got {text[:40]!r}"
        ) from None


def _work(arguments: argparse.Namespace) -> Any:
    """What ``--work`` says; ValueError where it makes no sense."""
    from hetero import registry
    from hetero.evaluation.work import Call, Given

    first, *rest = arguments.work
    seconds = [_number(word) for word in arguments.work]
    if seconds[0] is not None:
        if len(seconds) > 2 or any(s is None or not 0.0 < s < math.inf for s in seconds):
            raise ValueError(
                "--work must be seconds above 0, on the CPU and perhaps on the device, or an "
                f"operation with its dimensions, got {' '.join(arguments.work)!r}"
            )
        return Given(*seconds)
    operation = registry.operation(first)
    dims = [_number(word) for word in rest]
    if not all(size is not None and size.is_integer() for size in dims):
        raise ValueError(f"dimensions must be whole numbers, got {' '.join(rest)!r}")
    call = Call(operation, tuple(int(size) for size in dims), arguments.dtype)
    call.problem()  # or it says what the operation takes
    return call


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def run(arguments: argparse.Namespace) -> int:
    """Price and measure the copies, and tell whether they pay."""
    from hetero import profile
    from hetero.cli.commands import _check_file
    from hetero.evaluation import pictures, transfer, transfer_report

    if arguments.plot is not None:
        _check_file("--plot", arguments.plot)
        pictures.check(arguments.plot)
    work = None if arguments.work is None else _work(arguments)
    try:
        constants = None if arguments.profile is None else profile.named(arguments.profile)
    except (ProfileError, OSError) as error:
        raise ValueError(f"--profile: {error}") from None
    found = transfer.transfer(
        arguments.up,
        arguments.down,
        work,
        device=arguments.device,
        constants=constants,
        progress=progress_bar(),
    )
    terminal.clear()
    print(json.dumps(found, indent=2) if arguments.json else transfer_report.text(found))
    if arguments.plot is None or transfer_report.draw(found, arguments.plot):
        return DONE
    print(f"hetero: {pictures.INSTALL}", file=sys.stderr)
    return FAILED
