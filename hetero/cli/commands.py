"""What each command does: a function of its name, which shows what it found; its docstring is its
help. It gives the exit code, or None for `DONE`."""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import sys
import sysconfig
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import hetero
from hetero import paths, terminal
from hetero.errors import NotPriced, PackageMissing, one_of
from hetero.imports import load
from hetero.terminal import progress_bar

DONE = 0
# A file that cannot be written, a device that fails; a calibration that other load spoiled, or with
# constants that are off by more than 100 % in the mean, which is used all the same.
FAILED = 1
# Unknown operation, device, method or profile, wrong dimensions; no command, which prints the help.
USAGE = 2
NO_CHOICE = 3  # no candidate could be chosen, as the printed reasons say
INTERRUPTED = 130
MOVEMENT = "movement"  # what bench takes as well as operations
PROBES = "camping", "banks", "coalescing"  # of `hetero.ladder.probe`


def show(
    arguments: argparse.Namespace, found: Any, text: Callable[[Any], str], draw: Any = None
) -> None:
    """Print what a command found, by ``text(found)`` or as JSON; where a picture is asked for,
    ``draw(found, picture)`` makes it."""
    terminal.clear()
    if arguments.json:
        print(json.dumps(found, indent=2), flush=True)
    else:
        print(text(found) if arguments.markdown else terminal.aligned(text(found)), flush=True)
    if draw is not None and arguments.plot is not None:
        report = load("hetero.evaluation.report")
        picture = report.figure()
        if picture is None:
            raise PackageMissing(report.INSTALL)
        draw(found, picture)
        picture.savefig(arguments.plot)


def _registry() -> Any:
    """The registry with all operations, which are loaded where a command needs them."""
    load("hetero.ops.functions")  # registers them
    return load("hetero.registry")


def _call(arguments: argparse.Namespace, name: str, dims: Iterable[int]) -> Any:
    """A call of an operation with its own options among the arguments; ValueError for another
    one's."""
    operation, every = _registry().operation(name), _registry().operations()
    names = {name for other in every for name in other.options}
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    for name in given.keys() - operation.options:
        of = ", ".join(other.function for other in every if name in other.options)
        raise ValueError(f"--{name} is an option of {of}, not of {operation.function}")
    return load("hetero.evaluation.calls").Call(operation, tuple(dims), arguments.dtype, given)


def _compile_first(timed: tuple[Any, ...]) -> None:
    """Compile what is about to be timed."""
    loops = load("hetero.host.loops")
    if any(row.loops for o in timed for row in _registry().lookup(o.name)):
        loops.ensure(loops.every())


