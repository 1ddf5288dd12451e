"""Commands and options; what there is to choose from is asked of the operations."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

import hetero
from hetero.cli import commands, ladder, report, sweep, transfer, values


class _Command(argparse.ArgumentParser):
    """A command, whose options are made when it is asked for: the operations are loaded then."""

    options: Callable[[argparse.ArgumentParser], None] | None = None

    def parse_known_args(self, *arguments: Any) -> Any:
        if self.options is not None:
            make, self.options = self.options, None
            make(self)
        return super().parse_known_args(*arguments)


def parser() -> argparse.ArgumentParser:
    """The parser of all commands; what it parses has the command's function as ``run``."""
    made = argparse.ArgumentParser(
        prog="hetero",
        description="Measures this machine once, then computes each call where it is fastest: on "
        "the CPU or on a GPU. 'hetero explain --help' names what it computes.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 no candidate could be chosen.",
    )
    made.add_argument("--version", action="version", version=f"hetero {hetero.__version__}")
    subparsers = made.add_subparsers(metavar="COMMAND", parser_class=_Command)
    for name, run, options, text in (
        (
            "info",
            commands.info,
            None,
            "What is here: CPU, BLAS, devices, links, the profile, and what is missing.",
        ),
        (
            "calibrate",
            commands.calibrate,
            _calibrate,
            "Measure this machine and store its profile.",
        ),
        (
            "compile",
            commands.compile_loops,
            None,
            "Compile the CPU's loops now; else that is done beside the programs that need them.",
        ),
        (
            "explain",
            commands.explain,
            _explain,
            "Price every candidate for a problem; run nothing.",
        ),
        ("verify", commands.verify, _verify, "Measure every candidate of random problems."),
        (
            "bench",
            commands.bench,
            _bench,
            "Every method side by side, beside the libraries that are here.",
        ),
        (
            "ladder",
            ladder.run,
            ladder.options,
            "Each kernel of an operation from the first idea to the best: time, rates, gain.",
        ),
        (
            "sweep",
            sweep.run,
            sweep.options,
            "A kernel of a ladder with every legal shape of its blocks; how far its own is off.",
        ),
        (
            "transfer",
            transfer.run,
            transfer.options,
            "Is it worth moving this to a GPU? Copies beside the work that is done there.",
        ),
        (
            "report",
            report.run,
            report.options,
            "What is known of a machine, as a page for a browser.",
        ),
        ("demo", commands.demo, _demo, "Calibrate quickly, then run real calls and compare."),
    ):
        sub = subparsers.add_parser(name, help=text, description=text, epilog=made.epilog)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=run)
        sub.options = options
    return made


def _calibrate(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--quick",
        action="store_true",
        help="15 to 30 seconds instead of up to a minute, less exact",
    )
    sub.add_argument(
        "--path",
        type=values.file,
        help="file to write (default: HETERO_PROFILE, or the user's cache)",
    )
    sub.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="only this device, such as cuda:0, and the CPU; may be repeated (default: all)",
    )
    sub.add_argument(
        "--kernels",
        action="store_true",
        help="first measure how each GPU runs hetero's own kernels, once for a card: a minute more",
    )
    sub.add_argument(
        "--only",
        action="append",
        metavar="NAME",
        help="only what is of this operation, device or method, merged into the profile that is "
        "stored; may be repeated",
    )
    sub.add_argument(
        "--fresh",
        action="store_true",
        help="measure everything, also what an interrupted calibration has measured already",
    )


def _operations() -> tuple[Any, ...]:
    import hetero.ops  # noqa: F401  # registers them
    from hetero import registry

    return registry.operations()


