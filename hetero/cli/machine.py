"""Commands about a machine and its scripts; each returns an exit code."""

from __future__ import annotations

import argparse
import dataclasses
import os
import sys
import sysconfig
from pathlib import Path
from typing import Any

import hetero
from hetero import paths, terminal
from hetero.cli import values
from hetero.cli.values import DONE, FAILED, FILE, FLAG, PROFILE, Options, check_file, show
from hetero.terminal import progress_bar

# -- info ------------------------------------------------------------------------------------------


def _info_options() -> Options:
    yield "--verbose", "all that is known, not the main part", FLAG


def info(arguments: argparse.Namespace) -> int:
    """What is here: CPU, BLAS, devices, links, the profile, and what is missing."""
    if (bar := progress_bar()) is not None:
        bar(0.0, "trying the devices")
    found = hetero.machine()

    def text() -> str:
        own = str(found) if arguments.verbose else found.brief()
        return "\n".join([own, *_measured(found)]) if found["profile"]["file"] else own

    show(arguments, found, text)
    return DONE


def _measured(found: dict[str, Any]) -> list[str]:
    """What a calibration found: rates, and from which size on a device pays."""
    import hetero.ops.functions  # noqa: F401  registers them
    from hetero import profile
    from hetero.evaluation import page, report

    constants = profile.current()
    lines = report.rates(constants)
    own = {name: info for name, info in found["devices"].items() if not info.get("is_host_cpu")}
    if own and constants.data["links"]:
        devices = {"cpu": {**found["cpu"], "kind": "cpu"}, **own}
        lines += [f"{title}: a GPU pays {at}" for title, at in page.pays(constants, devices)]
    return lines


# -- calibrate, compile ----------------------------------------------------------------------------


def _calibrate_options() -> Options:
    yield "--quick", "15 to 30 seconds instead of up to a minute, less exact", FLAG
    text = "file to write (default: HETERO_PROFILE, or the user's cache)"
    yield "--path", text, {"type": values.file}
    several = {"action": "append", "metavar": "NAME"}
    text = "only this device, such as cuda:0, and the CPU; may be repeated (default: all)"
    yield "--device", text, several
    text = (
        "only what is of this operation, device or method, merged into the profile that is stored; "
        "may be repeated"
    )
    yield "--only", text, several
    yield "--verbose", "the errors of every fit, not of the rough ones alone", FLAG


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine and store its profile."""
    from hetero.evaluation import report
    from hetero.profile import default_path

    check_file("--path", arguments.path, folder=False)
    progress = progress_bar() or terminal.Lines()
    given = arguments.quick, arguments.path, arguments.device, progress
    found = hetero.calibrate(*given, only=arguments.only)
    path = str(arguments.path or default_path())
    result = {
        "path": path,
        "devices": found.devices,
        "residuals": found.residuals(),
        "not_acceptable": report.not_acceptable(found),
        "doubtful": found.doubtful(),
        "trusted": found.is_trusted,
    }
    used = f"; HETERO_PROFILE={path} has programs use it"
    if not arguments.path:
        used = ", and used from now on"
    end = f"the profile is stored in {path}{used}\n{report.rough(found)}"
    if arguments.quick and result["not_acceptable"]:
        end += "; 'hetero calibrate' without --quick is more exact"
    show(arguments, result, lambda: f"{report.calibration(found, arguments.verbose)}\n\n{end}")
    return DONE if found.is_trusted and not result["doubtful"] else FAILED


def compile_loops(arguments: argparse.Namespace) -> int:
    """Compile the CPU's loops now, not when a program first needs them."""
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


# -- report, demo ----------------------------------------------------------------------------------


def _report_options() -> Options:
    yield "file", "to write, such as report.html", FILE
    text = "of another machine: tesla-t10, h100, h200, h100x2, h200x2, or a profile's file"
    yield "--profile", f"{text} (default: this)", PROFILE
    text = "measure this operation's ladder, as hetero ladder does, and show it; may be repeated"
    yield "--ladder", text, {"action": "append", "default": [], "metavar": "OPERATION"}


def report(arguments: argparse.Namespace) -> int:
    """What is known of a machine, as a page for a browser."""
    from hetero.evaluation.page import page
    from hetero.ladder import families, ladder

    check_file("FILE", arguments.file)
    if arguments.ladder and arguments.profile is not None:
        raise ValueError("--ladder measures this machine, and --profile names another one")
    for name in arguments.ladder:
        families.family(name)  # or it says what there is
    progress = progress_bar()
    ladders = [ladder.text(ladder.ladder(name, progress=progress)) for name in arguments.ladder]
    found = page(arguments.profile, ladders)
    Path(arguments.file).write_text(found, "utf-8")
    show(arguments, {"file": arguments.file}, lambda: f"the page is in {arguments.file}")
    return DONE


def _demo_options() -> Options:
    yield "--largest", "largest extent (default: 2048; 8192 on a GPU)", {"type": values.whole}
    yield "--picture", "save the filtered photograph (PGM)", FILE


def demo(arguments: argparse.Namespace) -> int:
    """Compare real calls with other libraries; without a stored profile calibrate quickly."""
    from hetero.evaluation import demo

    values.check("--largest", arguments.largest, 16, 2**24)
    check_file("--picture", arguments.picture)
    rows = demo.demo(
        largest=arguments.largest,
        picture=arguments.picture,
        progress=progress_bar(),
        show=(lambda text: None) if arguments.json else terminal.line,
    )
    if arguments.json:
        show(arguments, {"calls": rows}, str)
    terminal.clear()
    return DONE


# -- accel, advise: scripts that know nothing of hetero --------------------------------------------

_FILE = "hetero-accel.pth"
# Python runs a line of such a file that begins with import, in each process.
_LINE = (
    "import os; os.environ.get('HETERO_ACCEL', '0') not in ('', '0') and "
    "__import__('importlib.util').util.find_spec('hetero') and "
    "__import__('hetero.accel').accel.enable()"
)
_ON = "Scripts of this environment run with hetero.accel where HETERO_ACCEL=1 is set: {}"
_OFF = "No script of this environment runs with hetero.accel by itself: there is no {}"


def _accel_options() -> Options:
    yield "--enable", "let HETERO_ACCEL=1 switch it on for all scripts of this environment", FLAG
    yield "--disable", "take that back", FLAG


def accel(arguments: argparse.Namespace) -> int:
    """Let scripts of this environment run with hetero.accel, or no longer."""
    path = Path(sysconfig.get_path("purelib")) / _FILE
    if arguments.enable and arguments.disable:
        raise ValueError("--enable and --disable exclude each other")
    if arguments.enable:
        paths.replace_file(path, f"{_LINE}\n".encode())  # not what a link there points to
        path.chmod(0o644)  # whatever the umask: each process of this environment runs it
    elif arguments.disable:
        path.unlink(missing_ok=True)
    found = {"enabled": path.exists(), "file": str(path)}
    show(arguments, found, lambda: (_ON if found["enabled"] else _OFF).format(path))
    return DONE


def _advise_options() -> Options:
    text = "another machine, by its profile: h100, h200, or a profile's file (default: this one)"
    yield "--on", text, PROFILE
    yield "-m", "the script is a module's name", FLAG | {"dest": "module"}
    yield "script", "a script that knows nothing of hetero", {"type": values.file}
    yield "arguments", "the script's own arguments and options", {"nargs": argparse.REMAINDER}


def advise(arguments: argparse.Namespace) -> int:
    """Run a script here, and predict how fast its calls would be on another machine."""
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
