"""Commands that time methods and kernels: bench, ladder, sweep, probe; each gives an exit code."""

from __future__ import annotations

import argparse
from typing import Any

from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE, DTYPES, FILE, FLAG, Options, show
from hetero.errors import one_of
from hetero.terminal import progress_bar

MOVEMENT = "movement"  # what bench takes as well as operations

# -- bench -----------------------------------------------------------------------------------------


def _bench_options() -> Options:
    from hetero.evaluation import problems

    operations = values.operations()
    names = ", ".join(o.function for o in operations)
    text = f"{names}, {MOVEMENT} (copies between host and device)"
    yield "operation", text, {"metavar": "OPERATION"}
    dtypes: dict[str, list[str]] = {}
    for operation in operations:
        dtypes.setdefault(problems.of(operation).dtype, []).append(operation.function)
    usual = "; ".join(f"{dtype} of {', '.join(which)}" for dtype, which in dtypes.items())
    yield "--dtype", f"default: {usual}", DTYPES
    device, order = (
        " and ".join(o.function for o in operations if option in problems.of(o).options)
        for option in ("device", "order")
    )
    text = (
        f"of {device} (default: cuda:0, or cpu without a GPU) and of {MOVEMENT} (default: cuda:0); "
        "the others run on all"
    )
    yield "--device", text
    text = f"the matrix of {order} by rows (C, the default) or by columns (F)"
    yield "--order", text, {"choices": ("C", "F")}
    cases = ((o.function, problems.of(o).cases) for o in operations)
    having = "; ".join(f"{', '.join(known)} of {name}" for name, known in cases if known)
    yield "--cases", f"sizes that others measured: {having}", {"metavar": "NAME"}


def bench(arguments: argparse.Namespace) -> int:
    """Time every method, and the libraries that are installed."""
    from hetero import registry
    from hetero.evaluation import bench, comparing, problems

    moves = arguments.operation == MOVEMENT
    names = [o.function for o in registry.operations()] + [MOVEMENT]
    if arguments.operation not in (*names, *(o.name for o in registry.operations())):
        raise ValueError(one_of("operation", names, arguments.operation))
    operations = registry.operations() if moves else (registry.operation(arguments.operation),)
    taken = ["device"] if moves else ["dtype", "cases", *problems.of(*operations).options]
    for option in ("dtype", "device", "order", "cases"):
        if getattr(arguments, option) and option not in taken:
            having = ", ".join(f"--{one}" for one in taken)
            raise ValueError(
                f"hetero bench {arguments.operation} has no --{option}; it has {having}"
            )
    given = {"device": arguments.device, "progress": progress_bar()}
    if moves:
        found = bench.movement(**given)
        show(arguments, found, lambda: bench.text(found))
        return DONE
    values.compile_first(operations)
    given |= {"order": arguments.order or "C", "cases": arguments.cases}
    rows = bench.bench(*operations, arguments.dtype, **given)
    show(arguments, rows, lambda: comparing.text(rows))
    return DONE


# -- ladder, sweep, probe --------------------------------------------------------------------------


def _ladder_options() -> Options:
    yield from _common("such as cuda:0, or cpu")
    text = (
        "extents of squares; of images and grids likewise, of k-means rows (default: three, small "
        "ones without a GPU)"
    )
    yield "--sizes", text, _SIZES
    text = "with --device cpu: time loops that have several threads on each of these numbers"
    yield "--threads", text, _SIZES | {"default": ()}
    text = "leave out what takes longer than this, in seconds (default: 1 on a GPU, else 0.5)"
    yield "--limit", text, {"type": float, "metavar": "SECONDS"}


def _sweep_options() -> Options:
    yield from _common("such as cuda:0")
    yield "--method", "a rung of the ladder that can have blocks of other shapes"
    text = (
        "as of ladder (default: 4096, 128 without a GPU, where each of some hundred blocks takes a "
        "fraction of a second to compile)"
    )
    yield "--sizes", text, _SIZES
    yield "--all", "print every block that runs, not the fastest ones alone", FLAG


def _probe_options() -> Options:
    from hetero.ladder.probe import PROBES

    text = "; ".join(f"{name}: {one.summary}" for name, one in PROBES.items())
    yield "probe", text, {"choices": PROBES, "metavar": "PROBE"}
    yield "--device", "such as cuda:0 (default: the first GPU, else the first OpenCL device)"
    yield "--plot", "save a picture, by matplotlib: time over stride", FILE


def _common(device: str) -> Options:
    """What ladder and sweep share."""
    from hetero.ladder.families import FAMILIES

    yield "operation", ", ".join(FAMILIES), {"metavar": "OPERATION"}
    yield "--dtype", "default: as for bench", DTYPES
    yield "--device", f"{device} (default: the first GPU, else the first OpenCL device)"
    forms = "; ".join(f"{','.join(of.dims)} of {name}" for name, of in FAMILIES.items())
    text = f"one size by its dimensions, in place of --sizes: {forms}"
    yield "--dims", text, _SIZES | {"metavar": "N,N,N"}
    yield "--filter", "extent of a convolution's filter (default: 15)", {"type": int}
    yield "--plot", "save a picture, by matplotlib", FILE


def _whole(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers, such as 512,4096, got {text[:40]!r}"
        ) from None


_SIZES = {"type": _whole, "metavar": "N,N"}


def ladder(arguments: argparse.Namespace) -> int:
    """Each kernel of an operation from the first idea to the best: time, rates, gain."""
    from hetero.ladder import ladder

    own = {"threads": arguments.threads, "limit": arguments.limit}
    found = _measured(arguments, ladder, arguments.operation, **own, **_sizes(arguments))
    show(arguments, found, lambda: ladder.text(found))
    return values.plot(arguments, found, ladder)


def sweep(arguments: argparse.Namespace) -> int:
    """Time a kernel with every legal shape of its blocks; how far its own is off."""
    from hetero.ladder import sweep

    if arguments.method is None:
        raise ValueError("--method names the rung to sweep, and is not given")
    given = arguments.operation, arguments.method
    found = _measured(arguments, sweep, *given, **_sizes(arguments))
    show(arguments, found, lambda: sweep.text(found, arguments.all))
    return values.plot(arguments, found, sweep)


def probe(arguments: argparse.Namespace) -> int:
    """What a pattern of access to memory costs: camping, banks, coalescing."""
    from hetero.ladder import probe

    found = _measured(arguments, probe, arguments.probe)
    show(arguments, found, lambda: probe.text(found))
    return values.plot(arguments, found, probe)


def _sizes(arguments: argparse.Namespace) -> dict[str, Any]:
    return {name: getattr(arguments, name) for name in ("sizes", "dims", "filter", "dtype")}


def _measured(arguments: argparse.Namespace, module: Any, *given: Any, **more: Any) -> Any:
    """What the module's function of its name finds."""
    values.check_picture(arguments.plot)
    measure = getattr(module, module.__name__.rpartition(".")[2])
    progress = progress_bar() or terminal.Lines()
    return measure(*given, device=arguments.device, progress=progress, **more)
