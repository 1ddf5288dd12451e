"""The command line: info, calibrate, explain, verify, bench, demo.

Exit codes: 0 done; 1 it failed (a file that cannot be written, a device that fails); 2 wrong
arguments (unknown operation, device, method or profile, dimensions that do not fit); 3 no candidate
could be chosen, as the printed reasons say; 130 interrupted. Every command prints JSON with
``--json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import hetero
from hetero import terminal
from hetero.errors import HeteroError, NotPriced, ProfileError
from hetero.terminal import progress_bar

DONE, FAILED, USAGE, NO_CHOICE, INTERRUPTED = 0, 1, 2, 3, 130

_DIMS = (
    "matvec M K | matmul M N K | convolve2d H W FH FW | solve_cg N (a dense matrix), or NY NX or "
    "NZ NY NX (hetero.Poisson) | solve_poisson NY NX or NZ NY NX"
)
_OPERATIONS = ("matvec", "matmul", "convolve2d", "cg", "solve_cg", "poisson", "solve_poisson")
_LONGEST_MESSAGE = 2000  # characters of an error that are shown
log = logging.getLogger("hetero")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    handler = terminal.LogHandler(sys.stderr)
    logging.basicConfig(format="hetero: %(message)s", level=logging.WARNING, handlers=[handler])
    arguments = _parser().parse_args(argv)
    try:
        try:
            code = arguments.run(arguments)
        finally:
            terminal.clear()
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except KeyboardInterrupt:
        print("hetero: interrupted", file=sys.stderr)
        return INTERRUPTED
    except _REPORTED as error:
        log.debug("%s failed", arguments.run.__name__, exc_info=True)
        text = " ".join(str(error).split()) or type(error).__name__
        print(f"hetero: {text[:_LONGEST_MESSAGE]}", file=sys.stderr)
        return _code(error)


# What arguments can cause; anything else is a mistake of hetero's own and keeps its traceback.
_REPORTED = (HeteroError, ValueError, TypeError, ArithmeticError, OSError, MemoryError)


def _code(error: Exception) -> int:
    """The exit code of an error that a command ended with."""
    if isinstance(error, NotPriced):
        return NO_CHOICE
    if isinstance(error, (ValueError, TypeError, ArithmeticError)):
        return USAGE
    return FAILED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hetero",
        description="Measures this machine once, then computes matrix-vector and matrix-matrix "
        "products, 2-D convolutions, conjugate gradients and Poisson's equation where they are "
        "fastest: on the CPU or on a GPU.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 no candidate could be chosen.",
    )
    parser.add_argument("--version", action="version", version=f"hetero {hetero.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        sub = commands.add_parser(name, help=text, description=text, epilog=parser.epilog)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=run)
        return sub

    command(
        "info",
        _info,
        "What is here: CPU, BLAS, devices, links, the profile, and what is missing.",
    )

    sub = command("calibrate", _calibrate, "Measure this machine and store its profile.")
    sub.add_argument(
        "--quick", action="store_true", help="ten seconds instead of a minute or two, less exact"
    )
    sub.add_argument(
        "--path", type=_file, help="file to write (default: HETERO_PROFILE, or the user's cache)"
    )
    sub.add_argument(
        "--device",
        action="append",
        metavar="NAME",
        help="only this device, such as cuda:0, and the CPU; may be repeated (default: all)",
    )

    sub = command("explain", _explain, "Price every candidate for a problem; run nothing.")
    sub.add_argument("operation", help=_DIMS)
    sub.add_argument("dims", nargs="+", type=_whole, metavar="DIM", help="extents, 1 or more each")
    sub.add_argument("--dtype", default="float64", help="of the operands (default: float64)")
    sub.add_argument("--mode", help="of convolve2d: full, same or valid (default: full)")
    sub.add_argument(
        "--on", default="host", help="where the operands lie: host, cuda:0, ... (default: host)"
    )
    sub.add_argument("--device", help="only this device, such as cpu or cuda:0")
    sub.add_argument("--method", help="only this method, such as blas or tiled")
    sub.add_argument(
        "--profile",
        type=_file,
        metavar="NAME|FILE",
        help="answer for another machine, by its constants: tesla-t10, h200, or a profile's file",
    )

    sub = command("verify", _verify, "Measure every candidate of random problems.")
    sub.add_argument(
        "operation", nargs="*", help="matvec, matmul, convolve2d (default: the first two)"
    )
    sub.add_argument("--on", default="host", help="where the operands lie: host, cuda:0")
    sub.add_argument(
        "--count", type=_whole, default=100, help="problems for each operation (default: 100)"
    )
    sub.add_argument(
        "--seconds", type=float, default=60.0, help="stop drawing after this time (default: 60)"
    )
    sub.add_argument("--seed", type=_whole, default=0, help="of the random problems (default: 0)")
    sub.add_argument(
        "--largest", type=_whole, help="largest extent of a matrix (default: 4096; 16384 on a GPU)"
    )

    sub = command("bench", _bench, "Every method side by side, beside the libraries that are here.")
    sub.add_argument(
        "operation", choices=_OPERATIONS, metavar="OPERATION", help=", ".join(_OPERATIONS)
    )
    sub.add_argument(
        "--dtype", choices=("float32", "float64"), help="default: float32; solves: float64"
    )
    sub.add_argument(
        "--device",
        help="of matvec and matmul (default: cuda:0, or cpu without a GPU); the others run on all",
    )
    sub.add_argument(
        "--order",
        default="C",
        choices=("C", "F"),
        help="A of matvec and matmul by rows (C, the default) or by columns (F)",
    )

    sub = command("demo", _demo, "Calibrate quickly, then run real products and compare.")
    sub.add_argument("--largest", type=_whole, help="largest extent (default: 4096; 8192 on a GPU)")
    sub.add_argument(
        "--picture", type=_file, metavar="FILE", help="save the filtered photograph (PGM)"
    )
    return parser


def _whole(text: str) -> int:
    """A whole number from an argument."""
    try:
        return int(text)
    except ValueError:  # not a number, or of thousands of digits
        shown = text if len(text) < 40 else f"{text[:20]}... ({len(text)} characters)"
        raise argparse.ArgumentTypeError(f"must be a whole number, got {shown!r}") from None


def _file(text: str) -> str:
    """A file's name from an argument."""
    if not text or "\0" in text:
        raise argparse.ArgumentTypeError(f"must name a file, got {text[:40]!r}")
    return text


