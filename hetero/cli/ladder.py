"""`hetero ladder`: its options, and what it does; what it shares with `hetero sweep`."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from hetero import terminal
from hetero.cli import values
from hetero.cli.values import DONE, FAILED
from hetero.terminal import progress_bar


def options(sub: argparse.ArgumentParser) -> None:
    """Add those of the ladder."""
    common(sub, "such as cuda:0; cpu: its methods")
    sub.add_argument(
        "--sizes",
        type=_sizes,
        metavar="N,N",
        help="extents of squares; of images and grids likewise, of k-means rows (default: three, "
        "small ones without a GPU)",
    )
    sub.add_argument(
        "--source",
        metavar="RUNG",
        help="print a rung's kernel as CUDA C, its macros expanded, and measure nothing",
    )


def common(sub: argparse.ArgumentParser, device: str) -> None:
    """Add the options that both have."""
    import hetero.ops  # noqa: F401  # registers them
    from hetero import registry

    names = [
        name
        for o in registry.operations()
        if any(row.rung for row in registry.lookup(o.name))
        for name in dict.fromkeys((o.function, o.name))
    ]
    sub.add_argument("operation", metavar="OPERATION", help=", ".join(names))
    sub.add_argument("--dtype", choices=("float32", "float64"), help="default: as for bench")
    sub.add_argument(
        "--device", help=f"{device} (default: the first GPU, else the first OpenCL device)"
    )
    sub.add_argument(
        "--plot", type=values.file, metavar="FILE", help="save a picture, by matplotlib"
    )


def _sizes(text: str) -> list[int]:
    try:
        return [int(size) for size in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"must be whole numbers, such as 512,4096, got {text[:40]!r}"
        ) from None


def run(arguments: argparse.Namespace) -> int:
    """Time an operation's rungs."""
    from hetero.evaluation import ladder

    if arguments.source is not None:
        return _print_source(arguments)

    def climb(operation: Any, progress: Any) -> dict[str, Any]:
        given = arguments.dtype, arguments.sizes
        found = ladder.ladder(operation, *given, device=arguments.device, progress=progress)
        ladder.keep(found)
        return found

    return shown(arguments, climb, ladder.text, ladder.draw)


def _print_source(arguments: argparse.Namespace) -> int:
    from hetero import registry
    from hetero.evaluation import kernel_source

    operation = registry.operation(arguments.operation)
    try:
        print(kernel_source.of_rung(operation, arguments.source, arguments.dtype), end="")
    except ImportError:
        print(f"hetero: {kernel_source.INSTALL}", file=sys.stderr)
        return FAILED
    return DONE


def shown(arguments: argparse.Namespace, measured: Any, text: Any, draw: Any) -> int:
    """Measure, print, and draw where that is asked for."""
    from hetero import registry
    from hetero.cli.commands import _check_file
    from hetero.evaluation import pictures

    operation = registry.operation(arguments.operation)
    if arguments.plot is not None:
        _check_file("--plot", arguments.plot)
        pictures.check(arguments.plot)
    found = measured(operation, progress_bar() or terminal.Lines())
    terminal.clear()
    print(json.dumps(found, indent=2) if arguments.json else text(found))
    if arguments.plot is None or draw(found, arguments.plot):
        return DONE
    print(f"hetero: {pictures.INSTALL}", file=sys.stderr)
    return FAILED
