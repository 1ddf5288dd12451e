"""`hetero report`: its options, and what it does."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE
from hetero.terminal import progress_bar


def options(sub: argparse.ArgumentParser) -> None:
    """Add them to the command."""
    sub.add_argument("file", type=values.file, metavar="FILE", help="to write, such as report.html")
    sub.add_argument(
        "--profile",
        type=values.file,
        metavar="NAME|FILE",
        help="of another machine: tesla-t10, h100, h200, or a profile's file (default: this one)",
    )
    sub.add_argument(
        "--ladder",
        action="append",
        default=[],
        metavar="OPERATION",
        help="first measure this operation's ladder, as hetero ladder does; may be repeated",
    )


def run(arguments: argparse.Namespace) -> int:
    """Write what is known of a machine as a page for a browser."""
    from hetero import registry
    from hetero.cli.commands import _check_file
    from hetero.evaluation import ladder
    from hetero.evaluation.page import page

    _check_file("FILE", arguments.file)
    progress = progress_bar()
    climbed = [registry.operation(name) for name in arguments.ladder]
    if climbed and arguments.profile is not None:
        raise ValueError("--ladder measures this machine, and --profile names another one")
    for operation in climbed:
        ladder.keep(ladder.ladder(operation, progress=progress))
    found = page(arguments.profile, progress)
    Path(arguments.file).write_text(found.html, "utf-8")
    terminal.clear()
    told = {"file": arguments.file, "profile": found.profile, "pictures": found.pictures}
    if arguments.json:
        print(json.dumps(told, indent=2))
    else:
        print(f"{found.pictures} pictures of the profile {found.profile!r} in {arguments.file}")
    return DONE
