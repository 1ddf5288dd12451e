"""Commands about choices: explain, verify, transfer; each returns an exit code."""

from __future__ import annotations

import argparse
import math
import sys
from typing import Any

from hetero.cli import values
from hetero.cli.values import DONE, FILE, FLAG, NO_CHOICE, PROFILE, Options, show
from hetero.errors import one_of
from hetero.terminal import progress_bar

_DTYPE = {"type": values.dtype, "default": "float64"}
_MOST_AGAIN = 100_000  # calls, which take three seconds to count

# -- explain ---------------------------------------------------------------------------------------


def _explain_options() -> Options:
    from hetero import registry

    whole = {"type": values.whole}
    yield "operation", values.forms()
    yield "dims", "extents, 1 or more each", whole | {"nargs": "+", "metavar": "DIM"}
    yield "--dtype", "of the operands (default: float64)", _DTYPE
    yield from _own_options()
    yield "--on", "where the operands lie: host, cuda:0, ... (default: host)", {"default": "host"}
    yield "--device", "only this device, such as cpu or cuda:0"
    methods = (row.method for o in values.operations() for row in registry.lookup(o.name))
    yield "--method", f"only this method: {', '.join(dict.fromkeys(methods))}"
    text = "also list what is not taken unless it is named: OpenCL on this machine's CPU"
    yield "--all", text, FLAG
    text = "answer for another machine, by its constants: tesla-t10, h100, h200, h100x2, h200x2, "
    yield "--profile", f"{text}or a profile's file", PROFILE
    text = "what this number of calls takes in a loop over the same large operands"
    yield "--again", text, whole | {"metavar": "CALLS"}
    text = "forecast an iteration of a solve on the cluster that this JSON file describes"
    yield "--cluster", text, FILE
    yield "--plot", "with --cluster: draw strong and weak scaling, by matplotlib", FILE


def _own_options() -> Options:
    """Those that operations have."""
    operations = values.operations()
    for name in dict.fromkeys(name for o in operations for name in o.options):
        texts = (
            f"of {o.function}: {', '.join(o.options[name][0])}; {o.options[name][1]}"
            for o in operations
            if name in o.options
        )
        yield f"--{name}", " | ".join(texts)


def explain(arguments: argparse.Namespace) -> int:
    """Price every candidate for a problem; run nothing."""
    from hetero import registry
    from hetero.calling.planner import OtherMachine
    from hetero.evaluation import calls

    values.check("--again", arguments.again, 1, _MOST_AGAIN)
    operation = registry.operation(arguments.operation)
    options = _options(operation, arguments)
    if arguments.cluster is not None:
        return _on_cluster(calls.Call(operation, tuple(arguments.dims), arguments.dtype), arguments)
    if arguments.plot is not None:
        raise ValueError("--plot draws what --cluster forecasts, which is not given")
    constants, devices = calls.known(arguments.profile)
    if arguments.on != "host" and arguments.on not in devices:
        raise ValueError(one_of("--on", ("host", *devices), arguments.on))
    dims = tuple(arguments.dims)
    problem = operation.from_dims(dims, arguments.dtype, arguments.on, **options)
    machine = OtherMachine(constants, devices)
    plan = calls.plan(operation, problem, machine, arguments.device, arguments.method, options)
    notes, content = list[str](), plan.to_dict()
    alike = [n for n, i in devices.items() if f"{i['kind']}:*" == arguments.device]
    if len(alike) == 1:
        notes = [f"   {arguments.device} is {alike[0]} alone: there is no other of that kind"]
    if arguments.again is not None:
        from hetero.moving import again

        place = arguments.device, arguments.method
        course = again.course(plan.problem, arguments.again, lambda p: machine.plan(p, *place))
        content["again"] = course and course.to_dict()
        notes += [f"{arguments.again} calls in a loop over the same operands", str(course)]
    show(arguments, content, lambda: "\n".join([plan.text(arguments.all), *notes]))
    if content["chosen"]:
        return DONE
    functions = {o.name: o.function for o in registry.operations()}
    known = ", ".join(
        f"{functions.get(name, name)} ({', '.join(sorted(dtypes))})"
        for name, dtypes in constants.dtypes().items()
    )
    print(
        f"hetero: no candidate could be chosen for {operation.function} {problem.dtype}; "
        f"the profile {constants.name!r} has constants for: {known or 'nothing'}",
        file=sys.stderr,
    )
    return NO_CHOICE


def _on_cluster(call: Any, arguments: argparse.Namespace) -> int:
    """Forecast a solve on a cluster; its file names the profile and all devices."""
    from hetero.evaluation import cluster

    usual = {"on": "host", "device": None, "profile": None, "again": None}
    if others := [name for name, value in usual.items() if getattr(arguments, name) != value]:
        raise ValueError(f"--{others[0]} is not for --cluster: its file says what there is")
    values.check_picture(arguments.plot)
    scaled = cluster.scaling(call, cluster.read(arguments.cluster), arguments.method)
    show(arguments, scaled, lambda: cluster.text(scaled))
    return values.plot(arguments, scaled, cluster)


def _options(operation: Any, arguments: argparse.Namespace) -> dict[str, str]:
    """The operation's own options among the arguments; ValueError for another one's."""
    every = values.operations()
    names = dict.fromkeys(name for other in every for name in other.options)
    given = {name: value for name in names if (value := getattr(arguments, name)) is not None}
    for name in given:
        if name not in operation.options:
            having = ", ".join(other.function for other in every if name in other.options)
            raise ValueError(f"--{name} is an option of {having}, not of {operation.function}")
    return given


