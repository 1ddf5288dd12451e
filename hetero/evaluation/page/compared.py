"""NumPy, SciPy, scikit-learn and others on the lines that the page draws: measured when asked for,
and kept for later pages as `hetero.evaluation.page.last` keeps the rest."""

from __future__ import annotations

from functools import partial
from math import inf
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.calibration.measure.timing import measure
from hetero.evaluation.page import last
from hetero.ops import benchmark, over_sizes
from hetero.ops.over_sizes import Line
from hetero.registry import Operation
from hetero.registry.problem import DEVICE_DTYPES

_BUDGET = 0.05  # seconds of a call
_SLOW = 0.05  # seconds from which on a call is not measured at larger sizes
_LARGEST = 1 << 28  # bytes of the operands
Along = dict[str, list[tuple[int, float]]]  # library -> size and seconds of its fastest function


def key(operation: Operation, line: Line, dtype: str) -> str:
    """As one line is kept."""
    return f"{operation.function}, {line.text}, {dtype}"


def compare(progress: Any = None) -> None:
    """Measure every line that other libraries have, at every second doubling of its size."""
    jobs = [
        (operation, line, dtype)
        for operation in registry.operations()
        if benchmark.of(operation, "peers")
        for line in over_sizes.lines(operation)
        for dtype in DEVICE_DTYPES
    ]
    for number, job in enumerate(jobs):
        if progress is not None:
            progress(number / len(jobs), key(*job))
        if seconds := _along(*job):
            last.keep(last.COMPARED, key(*job), {"seconds": seconds})


def _along(operation: Operation, line: Line, dtype: str) -> Along:
    fastest: Along = {}
    slow: set[str] = set()
    for size in line.axis.sizes(1)[::2]:
        dims = line.dims(size)
        inputs = operation.from_dims(dims, dtype, HOST).inputs
        if sum(operand.nbytes for operand in inputs) > _LARGEST:
            break
        at: dict[str, float] = {}
        for name, call in benchmark.of(operation, "peers")(dims, dtype).items():
            if name not in slow:
                library = name.split()[0]
                seconds = measure(partial(call, 0), budget=_BUDGET).seconds
                slow |= {name} if seconds > _SLOW else set()
                at[library] = min(seconds, at.get(library, inf))
        if not at:
            break
        for library, seconds in at.items():
            fastest.setdefault(library, []).append((size, seconds))
    return fastest