def _check_file(option: str, path: str) -> None:
    """Raise OSError, before anything is measured, if the file cannot be written."""
    target = Path(path)
    if target.is_dir():
        raise IsADirectoryError(f"{option} must name a file, {path} is a folder")
    if target.exists() and not os.access(target, os.W_OK):
        raise PermissionError(f"{option}: {path} cannot be written")


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _check(option: str, value: float | None, least: float, most: float) -> None:
    if value is not None and not least <= value <= most:
        raise ValueError(f"{option} must be from {least:g} to {most:g}, got {value}")


def _info(arguments: argparse.Namespace) -> int:
    if (bar := progress_bar()) is not None:
        bar(0.0, "trying the devices")
    found = hetero.machine()
    terminal.clear()
    if arguments.json:
        _print_json(found)
    else:
        print(found)
    return DONE


def _calibrate(arguments: argparse.Namespace) -> int:
    from hetero.evaluation import report
    from hetero.runtime.profile import default_path

    if arguments.path is not None:
        _check_file("--path", arguments.path)
    found = hetero.calibrate(arguments.quick, arguments.path, arguments.device, progress_bar())
    terminal.clear()
    path = str(arguments.path or default_path())
    if arguments.json:
        _print_json(
            {
                "path": path,
                "devices": found.devices,
                "residuals": found.residuals(),
                "doubtful": report.doubtful(found),
            }
        )
    else:
        print(report.calibration(found))
        print(f"\nwritten to {path}")
    return DONE


