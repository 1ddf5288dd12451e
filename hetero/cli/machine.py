"""Commands of this machine: info, calibrate, compile, report, demo; each returns an exit code."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

import hetero
from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE, FAILED, Parser, add_file, add_profile, check_file, show
from hetero.imports import load
from hetero.terminal import progress_bar


def info_options(sub: Parser) -> None:
    """Add those of info."""
    sub.add_argument("--verbose", action="store_true", help="all that is known, not the main part")


def info(arguments: argparse.Namespace) -> int:
    """What is here."""
    if (bar := progress_bar()) is not None:
        bar(0.0, "trying the devices")
    found = hetero.machine()
    show(arguments, found, lambda: str(found) if arguments.verbose else found.brief())
    return DONE


def calibrate_options(sub: Parser) -> None:
    """Add those of calibrate."""
    text = "15 to 30 seconds instead of up to a minute, less exact"
    sub.add_argument("--quick", action="store_true", help=text)
    text = "file to write (default: HETERO_PROFILE, or the user's cache)"
    sub.add_argument("--path", type=values.file, help=text)
    text = "only this device, such as cuda:0, and the CPU; may be repeated (default: all)"
    sub.add_argument("--device", action="append", metavar="NAME", help=text)
    text = (
        "only what is of this operation, device or method, merged into the profile that is stored; "
        "may be repeated"
    )
    sub.add_argument("--only", action="append", metavar="NAME", help=text)
    text = "the errors of every fit, not of the rough ones alone"
    sub.add_argument("--verbose", action="store_true", help=text)


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine and store its profile."""
    from hetero.calibration.calibrate import outcome
    from hetero.evaluation import report
    from hetero.profile import default_path

    check_file("--path", arguments.path, folder=False)
    found, is_new = outcome(
        arguments.quick,
        arguments.path,
        arguments.device,
        progress_bar() or terminal.Lines(),
        only=arguments.only,
    )
    path = str(arguments.path or default_path())
    result = {
        "path": path,
        "devices": found.devices,
        "residuals": found.residuals(),
        "not_acceptable": report.not_acceptable(found),
        "doubtful": found.doubtful(),
        "written": is_new,
        "trusted": found.is_trusted,
    }
    if not is_new:
        end = f"the profile in {path} is better: it stays, and is used"
    elif arguments.path:
        end = f"the profile is stored in {path}; HETERO_PROFILE={path} has programs use it"
    else:
        end = f"the profile is stored in {path}, and used from now on"
    end += f"\n{report.rough(found)}"
    if arguments.quick and result["not_acceptable"]:
        end += "; 'hetero calibrate' without --quick is more exact"
    show(arguments, result, lambda: f"{report.calibration(found, arguments.verbose)}\n\n{end}")
    return DONE if is_new and found.is_trusted and not result["doubtful"] else FAILED


def compile_loops(arguments: argparse.Namespace) -> int:
    """Compile the CPU's loops for later processes."""
    import hetero.ops.functions  # noqa: F401  # registers them
    from hetero.host import loops

    os.environ.pop(loops.IN_CALLS, None)  # here it is asked for
    if not loops.can_be_kept():
        raise OSError("compiled loops cannot be kept: the cache directory cannot be written")
    names = loops.every()
    loops.ensure(names, progress_bar() or (lambda fraction, text: print(text, file=sys.stderr)))
    found = {name: loops.is_ready(name) for name in names}
    lines = [f"{name:<28} {'compiled' if ready else 'failed'}" for name, ready in found.items()]
    show(arguments, found, lambda: "\n".join(lines))
    return DONE if all(found.values()) else FAILED


def report_options(sub: Parser) -> None:
    """Add those of report."""
    add_file(sub, "file", "to write, such as report.html")
    text = "of another machine: tesla-t10, h100, h200, h100x2, h200x2, or a profile's file"
    add_profile(sub, f"{text} (default: this)")
    text = "first measure this operation's ladder, as hetero ladder does; may be repeated"
    sub.add_argument("--ladder", action="append", default=[], metavar="OPERATION", help=text)


def report(arguments: argparse.Namespace) -> int:
    """Write what is known of a machine as a page for a browser."""
    from hetero.evaluation import last
    from hetero.evaluation.page import page

    check_file("FILE", arguments.file)
    progress = progress_bar()
    if arguments.ladder and arguments.profile is not None:
        raise ValueError("--ladder measures this machine, and --profile names another one")
    for name in arguments.ladder:
        load("hetero.ladder.families").family(name)  # or it says what there is
    for name in arguments.ladder:
        last.keep_ladder(load("hetero.ladder.ladder").ladder(name, progress=progress))
    found = page(arguments.profile)
    Path(arguments.file).write_text(found, "utf-8")
    show(arguments, {"file": arguments.file}, lambda: f"the page is in {arguments.file}")
    return DONE


def demo_options(sub: Parser) -> None:
    """Add those of demo."""
    text = "largest extent (default: 2048; 8192 on a GPU)"
    sub.add_argument("--largest", type=values.whole, help=text)
    add_file(sub, "--picture", "save the filtered photograph (PGM)")


def demo(arguments: argparse.Namespace) -> int:
    """Compare real calls with other libraries."""
    from hetero.evaluation import demo

    values.check("--largest", arguments.largest, 16, 2**24)
    check_file("--picture", arguments.picture)
    rows = demo.demo(
        largest=arguments.largest,
        picture=arguments.picture,
        progress=progress_bar(),
        show=(lambda text: None) if arguments.json else terminal.line,
    )
    terminal.clear()
    if arguments.json:
        show(arguments, {"calls": rows}, str)
    return DONE