# -- verify ----------------------------------------------------------------------------------------


def _verify_options() -> Options:
    from hetero.evaluation import verify

    whole = {"type": values.whole}
    every = ", ".join(o.function for o in values.operations())
    default = " and ".join(verify.USUAL)
    yield "operation", f"{every} (default: {default})", {"nargs": "*"}
    yield "--on", "where the operands lie: host, cuda:0", {"default": "host"}
    yield "--count", "problems for each operation (default: 100)", whole | {"default": 100}
    text = "stop drawing after this time (default: 60)"
    yield "--seconds", text, {"type": float, "default": 60.0}
    yield "--seed", "of the random problems (default: 0)", whole | {"default": 0}
    yield "--largest", "largest extent of a matrix (default: 4096; 16384 on a GPU)", whole


def verify(arguments: argparse.Namespace) -> int:
    """Measure every candidate of random problems."""
    from hetero import devices as backends
    from hetero import registry
    from hetero.evaluation import verify

    operations = tuple(map(registry.operation, arguments.operation or verify.USUAL))
    if arguments.on != "host" and not backends.get(arguments.on).is_cuda:
        raise ValueError(f"--on must be 'host' or a CUDA device, got {arguments.on!r}")
    values.check("--largest", arguments.largest, 8, 2**24)
    values.check("--count", arguments.count, 0, 10**6)
    values.check("--seconds", arguments.seconds, 0, 10**6)
    values.compile_first(operations)
    names = "on", "count", "seconds", "seed", "largest"
    given = {name: getattr(arguments, name) for name in names}
    rows = verify.verify(operations, **given, progress=progress_bar())
    found = verify.summary(rows)
    show(arguments, found, lambda: verify.text(found))
    return DONE if rows else NO_CHOICE


# -- transfer --------------------------------------------------------------------------------------


def _transfer_options() -> Options:
    one = {"nargs": "?", "type": _bytes}
    text = "bytes to the device, such as 64MiB or 1e9 (default: the operands of --work)"
    yield "up", text, one | {"metavar": "UP"}
    text = "bytes back from it, 0 or more (default: the result of --work)"
    yield "down", text, one | {"metavar": "DOWN"}
    text = (
        "what is done there: seconds on the CPU and, where they are known, on the device; or "
        f"{values.forms()}"
    )
    yield "--work", text, {"nargs": "+", "metavar": ("SECONDS|OPERATION", "SECONDS|DIMS")}
    text = "in place of --work: the product of a report, such as blog (20.8 MB up, 4.8 MB down)"
    yield "--case", text, {"metavar": "NAME"}
    yield "--dtype", "of the operation (default: float64)", _DTYPE
    yield "--device", "such as cuda:0 (default: the first GPU)"
    text = "predict for another machine: tesla-t10, h100, h200, h100x2, h200x2, or a profile's file"
    yield "--profile", text, PROFILE
    yield from _own_options()
    text = (
        "save a picture, by matplotlib: time over size for the CPU, and for the device with and "
        "without the copies; without an operation, of the copies over bytes"
    )
    yield "--plot", text, FILE


def _bytes(text: str) -> int:
    from hetero.pricing.places import parsed_limit

    if text.strip() == "0":
        return 0
    try:
        return parsed_limit(text, "it")
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be a number of bytes, such as 64MiB, 1e9 or 0, got {text[:40]!r}"
        ) from None


def transfer(arguments: argparse.Namespace) -> int:
    """Is it worth moving this to a GPU? The copies compared with the work there."""
    from hetero.evaluation import transfer

    values.check_picture(arguments.plot)
    work = _work(arguments) if arguments.case is None else _named(arguments)
    given = {"device": arguments.device, "named": arguments.profile}
    found = transfer.transfer(arguments.up, arguments.down, work, **given)
    show(arguments, found, lambda: transfer.text(found))
    return values.plot(arguments, found, transfer)


def _named(arguments: argparse.Namespace) -> Any:
    """What ``--case`` says: cases of bench that are a single call."""
    from hetero.evaluation.calls import Call
    from hetero.evaluation.problems import of

    if arguments.work is not None:
        raise ValueError("--case and --work both say what is done there: one is enough")
    calls = {
        name: Call(operation, named.sizes[0], named.dtype)
        for operation in values.operations()
        for name, named in of(operation).cases.items()
        if len(named.sizes) == 1
    }
    if arguments.case not in calls:
        raise ValueError(one_of("--case", calls, arguments.case))
    return calls[arguments.case]


def _work(arguments: argparse.Namespace) -> Any:
    """What ``--work`` says; ValueError where it makes no sense."""
    from hetero import registry
    from hetero.evaluation.calls import Call

    if arguments.work is None:
        return ()
    first, *rest = arguments.work
    seconds = [_number(word) for word in arguments.work]
    if seconds[0] is not None:
        if len(seconds) > 2 or any(s is None or not 0.0 < s < math.inf for s in seconds):
            raise ValueError(
                "--work must be seconds above 0, on the CPU and perhaps on the device, or an "
                f"operation with its dimensions, got {' '.join(arguments.work)!r}"
            )
        return tuple(seconds)
    operation = registry.operation(first)
    dims = [_number(word) for word in rest]
    if not all(size is not None and size.is_integer() for size in dims):
        raise ValueError(f"dimensions must be whole numbers, got {' '.join(rest)!r}")
    own = _options(operation, arguments)
    call = Call(operation, tuple(int(size) for size in dims), arguments.dtype, own)
    call.problem()  # or it says what the operation takes
    return call


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
