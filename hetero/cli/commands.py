"""What the commands do, by their parsed arguments; each returns its exit code."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hetero
from hetero import terminal
from hetero.cli.values import DONE, FAILED, NO_CHOICE
from hetero.errors import ProfileError
from hetero.terminal import progress_bar

MOVEMENT = "movement"  # what bench takes beside operations


def _check_file(option: str, path: str, folder: bool = True) -> None:
    """Raise OSError, before anything is measured, if the file cannot be written.

    Without ``folder`` whoever writes it makes its folder.
    """
    target = Path(path)
    if folder and not target.parent.is_dir():
        raise FileNotFoundError(f"there is no folder for {option} {path}")
    if target.is_dir():
        raise IsADirectoryError(f"{option} must name a file, {path} is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{option}: {path} cannot be written")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _check(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise ValueError(f"{option} must be from {least:g} to {most:g}, got {value}")


def info(arguments: argparse.Namespace) -> int:
    """What is here."""
    if (bar := progress_bar()) is not None:
        bar(0.0, "trying the devices")
    found = hetero.machine()
    terminal.clear()
    if arguments.json:
        _print_json(found)
    else:
        print(found)
    return DONE


def calibrate(arguments: argparse.Namespace) -> int:
    """Measure this machine and store its profile."""
    from hetero.calibration.calibrate import outcome
    from hetero.evaluation import report
    from hetero.profile import default_path

    if arguments.path is not None:
        _check_file("--path", arguments.path, folder=False)
    with _ended_like_an_interrupt():
        found, is_new = outcome(
            arguments.quick,
            arguments.path,
            arguments.device,
            progress_bar() or terminal.Lines(),
            kernels=arguments.kernels,
            only=arguments.only,
            fresh=arguments.fresh,
        )
    terminal.clear()
    path = str(arguments.path or default_path())
    if arguments.json:
        _print_json(
            {
                "path": path,
                "devices": found.devices,
                "residuals": found.residuals(),
                "not_acceptable": report.not_acceptable(found),
                "doubtful": report.doubtful(found),
                "written": is_new,
                "trusted": found.is_trusted,
            }
        )
    else:
        print(report.calibration(found))
        print(f"\n{'written to' if is_new else 'not replaced, as it is better:'} {path}")
    return DONE if is_new and found.is_trusted else FAILED


@contextlib.contextmanager
def _ended_like_an_interrupt() -> Iterator[None]:
    """SIGTERM, by which batch systems end a job, lets what is measured be kept."""

    def end(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    try:
        before = signal.signal(signal.SIGTERM, end)
    except ValueError:  # not in the main thread
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def explain(arguments: argparse.Namespace) -> int:
    """Price every candidate for a problem."""
    from hetero import devices as backends
    from hetero import profile, registry
    from hetero.arrays import Spec
    from hetero.calling import planner
    from hetero.profile import inventory

    operation = registry.operation(arguments.operation)
    options = _options(operation, arguments)
    dims = tuple(arguments.dims)
    problem = operation.from_dims(dims, arguments.dtype, arguments.on, **options)
    if arguments.profile is None:
        backends.proven()
        constants, devices = profile.current(), inventory.devices()
    else:
        try:
            constants = profile.named(arguments.profile)
        except (ProfileError, OSError) as error:
            raise ValueError(f"--profile: {error}") from None
        devices = constants.machine() or inventory.devices()
    if arguments.on != "host" and arguments.on not in devices:
        names = ", ".join(map(repr, ("host", *devices)))
        raise ValueError(f"--on must be one of {names}, got {arguments.on!r}")
    placed = arguments.device, arguments.method
    machine = planner.OtherMachine(constants, devices)
    if operation.plan is None:
        plan = machine.plan(problem, *placed)
    else:
        operands = tuple(Spec(o.shape, o.dtype, on=o.location) for o in problem.inputs)
        plan = operation.plan(operands, options, *placed, machine)
    if arguments.json:
        _print_json(plan.to_dict())
    else:
        print(plan)
        kinds = dict.fromkeys(info["kind"] for info in devices.values())
        kinds = [kind for kind in kinds if registry.rungs(operation.name, kind)]
        if kinds and arguments.method is None:
            where, name = " and ".join(kinds), operation.function
            print(f"   rungs on {where} are taken by name only: hetero ladder {name}")
        if str(arguments.device).endswith(":*"):
            alike = [n for n, i in devices.items() if i["kind"] == arguments.device[:-2]]
            if len(alike) == 1:
                print(f"   {arguments.device} is {alike[0]} alone: there is no other of that kind")
    if plan.to_dict()["chosen"]:
        return DONE
    print(f"hetero: {_what_it_covers(constants, problem)}", file=sys.stderr)
    return NO_CHOICE


def _options(operation: Any, arguments: argparse.Namespace) -> dict[str, str]:
    """The operation's own options among the arguments; ValueError for another one's."""
    from hetero import registry

    having: dict[str, list[str]] = {}
    for other in registry.operations():
        for name in other.options:
            having.setdefault(name, []).append(other.function)
    given = {name: value for name in having if (value := getattr(arguments, name)) is not None}
    for name in given:
        if name not in operation.options:
            raise ValueError(
                f"--{name} is an option of {', '.join(having[name])}, not of {arguments.operation}"
            )
    return given


def _what_it_covers(constants: Any, problem: Any) -> str:
    known = ", ".join(
        f"{operation} ({', '.join(sorted(dtypes))})"
        for operation, dtypes in constants.dtypes().items()
    )
    return (
        f"no candidate could be chosen for {problem.operation} {problem.dtype}; "
        f"the profile {constants.name!r} has constants for: {known or 'nothing'}"
    )


def compile_loops(arguments: argparse.Namespace) -> int:
    """Compile the CPU's loops for later processes."""
    import hetero.ops  # noqa: F401  # registers them
    from hetero.host.compiled import loop_compiler, loops

    os.environ.pop(loops.OFF, None)  # here it is asked for
    if not loops.can_be_made():
        raise OSError("compiled loops cannot be kept: the cache directory cannot be written")
    names = loops.every()
    if (bar := progress_bar()) is not None:
        bar(0.0, f"compiling {sum(not loops.is_ready(name) for name in names)} families of loops")
    loop_compiler.ensure(names)
    terminal.clear()
    found = {name: loops.is_ready(name) for name in names}
    if arguments.json:
        _print_json(found)
    else:
        for name, ready in found.items():
            print(f"{name:<28} {'compiled' if ready else 'failed'}")
    return DONE if all(found.values()) else FAILED


