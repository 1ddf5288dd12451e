"""The command line: info, calibrate, explain, verify, bench, demo.

Exit codes: 0 done; 1 it failed (a file that cannot be written, a device that fails); 2 wrong
arguments (unknown operation, device, method or profile, dimensions that do not fit); 3 no candidate
could be chosen, as the printed reasons say. Every command prints JSON with ``--json``.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from hetero.errors import HeteroError, NotPriced, ProfileError

DONE, FAILED, USAGE, NO_CHOICE = 0, 1, 2, 3

_DIMS = (
    "matvec M K | matmul M N K | convolve2d H W FH FW | cg N (dense) or a grid's NY NX [NZ] | "
    "poisson NY NX or NZ NY NX"
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    logging.basicConfig(format="hetero: %(message)s", level=logging.WARNING, stream=sys.stderr)
    arguments = _parser().parse_args(argv)
    try:
        code = arguments.run(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return DONE
    except NotPriced as error:
        print(f"hetero: {error}", file=sys.stderr)
        return NO_CHOICE
    except (HeteroError, ValueError) as error:
        print(f"hetero: {error}", file=sys.stderr)
        return USAGE if isinstance(error, ValueError) else FAILED
    except OSError as error:
        print(f"hetero: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        print("hetero: interrupted", file=sys.stderr)
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="hetero",
        description="Measures this machine once, then runs every matrix operation where it is "
        "fastest.",
        epilog="Exit codes: 0 done, 1 failed, 2 wrong arguments, 3 no candidate could be chosen.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def command(name: str, run: Callable[[argparse.Namespace], int], text: str) -> Any:
        sub = commands.add_parser(name, help=text, description=text, epilog=parser.epilog)
        sub.add_argument("--json", action="store_true", help="print JSON")
        sub.set_defaults(run=run)
        return sub

    command("info", _info, "What is here: CPU, BLAS, devices, links, and what is missing.")

    sub = command("calibrate", _calibrate, "Measure this machine and store its profile.")
    sub.add_argument("--quick", action="store_true", help="seconds instead of a minute or two")
    sub.add_argument("--path", help="file to write (default: HETERO_PROFILE, or the user's cache)")
    sub.add_argument(
        "--device", action="append", metavar="NAME", help="only these; may be repeated"
    )

    sub = command("explain", _explain, "Price every candidate for a problem; run nothing.")
    sub.add_argument("operation", help=_DIMS)
    sub.add_argument("dims", nargs="+", type=int, metavar="DIM")
    sub.add_argument("--dtype", default="float32")
    sub.add_argument("--on", default="host", help="where the operands lie: host, cuda:0, ...")
    sub.add_argument("--device", help="force a device")
    sub.add_argument("--method", help="force a method")
    sub.add_argument(
        "--profile", metavar="NAME|FILE", help="constants of another machine, such as tesla-t10"
    )

    sub = command("verify", _verify, "Measure every candidate of random problems.")
    sub.add_argument(
        "operation", nargs="*", help="matvec, matmul, convolve2d (default: the first two)"
    )
    sub.add_argument("--on", default="host", help="where the operands lie: host, cuda:0")
    sub.add_argument("--count", type=int, default=100, help="problems for each operation")
    sub.add_argument("--seconds", type=float, default=60.0, help="stop drawing after this time")
    sub.add_argument("--seed", type=int, default=0)
    sub.add_argument("--largest", type=int, help="largest extent of a matrix")

    sub = command("bench", _bench, "Every method side by side, beside the libraries that are here.")
    sub.add_argument("operation", choices=("matvec", "matmul", "convolve2d", "cg", "poisson"))
    sub.add_argument(
        "--dtype", choices=("float32", "float64"), help="default: float32; solves: float64"
    )
    sub.add_argument("--device", default="cuda:0", help="of products; solves run on all")
    sub.add_argument("--order", default="C", choices=("C", "F"), help="of A: by rows or by columns")

    sub = command("demo", _demo, "Calibrate quickly, then run real products and compare.")
    sub.add_argument("--largest", type=int, help="largest extent (default: 4096; 8192 on a GPU)")
    sub.add_argument("--picture", metavar="FILE", help="save the filtered photograph (PGM)")
    return parser


def progress_bar() -> Callable[[float, str], None] | None:
    """A bar on a terminal, None elsewhere."""
    if not sys.stderr.isatty():
        return None

    def show(fraction: float, text: str) -> None:
        filled = round(30 * fraction)
        bar = "#" * filled + "." * (30 - filled)
        end = "\n" if fraction >= 1.0 else ""
        print(f"\r[{bar}] {text[:46]:<46}", end=end, file=sys.stderr, flush=True)

    return show


def _print_json(value: Any) -> None:
    print(json.dumps(value, indent=2))


def _at_least(largest: int | None, least: int) -> None:
    if largest is not None and largest < least:
        raise ValueError(f"--largest must be at least {least}, got {largest}")


def _info(arguments: argparse.Namespace) -> int:
    import hetero

    found = hetero.machine()
    if arguments.json:
        _print_json(found)
    else:
        print(found)
    return DONE


def _calibrate(arguments: argparse.Namespace) -> int:
    import hetero
    from hetero.calibration import report
    from hetero.profile import default_path

    found = hetero.calibrate(arguments.quick, arguments.path, arguments.device, progress_bar())
    path = str(arguments.path or default_path())
    if arguments.json:
        _print_json({"path": path, "devices": found.devices, "residuals": found.residuals()})
    else:
        print(report.calibration(found))
        print(f"\nwritten to {path}")
    return DONE


def _explain(arguments: argparse.Namespace) -> int:
    from hetero import inventory, planner, profile
    from hetero.ops import module_of

    try:
        problem = module_of(arguments.operation).from_dims(
            tuple(arguments.dims), arguments.dtype, arguments.on
        )
    except TypeError as error:  # a dtype that NumPy does not know
        raise ValueError(str(error)) from None
    if arguments.profile is None:
        constants, devices = profile.current(), inventory.devices()
    else:
        try:
            constants = profile.named(arguments.profile)
        except (ProfileError, OSError) as error:
            raise ValueError(f"--profile: {error}") from None
        devices = constants.devices or inventory.devices()
    if arguments.on != "host" and arguments.on not in devices:
        names = ", ".join(map(repr, ("host", *devices)))
        raise ValueError(f"--on must be one of {names}, got {arguments.on!r}")
    plan = planner.price(problem, constants, devices, arguments.device, arguments.method)
    if arguments.json:
        _print_json(plan.to_dict())
    else:
        print(plan)
    return DONE if plan.to_dict()["chosen"] else NO_CHOICE


def _verify(arguments: argparse.Namespace) -> int:
    from hetero import devices as backends
    from hetero.calibration import report, verify

    operations = tuple(arguments.operation) or verify.DEFAULT
    for operation in operations:
        if operation not in verify.MEASURED:
            names = ", ".join(map(repr, verify.MEASURED))
            raise ValueError(f"operation must be one of {names}, got {operation!r}")
    if arguments.on != "host" and backends.get(arguments.on).kind != "cuda":
        raise ValueError(f"--on must be 'host' or a CUDA device, got {arguments.on!r}")
    _at_least(arguments.largest, 8)
    rows = verify.verify(
        operations,
        on=arguments.on,
        count=arguments.count,
        seconds=arguments.seconds,
        seed=arguments.seed,
        largest=arguments.largest,
        progress=progress_bar(),
    )
    links = {
        name: verify.verify_links(name)
        for name, device in backends.available().items()
        if not device.describe().get("is_host_cpu") and arguments.on == "host"
    }
    found = {**verify.summary(rows), "links": links}
    if arguments.json:
        _print_json(found)
    else:
        print(report.verification(found, rows))
    return DONE if rows else NO_CHOICE


def _bench(arguments: argparse.Namespace) -> int:
    from hetero.calibration import bench, bench_convolutions, bench_solves

    if arguments.operation == "convolve2d":
        rows = bench_convolutions.bench(arguments.dtype or "float32")
        text = bench_solves.table(rows)
    elif arguments.operation in ("cg", "poisson"):
        rows = bench_solves.bench(arguments.operation, arguments.dtype or "float64")
        text = bench_solves.table(rows)
    else:
        rows = bench.bench(
            arguments.operation,
            arguments.dtype or "float32",
            device_name=arguments.device,
            order=arguments.order,
        )
        text = bench.table(rows)
    if arguments.json:
        _print_json(rows)
    else:
        print(text)
    return DONE


def _demo(arguments: argparse.Namespace) -> int:
    from hetero.calibration import demo

    _at_least(arguments.largest, 16)
    rows, found = demo.demo(
        largest=arguments.largest,
        picture=arguments.picture,
        progress=progress_bar(),
        show=(lambda text: None) if arguments.json else print,
    )
    if arguments.json:
        _print_json({"calls": rows, **found})
    return DONE


if __name__ == "__main__":
    sys.exit(main())