def _chosen(arguments: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Arguments by their names, those that the command has."""
    return {name: getattr(arguments, name) for name in names if name in arguments}


# -- The machine -----------------------------------------------------------------------------------


def info(arguments: argparse.Namespace) -> None:
    """What is here: CPU, BLAS, devices, links, the profile, and what is missing."""
    progress_bar()(0.0, "trying the devices")
    found = hetero.machine()

    def text(found: Any) -> str:
        lines = [str(found) if arguments.verbose else found.brief()]
        if not found["profile"]["file"]:
            return lines[0]
        report = load("hetero.evaluation.report")
        constants, devices = load("hetero.evaluation.calls").known(None)
        lines += report.rates(constants)
        is_there = not all(x.get("is_host_cpu") for x in found["devices"].values())
        if is_there and constants.data["links"]:  # from which size on a device pays
            pays = report.pays(constants, devices)
            lines += [f"{title}: a GPU pays {at}" for title, at in pays]
        return "\n".join(lines)

    show(arguments, found, text)


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine and store its profile."""
    report, progress = load("hetero.evaluation.report"), progress_bar()
    given = arguments.quick, arguments.path, arguments.device, progress
    found = hetero.calibrate(*given, only=arguments.only)
    path = str(arguments.path or load("hetero.profile").default_path())
    result = {
        "path": path,
        "devices": found.devices,
        "residuals": found.residuals(),
        "not_acceptable": report.not_acceptable(found),
        "doubtful": found.doubtful(),
        "trusted": found.is_trusted,
    }
    used = f"HETERO_PROFILE={path} has programs use it" if arguments.path else "used from now on"
    end = f"the profile is stored in {path}; {used}{report.rough(found)}"
    if arguments.quick and result["not_acceptable"]:
        end += "; 'hetero calibrate' without --quick is more exact"
    show(arguments, result, lambda _: f"{report.calibration(found, arguments.verbose)}\n\n{end}")
    return DONE if found.is_trusted and not result["doubtful"] else FAILED


def compile_loops(arguments: argparse.Namespace) -> int:
    """Compile the CPU's loops now, not when a program first needs them."""
    _registry()
    loops = load("hetero.host.loops")
    os.environ.pop(loops.IN_CALLS, None)  # here it is asked for
    if not loops.can_be_kept():
        raise OSError("compiled loops cannot be kept: the cache directory cannot be written")
    names = loops.every()
    bar = progress_bar() if sys.stderr.isatty() else lambda _, text: print(text, file=sys.stderr)
    loops.ensure(names, bar)
    found = {name: loops.is_ready(name) for name in names}
    lines = [f"{name:<28} {'compiled' if ready else 'failed'}" for name, ready in found.items()]
    show(arguments, found, lambda _: "\n".join(lines))
    return DONE if all(found.values()) else FAILED


def report(arguments: argparse.Namespace) -> None:
    """What is known of a machine, as a page for a browser."""
    if arguments.ladder and arguments.profile is not None:
        raise ValueError("--ladder measures this machine, and --profile names another one")
    for name in arguments.ladder:
        load("hetero.ladder.families").family(name)  # or it says what there is
    module, progress = load("hetero.ladder.ladder"), progress_bar()
    ladders = [module.text(module.ladder(name, progress=progress)) for name in arguments.ladder]
    found = load("hetero.evaluation.report").page(arguments.profile, ladders)
    Path(arguments.file).write_text(found, "utf-8")
    show(arguments, {"file": arguments.file}, "the page is in {file}".format_map)


def demo(arguments: argparse.Namespace) -> None:
    """Compare real calls with other libraries; without a stored profile calibrate quickly."""
    given = _chosen(arguments, "largest", "picture")
    line = (lambda text: None) if arguments.json else terminal.line
    rows = load("hetero.evaluation.bench").demo(**given, progress=progress_bar(), show=line)
    if arguments.json:
        show(arguments, {"calls": rows}, str)


def completion(arguments: argparse.Namespace) -> None:
    """Print the script by which a shell completes hetero's commands and options."""
    script = load("shtab").complete(arguments.parser, arguments.shell)
    show(arguments, {"shell": arguments.shell, "script": script}, lambda found: found["script"])


# -- Choices ---------------------------------------------------------------------------------------


def explain(arguments: argparse.Namespace) -> None:
    """Price every candidate for a problem; run nothing."""
    call = _call(arguments, arguments.operation, arguments.dims)
    if arguments.cluster is not None:  # its file names the profile and all devices
        usual = {"on": "host", "device": None, "profile": None, "again": None}
        if others := [name for name, value in usual.items() if getattr(arguments, name) != value]:
            raise ValueError(f"--{others[0]} is not for --cluster: its file says what there is")
        cluster = load("hetero.evaluation.cluster")
        scaled = cluster.scaling(call, cluster.read(arguments.cluster), arguments.method)
        show(arguments, scaled, cluster.text, cluster.draw)
        return
    if arguments.plot is not None:
        raise ValueError("--plot draws what --cluster forecasts, which is not given")
    constants, devices = load("hetero.evaluation.calls").known(arguments.profile)
    if arguments.on != "host" and arguments.on not in devices:
        raise ValueError(one_of("--on", ("host", *devices), arguments.on))
    machine = load("hetero.calling.planner").Machine(constants, devices)
    place = arguments.device, arguments.method
    plan = call.plan(machine, arguments.on, *place)
    content, lines = plan.to_dict(), [plan.text(arguments.all)]
    if arguments.again is not None:
        keeping = load("hetero.moving.keeping")
        course = keeping.course(plan.problem, arguments.again, lambda p: machine.plan(p, *place))
        content["again"] = course and course.to_dict()
        lines += [f"{arguments.again} calls in a loop over the same operands", str(course)]
    show(arguments, content, lambda _: "\n".join(lines))
    if content["chosen"]:
        return
    functions = {o.name: o.function for o in _registry().operations()}
    known = ", ".join(
        f"{functions.get(name, name)} ({', '.join(sorted(dtypes))})"
        for name, dtypes in constants.dtypes().items()
    )
    raise NotPriced(
        f"no candidate could be chosen for {call.operation.function} {plan.problem.dtype}; "
        f"the profile {constants.name!r} has constants for: {known or 'nothing'}"
    )


def verify(arguments: argparse.Namespace) -> int:
    """Measure every candidate of random problems."""
    module = load("hetero.evaluation.bench")
    every = tuple(map(_registry().operation, arguments.operation or module.USUAL))
    if arguments.on != "host" and not load("hetero.devices").get(arguments.on).is_cuda:
        raise ValueError(f"--on must be 'host' or a CUDA device, got {arguments.on!r}")
    _compile_first(every)
    given = _chosen(arguments, "on", "count", "seconds", "seed", "largest")
    rows = module.verify(every, **given, progress=progress_bar())
    show(arguments, module.summary(rows), module.text_of_choices)
    return DONE if rows else NO_CHOICE


def transfer(arguments: argparse.Namespace) -> None:
    """Is it worth moving this to a GPU? The copies compared with the work there."""
    module = load("hetero.evaluation.transfer")
    given = {"device": arguments.device, "named": arguments.profile}
    found = module.transfer(arguments.up, arguments.down, _work(arguments), **given)
    show(arguments, found, module.text, module.draw)


def _work(arguments: argparse.Namespace) -> Any:
    """What ``--case`` or ``--work`` says: seconds, or a call; ValueError for anything else."""
    words = arguments.work or ()
    if arguments.case is not None:
        if words:
            raise ValueError("--case and --work both say what is done there: one is enough")
        matmul = _registry().operation("matmul")
        cases = load("hetero.evaluation.problems").of(matmul).cases
        single = {name: case for name, case in cases.items() if len(case.sizes) == 1}
        if arguments.case not in single:
            raise ValueError(one_of("--case", single, arguments.case))
        case = single[arguments.case]
        return load("hetero.evaluation.calls").Call(matmul, case.sizes[0], case.dtype)
    with contextlib.suppress(ValueError):
        seconds = tuple(map(float, words))
        if len(seconds) <= 2 and all(0.0 < each < math.inf for each in seconds):
            return seconds
        words = ()
    if not words:
        raise ValueError(
            "--work must be seconds above 0, on the CPU and perhaps on the device, or an "
            f"operation with its dimensions, got {' '.join(arguments.work)!r}"
        )
    name, *sizes = words
    if not all(map(str.isdecimal, sizes)):
        raise ValueError(f"dimensions must be whole numbers, got {' '.join(sizes)!r}")
    call = _call(arguments, name, map(int, sizes))
    call.problem()  # or it says what the operation takes
    return call


# -- Times of methods and kernels ------------------------------------------------------------------


def bench(arguments: argparse.Namespace) -> None:
    """Time every method, and the libraries that are installed."""
    module, name = load("hetero.evaluation.bench"), arguments.operation
    every = _registry().operations()
    names = [o.function for o in every] + [MOVEMENT]
    if name not in (*names, *(o.name for o in every)):
        raise ValueError(one_of("operation", names, name))
    timed = None if name == MOVEMENT else _registry().operation(name)
    of = load("hetero.evaluation.problems").of
    taken = ["dtype", "cases", *of(timed).options] if timed else ["device"]
    for option in ("dtype", "device", "order", "cases"):
        if getattr(arguments, option) and option not in taken:
            having = ", ".join(f"--{one}" for one in taken)
            raise ValueError(f"hetero bench {name} has no --{option}; it has {having}")
    given = {"device": arguments.device, "progress": progress_bar()}
    if timed is None:
        show(arguments, module.movement(**given), module.text)
        return
    _compile_first((timed,))
    given |= {"order": arguments.order or "C", "cases": arguments.cases}
    rows = module.bench(timed, arguments.dtype, **given)
    show(arguments, rows, load("hetero.evaluation.comparing").text)


def ladder(arguments: argparse.Namespace) -> None:
    """Each kernel of an operation from the first idea to the best: time, rates, gain."""
    module = load("hetero.ladder.ladder")
    _on_ladder(arguments, module.ladder, arguments.operation, module.text, module.draw)


def sweep(arguments: argparse.Namespace) -> None:
    """Time a kernel with every legal shape of its blocks; compare its default shape."""
    module, of = load("hetero.ladder.ladder"), arguments.operation
    text = partial(module.text_of_blocks, every=arguments.all)
    _on_ladder(arguments, module.sweep, of, text, module.draw_blocks)


def probe(arguments: argparse.Namespace) -> None:
    """What a pattern of access to memory costs: camping, banks, coalescing."""
    module = load("hetero.ladder.probe")
    _on_ladder(arguments, module.probe, arguments.probe, module.text, module.draw)


def _on_ladder(arguments: argparse.Namespace, measured: Any, of: str, text: Any, draw: Any) -> None:
    options = "sizes", "dims", "filter", "dtype", "device", "threads", "limit", "method"
    found = measured(of, **_chosen(arguments, *options), progress=progress_bar())
    show(arguments, found, text, draw)


# -- Scripts that know nothing of hetero -----------------------------------------------------------

_FILE = "hetero-accel.pth"
# Python runs a line of such a file that begins with import, in each process.
_LINE = (
    "import os; os.environ.get('HETERO_ACCEL', '0') not in ('', '0') and "
    "__import__('importlib.util').util.find_spec('hetero') and "
    "__import__('hetero.accel').accel.enable()"
)
_ON = "Scripts of this environment run with hetero.accel where HETERO_ACCEL=1 is set: {}"
_OFF = "No script of this environment runs with hetero.accel by itself: there is no {}"


def accel(arguments: argparse.Namespace) -> None:
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
    show(arguments, found, lambda _: (_ON if path.exists() else _OFF).format(path))


def advise(arguments: argparse.Namespace) -> int:
    """Run a script here, and predict how fast its calls would be on another machine."""
    advice = load("hetero.accel.advice")
    if not arguments.module and not Path(arguments.script).exists():
        raise ValueError(f"there is no file {arguments.script}")
    command = [arguments.script, *arguments.arguments]
    found, text, ending = advice.advise(command, arguments.on, arguments.module)
    show(arguments, found, lambda _: text)
    if isinstance(ending, SystemExit):
        raise ending
    if ending is not None:
        sys.excepthook(type(ending), ending, ending.__traceback__)
        return FAILED
    return DONE
