"""Commands that time methods and kernels: bench, ladder, sweep, probe; each gives an exit code."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import Any

from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE, DTYPES, FAILED, Parser, add_file, show
from hetero.errors import one_of
from hetero.pricing.plan import CPU
from hetero.terminal import progress_bar

MOVEMENT, PROGRAMS = "movement", "programs"  # what bench takes as well as operations

# -- bench -----------------------------------------------------------------------------------------


def bench_options(sub: Parser) -> None:
    """Add those of bench."""
    from hetero.evaluation import programs
    from hetero.ops import benchmark

    operations = values.operations()
    names = ", ".join(o.function for o in operations)
    text = (
        f"{names}, {MOVEMENT} (copies between host and device, and calls on host operands), "
        f"{PROGRAMS} (whole programs with NumPy, with hetero, with CuPy)"
    )
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
    text = f"with {PROGRAMS}: this one, and those of further --program, instead of all"
    sub.add_argument(
        "--program",
        action="append",
        choices=programs.PROGRAMS,
        metavar="NAME",
        help=f"{text}: {', '.join(programs.PROGRAMS)}",
    )
    sub.add_argument("--quick", action="store_true", help=f"with {PROGRAMS}: smaller data")


def bench(arguments: argparse.Namespace) -> int:
    """Time every method, and other libraries."""
    from hetero import registry
    from hetero.evaluation import bench, report
    from hetero.ops import benchmark

    moves = arguments.operation == MOVEMENT
    names = [o.function for o in registry.operations()] + [MOVEMENT, PROGRAMS]
    if arguments.operation not in (*names, *(o.name for o in registry.operations())):
        raise ValueError(one_of("operation", names, arguments.operation))
    _refuse_others(arguments)
    given = {"device": arguments.device, "progress": progress_bar()}
    if arguments.operation == PROGRAMS:
        return _programs(arguments)
    if moves:
        bench.place(arguments.device)  # or there is nothing to compile for
    operations = registry.operations() if moves else (registry.operation(arguments.operation),)
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


def _refuse_others(arguments: argparse.Namespace) -> None:
    """ValueError for an option of bench that is not for what is compared."""
    from hetero import registry
    from hetero.ops import benchmark

    name = arguments.operation
    if name == PROGRAMS:
        taken = ["program", "quick"]
    elif name == MOVEMENT:
        taken = ["dtype", "device"]
    else:
        taken = ["dtype", "cases", *benchmark.of(registry.operation(name), "OPTIONS", ())]
    for option in ("dtype", "device", "order", "cases", "program", "quick"):
        if getattr(arguments, option) and option not in taken:
            having = ", ".join(f"--{one}" for one in taken)
            raise ValueError(f"hetero bench {name} has no --{option}; it has {having}")


def _programs(arguments: argparse.Namespace) -> int:
    from hetero.evaluation import programs

    values.compile_first(values.operations())
    names = list(dict.fromkeys(arguments.program or programs.PROGRAMS))
    rows = programs.compare(names, programs.SMALLER if arguments.quick else 1, progress_bar())
    show(arguments, rows, lambda: programs.text(rows))
    return DONE if all(row.get("same") for row in rows) else FAILED


# -- ladder and sweep ------------------------------------------------------------------------------


def ladder_options(sub: Parser) -> None:
    """Add those of ladder."""
    _common(sub, "such as cuda:0, or cpu")
    text = (
        "extents of squares; of images and grids likewise, of k-means rows (default: three, small "
        "ones without a GPU; with --plot those between them that double)"
    )
    sub.add_argument("--sizes", type=_whole, metavar="N,N", help=text)
    text = (
        "print a rung's kernel as CUDA C, its macros expanded, or with --device cpu its loop in "
        "Python, and measure nothing"
    )
    sub.add_argument("--source", metavar="RUNG", help=text)
    text = "print what limits each rung: the time that each resource alone would need"
    sub.add_argument("--why", action="store_true", help=text)
    text = "with --device cpu: time methods that have several threads on each of these numbers"
    sub.add_argument("--threads", type=_whole, metavar="N,N", default=(), help=text)
    sub.add_argument("--filter", type=int, help="extent of a convolution's filter (default: 15)")


def sweep_options(sub: Parser) -> None:
    """Add those of sweep."""
    _common(sub, "such as cuda:0")
    text = "a rung of the ladder whose blocks can have other shapes"
    sub.add_argument("--method", help=text)
    text = (
        "as one of --sizes of ladder (default: 4096, 128 without a GPU, where each of some hundred "
        "blocks takes a fraction of a second to compile)"
    )
    sub.add_argument("--size", type=int, help=text)
    text = (
        "how well the times follow from the block's shape, and how well from White's execution "
        "metrics; with files, which --json wrote, nothing is measured"
    )
    sub.add_argument("--metrics", nargs="*", type=values.file, metavar="FILE", help=text)


def _common(sub: Parser, device: str) -> None:
    """Add the options that both have."""
    from hetero import registry

    names = [
        o.function for o in values.operations() if any(row.rung for row in registry.lookup(o.name))
    ]
    sub.add_argument("operation", metavar="OPERATION", help=", ".join(names))
    sub.add_argument("--dtype", choices=DTYPES, help="default: as for bench")
    text = f"{device} (default: the first GPU, else the first OpenCL device)"
    sub.add_argument("--device", help=text)
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
    from hetero.evaluation import ladder
    from hetero.evaluation.page import last

    if arguments.source is not None:
        return _print_source(arguments)

    def climb(operation: Any, **given: Any) -> dict[str, Any]:
        given |= {"threads": arguments.threads, "filter": arguments.filter}
        given["curve"] = arguments.plot is not None
        found = ladder.ladder(operation, arguments.dtype, arguments.sizes, **given)
        last.keep_ladder(found)
        return found

    return _measured(arguments, climb, ladder, why=arguments.why)


def sweep(arguments: argparse.Namespace) -> int:
    """Time a rung with every legal block."""
    from hetero.evaluation import sweep
    from hetero.evaluation.causes import fits

    if arguments.metrics:
        for option in ("method", "size", "dtype", "device"):
            if getattr(arguments, option) is not None:
                raise ValueError(
                    f"--{option} is not for --metrics with files, which say what was measured"
                )

    def swept(operation: Any, **given: Any) -> dict[str, Any]:
        if arguments.metrics:
            return fits.fits(fits.read(arguments.metrics, operation.function))
        if arguments.method is None:
            raise ValueError("--method names the rung to sweep, and is not given")
        one = sweep.sweep(operation, arguments.method, arguments.size, arguments.dtype, **given)
        return one if arguments.metrics is None else fits.fits([one])

    return _measured(arguments, swept, sweep if arguments.metrics is None else fits)


def _measured(
    arguments: argparse.Namespace, measure: Callable[..., Any], module: Any, **shown: Any
) -> int:
    """Measure, print, and draw where that is asked for."""
    from hetero import registry

    operation = registry.operation(arguments.operation)
    values.check_picture(arguments.plot)
    progress = progress_bar() or terminal.Lines()
    found = measure(operation, device=arguments.device, progress=progress)
    show(arguments, found, lambda: module.text(found, **shown))
    return values.plot(arguments, found, module)


def probe_options(sub: Parser) -> None:
    """Add those of probe."""
    from hetero.evaluation.causes.probe import PROBES

    text = "; ".join(f"{name}: {one.summary}" for name, one in PROBES.items())
    sub.add_argument("probe", choices=PROBES, metavar="PROBE", help=text)
    text = "such as cuda:0 (default: the first GPU, else the first OpenCL device)"
    sub.add_argument("--device", help=text)
    add_file(sub, "--plot", "save a picture, by matplotlib: time over stride")


def probe(arguments: argparse.Namespace) -> int:
    """Time a pattern of access to memory."""
    from hetero.evaluation.causes import probe

    values.check_picture(arguments.plot)
    progress = progress_bar() or terminal.Lines()
    figures = probe.probe(arguments.probe, device=arguments.device, progress=progress)
    show(arguments, figures, lambda: probe.text(figures))
    return values.plot(arguments, figures, probe)


def _print_source(arguments: argparse.Namespace) -> int:
    from hetero import registry
    from hetero.evaluation import kernel_source

    operation = registry.operation(arguments.operation)
    if arguments.device == CPU:
        print(kernel_source.of_loop(operation, arguments.source), end="")
        return DONE
    try:
        print(kernel_source.of_rung(operation, arguments.source, arguments.dtype), end="")
    except ImportError:
        print(f"hetero: {kernel_source.INSTALL}", file=sys.stderr)
        return FAILED
    return DONE