def _explain(arguments: argparse.Namespace) -> int:
    from hetero import devices as backends
    from hetero.ops import module_of
    from hetero.runtime import inventory, planner, profile

    module = module_of(arguments.operation)
    options = {} if arguments.mode is None else {"mode": arguments.mode}
    if options and module.name != "convolve2d":
        raise ValueError(f"--mode is an option of convolve2d, not of {arguments.operation}")
    problem = module.from_dims(tuple(arguments.dims), arguments.dtype, arguments.on, **options)
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
    plan = planner.price(problem, constants, devices, arguments.device, arguments.method)
    if arguments.json:
        _print_json(plan.to_dict())
    else:
        print(plan)
    if plan.to_dict()["chosen"]:
        return DONE
    print(f"hetero: {_what_it_covers(constants, problem)}", file=sys.stderr)
    return NO_CHOICE


def _what_it_covers(constants: Any, problem: Any) -> str:
    known = ", ".join(
        f"{operation} ({', '.join(sorted(dtypes))})"
        for operation, dtypes in constants.dtypes().items()
    )
    return (
        f"no candidate could be chosen for {problem.operation} {problem.dtype}; "
        f"the profile {constants.name!r} has constants for: {known or 'nothing'}"
    )


def _verify(arguments: argparse.Namespace) -> int:
    from hetero import devices as backends
    from hetero.evaluation import report, verify

    operations = tuple(arguments.operation) or verify.DEFAULT
    for operation in operations:
        if operation not in verify.MEASURED:
            names = ", ".join(map(repr, verify.MEASURED))
            raise ValueError(f"operation must be one of {names}, got {operation!r}")
    if arguments.on != "host" and backends.get(arguments.on).kind != "cuda":
        raise ValueError(f"--on must be 'host' or a CUDA device, got {arguments.on!r}")
    _check("--largest", arguments.largest, 8, 2**24)
    _check("--count", arguments.count, 0, 10**6)
    _check("--seconds", arguments.seconds, 0, 10**6)
    progress = progress_bar()
    rows = verify.verify(
        operations,
        on=arguments.on,
        count=arguments.count,
        seconds=arguments.seconds,
        seed=arguments.seed,
        largest=arguments.largest,
        progress=terminal.part(progress, 0.0, 0.9),
    )
    links = verify.all_links(progress) if arguments.on == "host" else {}
    found = {**verify.summary(rows), "links": links}
    terminal.clear()
    if arguments.json:
        _print_json(found)
    else:
        print(report.verification(found, rows))
    return DONE if rows else NO_CHOICE


def _bench(arguments: argparse.Namespace) -> int:
    from hetero import devices as backends
    from hetero.evaluation import bench, bench_convolutions, bench_solves

    progress = progress_bar()
    operation = arguments.operation.removeprefix("solve_")
    device = arguments.device or next(
        (name for name in backends.proven() if name.startswith("cuda")), "cpu"
    )
    if device != "cpu":
        backends.get(device)  # or says which there are
    if operation == "convolve2d":
        rows = bench_convolutions.bench(arguments.dtype or "float32", progress)
        text = bench_solves.table(rows)
    elif operation in ("cg", "poisson"):
        rows = bench_solves.bench(operation, arguments.dtype or "float64", progress)
        text = bench_solves.table(rows)
    elif device == "cpu":
        rows = bench.bench_on_cpu(
            operation, arguments.dtype or "float32", arguments.order, progress
        )
        text = bench_solves.table(rows)
    else:
        dtype, order = arguments.dtype or "float32", arguments.order
        rows = bench.bench(operation, dtype, device_name=device, order=order, progress=progress)
        text = bench.table(rows)
    terminal.clear()
    if arguments.json:
        _print_json(rows)
    else:
        print(text)
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    from hetero.evaluation import demo

    _check("--largest", arguments.largest, 16, 2**24)
    if arguments.picture is not None:
        _check_file("--picture", arguments.picture)
        if not Path(arguments.picture).parent.is_dir():
            raise FileNotFoundError(f"there is no folder for --picture {arguments.picture}")
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


if __name__ == "__main__":
    sys.exit(main())
