"""`hetero sweep`: its options, and what it does."""

from __future__ import annotations

import argparse
from typing import Any

from hetero.cli import ladder


def options(sub: argparse.ArgumentParser) -> None:
    """Add them to the command."""
    ladder.common(sub, "such as cuda:0")
    sub.add_argument(
        "--method", required=True, help="a rung of the ladder whose blocks can have other shapes"
    )
    sub.add_argument(
        "--size",
        type=int,
        help="as one of --sizes of ladder (default: 4096, 128 without a GPU, where each of some "
        "hundred blocks takes a fraction of a second to compile)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Time a rung with every legal block."""
    from hetero.evaluation import sweep

    def swept(operation: Any, progress: Any) -> dict[str, Any]:
        given = arguments.method, arguments.size, arguments.dtype
        return sweep.sweep(operation, *given, device=arguments.device, progress=progress)

    return ladder.shown(arguments, swept, sweep.text, sweep.draw)
