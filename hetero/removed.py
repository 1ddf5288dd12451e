"""What earlier versions had: public names and commands, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = {
    "graph": "call by call; CuPy and torch capture CUDA graphs of their own calls",
}
SHARED = "name one of both; device='cuda:*' shares a call between all GPUs"

# A command and an argument of it.
COMMANDS = {
    "bench programs": "run docs/benchmarks/programs.py of the repository",
    "bench --timeline": "Nsight Systems shows when blocks move and are computed",
    "calibrate --fresh": "an interrupted calibration leaves nothing, the next one begins anew",
    "calibrate --kernels": "kernels are planned by constants of their plan files",
    "ladder --source": "the kernels' sources are in the package's folder kernels",
    "report --compare": "hetero bench compares with other libraries",
    "sweep --metrics": "hetero ladder --why says what limits a kernel",
}
TEXT = "{} was removed in 0.2: {}"


def command(given: Sequence[str]) -> str | None:
    """The message for a command line that asks for what was removed, None for another one."""
    for name, instead in COMMANDS.items():
        first, argument = name.split()
        if first in given[:1] and argument in given:
            return TEXT.format(f"hetero {name}", instead)
    return None