def _explain(sub: argparse.ArgumentParser) -> None:
    from hetero import registry

    operations = _operations()
    forms = " | ".join(f"{o.function} {' or '.join(o.dims)}{o.dims_note}" for o in operations)
    sub.add_argument("operation", help=forms)
    sub.add_argument(
        "dims", nargs="+", type=values.whole, metavar="DIM", help="extents, 1 or more each"
    )
    sub.add_argument("--dtype", default="float64", help="of the operands (default: float64)")
    for name in dict.fromkeys(name for o in operations for name in o.options):
        texts = (
            f"of {o.function}: {', '.join(o.options[name][0])}; {o.options[name][1]}"
            for o in operations
            if name in o.options
        )
        sub.add_argument(f"--{name}", help=" | ".join(texts))
    sub.add_argument(
        "--on", default="host", help="where the operands lie: host, cuda:0, ... (default: host)"
    )
    sub.add_argument("--device", help="only this device, such as cpu or cuda:0")
    methods = dict.fromkeys(i.method for o in operations for i in registry.lookup(o.name))
    sub.add_argument("--method", help=f"only this method: {', '.join(methods)}")
    sub.add_argument(
        "--profile",
        type=values.file,
        metavar="NAME|FILE",
        help="answer for another machine, by its constants: tesla-t10, h100, h200, or a profile's "
        "file",
    )


def _verify(sub: argparse.ArgumentParser) -> None:
    from hetero.evaluation import verify

    every = ", ".join(o.function for o in _operations())
    usual = [o.function for o in verify.unless_told()]
    sub.add_argument("operation", nargs="*", help=f"{every} (default: {' and '.join(usual)})")
    sub.add_argument("--on", default="host", help="where the operands lie: host, cuda:0")
    sub.add_argument(
        "--count", type=values.whole, default=100, help="problems for each operation (default: 100)"
    )
    sub.add_argument(
        "--seconds", type=float, default=60.0, help="stop drawing after this time (default: 60)"
    )
    sub.add_argument(
        "--seed", type=values.whole, default=0, help="of the random problems (default: 0)"
    )
    sub.add_argument(
        "--largest",
        type=values.whole,
        help="largest extent of a matrix (default: 4096; 16384 on a GPU)",
    )


def _bench(sub: argparse.ArgumentParser) -> None:
    from hetero.ops import benchmark

    operations = _operations()
    names = [name for o in operations for name in dict.fromkeys((o.name, o.function))]
    names.append(commands.MOVEMENT)
    sub.add_argument(
        "operation",
        choices=names,
        metavar="OPERATION",
        help=f"{', '.join(names)} (copies between host and device, and calls on host operands)",
    )
    dtypes: dict[str, list[str]] = {}
    for operation in operations:
        dtype = benchmark.of(operation, "DTYPE", benchmark.DTYPE)
        dtypes.setdefault(dtype, []).append(operation.function)
    usual = "; ".join(f"{dtype} of {', '.join(which)}" for dtype, which in dtypes.items())
    sub.add_argument("--dtype", choices=("float32", "float64"), help=f"default: {usual}")
    sub.add_argument(
        "--device",
        help=f"of {_with_option('device')} (default: cuda:0, or cpu without a GPU) and of "
        f"{commands.MOVEMENT} (default: cuda:0); the others run on all",
    )
    sub.add_argument(
        "--order",
        default="C",
        choices=("C", "F"),
        help=f"the matrix of {_with_option('order')} by rows (C, the default) or by columns (F)",
    )
    sub.add_argument(
        "--timeline",
        type=values.file,
        metavar="FILE",
        help="with movement: save a picture (SVG) of one product whose blocks move while others "
        "are computed, and nothing else",
    )


def _with_option(name: str) -> str:
    """The operations of which bench lets one choose that."""
    from hetero.ops import benchmark

    having = (o for o in _operations() if name in benchmark.of(o, "OPTIONS", ()))
    return " and ".join(o.function for o in having)


def _demo(sub: argparse.ArgumentParser) -> None:
    sub.add_argument(
        "--largest", type=values.whole, help="largest extent (default: 4096; 8192 on a GPU)"
    )
    sub.add_argument(
        "--picture", type=values.file, metavar="FILE", help="save the filtered photograph (PGM)"
    )
