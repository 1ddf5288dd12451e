"""Commands that time methods and kernels: bench, ladder, sweep, probe; each gives an exit code."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE, DTYPES, Parser, add_file, show
from hetero.errors import one_of
from hetero.terminal import progress_bar

MOVEMENT = "movement"  # what bench takes as well as operations

# -- bench -----------------------------------------------------------------------------------------


def bench_options(sub: Parser) -> None:
    """Add those of bench."""
    from hetero.ops import benchmark

    operations = values.operations()
    names = ", ".join(o.function for o in operations)
    text = f"{names}, {MOVEMENT} (copies between host and device, and calls on host operands)"
    sub.add_argument("operation", metavar="OPERATION", help=text)
    dtypes: dict[str, list[str]] = {}
    for operation in operations:
        dtypes.setdefault(benchmark.dtype_of(operation), []).append(operation.function)
    usual = "; ".join(f"{dtype} of {', '.join(which)}" for dtype, which in dtypes.items())
    sub.add_argument("--dtype", choices=DTYPES, help=f"default: {usual}")
    having = {
        option: " and ".join(
            o.function for o in operations if option in benchmark.of(o, "OPTIONS", ())
        )
        for option in ("device", "order")
    }
    text = (
        f"of {having['device']} (default: cuda:0, or cpu without a GPU) and of {MOVEMENT} "
        "(default: cuda:0); the others run on all"
    )
    sub.add_argument("--device", help=text)
    text = f"the matrix of {having['order']} by rows (C, the default) or by columns (F)"
    sub.add_argument("--order", choices=("C", "F"), help=text)
    having = "; ".join(
        f"{', '.join(known)} of {o.function}"
        for o in operations
        if (known := benchmark.of(o, "CASES", {}))
    )
    sub.add_argument("--cases", metavar="NAME", help=f"sizes that others measured: {having}")


def bench(arguments: argparse.Namespace) -> int:
    """Time every method, and other libraries."""
    from hetero import registry
    from hetero.evaluation import bench, report
    from hetero.ops import benchmark

    moves = arguments.operation == MOVEMENT
    names = [o.function for o in registry.operations()] + [MOVEMENT]
    if arguments.operation not in (*names, *(o.name for o in registry.operations())):
        raise ValueError(one_of("operation", names, arguments.operation))
    operations = registry.operations() if moves else (registry.operation(arguments.operation),)
    options = ["device"] if moves else ["cases", *benchmark.of(*operations, "OPTIONS", ())]
    taken = ["dtype", *options]
    for option in ("dtype", "device", "order", "cases"):
        if getattr(arguments, option) and option not in taken:
            having = ", ".join(f"--{one}" for one in taken)
            raise ValueError(
                f"hetero bench {arguments.operation} has no --{option}; it has {having}"
            )
    given = {"device": arguments.device, "progress": progress_bar()}
    if moves:
        bench.place(arguments.device)  # or there is nothing to compile for
    values.compile_first(operations)
    if moves:
        found = bench.movement(arguments.dtype, **given)
        show(arguments, found, lambda: report.movement(found))
        return DONE
    given |= {"order": arguments.order or "C", "cases": arguments.cases}
    rows = bench.bench(*operations, arguments.dtype, **given)
    columns = benchmark.of(*operations, "columns")
    show(arguments, rows, lambda: report.benchmarks(rows, columns))
    return DONE


# -- ladder, sweep, probe --------------------------------------------------------------------------


def ladder_options(sub: Parser) -> None:
    """Add those of ladder."""
    _common(sub, "such as cuda:0, or cpu")
    text = (
        "extents of squares; of images and grids likewise, of k-means rows (default: three, small "
        "ones without a GPU; with --plot those between them that double)"
    )
    sub.add_argument("--sizes", type=_whole, metavar="N,N", help=text)
    text = "with --device cpu: time loops that have several threads on each of these numbers"
    sub.add_argument("--threads", type=_whole, metavar="N,N", default=(), help=text)
    text = "leave out what takes longer than this, in seconds (default: 1 on a GPU, else 0.5)"
    sub.add_argument("--limit", type=float, metavar="SECONDS", help=text)


def sweep_options(sub: Parser) -> None:
    """Add those of sweep."""
    _common(sub, "such as cuda:0")
    sub.add_argument("--method", help="a rung of the ladder whose blocks can have other shapes")
    text = (
        "as of ladder (default: 4096, 128 without a GPU, where each of some hundred blocks takes a "
        "fraction of a second to compile)"
    )
    sub.add_argument("--sizes", type=_whole, metavar="N,N", help=text)
    text = "print every block that runs, not the fastest ones alone"
    sub.add_argument("--all", action="store_true", help=text)


def _common(sub: Parser, device: str) -> None:
    """Add the options that both have."""
    from hetero.ladder.families import FAMILIES

    sub.add_argument("operation", metavar="OPERATION", help=", ".join(FAMILIES))
    sub.add_argument("--dtype", choices=DTYPES, help="default: as for bench")
    text = f"{device} (default: the first GPU, else the first OpenCL device)"
    sub.add_argument("--device", help=text)
    forms = "; ".join(f"{','.join(of.dims)} of {name}" for name, of in FAMILIES.items())
    text = f"one size by its dimensions, in place of --sizes: {forms}"
    sub.add_argument("--dims", type=_whole, metavar="N,N,N", help=text)
    sub.add_argument("--filter", type=int, help="extent of a convolution's filter (default: 15)")
    add_file(sub, "--plot", "save a picture, by matplotlib")


def _whole(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers, such as 512,4096, got {text[:40]!r}"
        ) from None


def ladder(arguments: argparse.Namespace) -> int:
    """Time an operation's rungs."""
    from hetero.evaluation import last
    from hetero.ladder import ladder

    own = {"threads": arguments.threads, "limit": arguments.limit}
    own["curve"] = arguments.plot is not None
    return _measured(
        arguments, partial(ladder.ladder, arguments.operation, **own), ladder, keep=last.keep_ladder
    )


