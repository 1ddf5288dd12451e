"""What earlier versions had: public names and commands, and what to use instead."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = {
    "graph": "call by call; CuPy and torch capture CUDA graphs of their own calls",
}
SHARED = "name one of both; device='cuda:*' shares a call between all GPUs"

# Names of ``method=`` that are kernels of a ladder now.
_RUNGS = """sequential naive uncoalesced grouped spread row hybrid-row hybrid-column rows2 rows4
constant shared split padded tiles2 tiles4 column rotated unrolled tuned persistent coalesced
reduction occupancy"""
RUNGS = frozenset(_RUNGS.split())

# A command and an argument of it.
COMMANDS = {
    "bench programs": "run docs/benchmarks/programs.py of the repository",
    "bench --timeline": "Nsight Systems shows when blocks move and are computed",
    "calibrate --fresh": "an interrupted calibration leaves nothing, the next one begins anew",
    "calibrate --kernels": "kernels are planned by constants of their plan files",
    "ladder --source": "the kernels' sources are in the package's folder kernels",
    "report --compare": "hetero bench compares with other libraries",
    "ladder --why": "Nsight Compute says what limits a kernel",
    "sweep --metrics": "hetero sweep prints how far input parameters describe the times",
    "sweep --size": "--sizes takes one or several",
}
# (operation, method) -> what to use instead.
METHODS = {
    ("matvec", "library"): "'tiled' is within 10 % of cuBLAS, or faster",
    ("matvec", "streamed"): "'tiled', or 'blas' where a matrix is larger than the device",
    ("poisson", "cg"): "use solve_cg(hetero.Poisson(shape, spacing), b)",
    ("kmeans", "library"): "'lloyd' is faster than products by cuBLAS",
    ("kmeans", "hamerly"): "'lloyd' keeps bounds where they save time",
    ("convolve2d", "overlap_save"): "use method='fft'",
    ("convolve2d", "library"): "'direct' is as fast; for OpenCV call cv2.filter2D",
}
TEXT = "{} was removed in 0.2: {}"


def command(given: Sequence[str]) -> str | None:
    """The message for a command line that asks for what was removed, None for another one."""
    for name, instead in COMMANDS.items():
        first, argument = name.split()
        if first in given[:1] and argument in given:
            return TEXT.format(f"hetero {name}", instead)
    return None


def method(operation: str, name: str) -> str | None:
    """The message for a method that was removed, None for another one."""
    instead = METHODS.get((operation, name))
    return instead and TEXT.format(f"{operation}'s method {name!r}", instead)