def _compile_first(operations: tuple[Any, ...]) -> None:
    """Compile what is about to be timed."""
    from hetero import registry
    from hetero.host.compiled import loop_compiler, loops

    if any(row.loops for o in operations for row in registry.lookup(o.name)):
        loop_compiler.ensure(loops.every())


def verify(arguments: argparse.Namespace) -> int:
    """Measure every candidate of random problems."""
    from hetero import devices as backends
    from hetero import registry
    from hetero.evaluation import latest, report, verify
    from hetero.evaluation import links as links_of

    named = tuple(registry.operation(name) for name in arguments.operation)
    if arguments.on != "host" and not backends.get(arguments.on).traits.cuda_libraries:
        raise ValueError(f"--on must be 'host' or a CUDA device, got {arguments.on!r}")
    _check("--largest", arguments.largest, 8, 2**24)
    _check("--count", arguments.count, 0, 10**6)
    _check("--seconds", arguments.seconds, 0, 10**6)
    progress = progress_bar()
    operations = named or verify.unless_told()
    _compile_first(operations)
    rows = verify.verify(
        operations,
        on=arguments.on,
        count=arguments.count,
        seconds=arguments.seconds,
        seed=arguments.seed,
        largest=arguments.largest,
        progress=terminal.part(progress, 0.0, 0.9),
    )
    links = links_of.verified(progress) if arguments.on == "host" else {}
    found = {**verify.summary(rows), "links": links}
    if rows:
        names = ", ".join(operation.function for operation in operations)
        worst = report.worst_choices(rows)
        latest.keep(latest.VERIFY, f"{names}, on {arguments.on}", {**found, "worst_choices": worst})
    terminal.clear()
    if arguments.json:
        _print_json(found)
    else:
        print(report.verification(found, rows))
    return DONE if rows else NO_CHOICE


def bench(arguments: argparse.Namespace) -> int:
    """Time every method, and other libraries."""
    from hetero import registry
    from hetero.evaluation import bench, report
    from hetero.ops import benchmark

    if arguments.timeline is not None:
        return _timeline(arguments)
    if arguments.operation == MOVEMENT:
        return _bench_movement(arguments)
    operation = registry.operation(arguments.operation)
    _compile_first((operation,))
    rows = bench.bench(
        operation,
        arguments.dtype,
        device=arguments.device,
        order=arguments.order,
        progress=progress_bar(),
    )
    terminal.clear()
    if arguments.json:
        _print_json(rows)
    else:
        print(report.benchmarks(rows, benchmark.of(operation, "columns")))
    return DONE


def _bench_movement(arguments: argparse.Namespace) -> int:
    from hetero import registry
    from hetero.evaluation import movement, report

    movement.place(arguments.device)  # or there is nothing to compile for
    _compile_first(registry.operations())
    found = movement.movement(arguments.dtype, device=arguments.device, progress=progress_bar())
    terminal.clear()
    if arguments.json:
        _print_json(found)
    else:
        print(report.movement(found))
    return DONE


def _timeline(arguments: argparse.Namespace) -> int:
    from hetero.evaluation import movement, timeline

    if arguments.operation != MOVEMENT:
        raise ValueError(f"--timeline is of {MOVEMENT}, not of {arguments.operation}")
    _check_file("--timeline", arguments.timeline)
    device = movement.place(arguments.device)
    title, spans = timeline.pictured(device)
    Path(arguments.timeline).write_text(timeline.svg(title, spans), "utf-8")
    if arguments.json:
        _print_json({"title": title, "spans": [span._asdict() for span in spans]})
    else:
        print(f"{title}\n{len(spans)} spans in {arguments.timeline}")
    return DONE


def demo(arguments: argparse.Namespace) -> int:
    """Calibrate quickly, run real calls, compare."""
    from hetero.evaluation import demo

    _check("--largest", arguments.largest, 16, 2**24)
    if arguments.picture is not None:
        _check_file("--picture", arguments.picture)
    rows, found = demo.demo(
        largest=arguments.largest,
        picture=arguments.picture,
        progress=progress_bar(),
        show=(lambda text: None) if arguments.json else terminal.line,
    )
    terminal.clear()
    if arguments.json:
        _print_json({"calls": rows, **found})
    return DONE