def sweep(arguments: argparse.Namespace) -> int:
    """Time a rung with every legal block."""
    from hetero.ladder import sweep

    if arguments.method is None:
        raise ValueError("--method names the rung to sweep, and is not given")
    measure = partial(sweep.sweep, arguments.operation, arguments.method)
    return _measured(arguments, measure, sweep, every=arguments.all)


def _measured(
    arguments: argparse.Namespace,
    measure: Callable[..., Any],
    module: Any,
    names: Sequence[str] = ("sizes", "dims", "device", "filter", "dtype"),
    keep: Callable[[Any], object] = lambda found: None,
    **shown: Any,
) -> int:
    """Measure by the arguments of these names, keep, print, and draw where that is asked for."""
    values.check_picture(arguments.plot)
    given = {name: getattr(arguments, name) for name in names}
    found = measure(**given, progress=progress_bar() or terminal.Lines())
    keep(found)
    show(arguments, found, lambda: module.text(found, **shown))
    return values.plot(arguments, found, module)


def probe_options(sub: Parser) -> None:
    """Add those of probe."""
    from hetero.ladder.probe import PROBES

    text = "; ".join(f"{name}: {one.summary}" for name, one in PROBES.items())
    sub.add_argument("probe", choices=PROBES, metavar="PROBE", help=text)
    text = "such as cuda:0 (default: the first GPU, else the first OpenCL device)"
    sub.add_argument("--device", help=text)
    add_file(sub, "--plot", "save a picture, by matplotlib: time over stride")


def probe(arguments: argparse.Namespace) -> int:
    """Time a pattern of access to memory."""
    from hetero.ladder import probe

    return _measured(arguments, partial(probe.probe, arguments.probe), probe, ("device",))
