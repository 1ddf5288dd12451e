"""`hetero demo`: real calls timed, and the same by other libraries."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from hetero import devices as backends
from hetero import profile, registry, terminal
from hetero.calibration.calibrate import measure_machine
from hetero.calling import overview, planner
from hetero.evaluation import problems
from hetero.evaluation.comparing import compared, means, text
from hetero.times import readable

_LARGEST, _LARGEST_ON_GPU = 2048, 8192  # extents


def demo(
    *,
    largest: int | None = None,
    picture: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    show: Callable[[str], None] = print,
) -> list[dict[str, Any]]:
    """Run the demonstration, by the stored profile of this machine if there is one.

    Else the machine is measured quickly, for this process alone. Nothing is watched between calls:
    each moves its operands and its result, as the plan of a first call and the other libraries do.
    ``picture`` names a PGM file for the filtered photograph; that of few colours is next to it.

    Gives a row of `hetero.evaluation.comparing` for each call.
    """
    start = time.perf_counter()
    tell = progress or (lambda fraction, text: None)
    tell(0.0, "trying the devices")
    show(overview.summary())
    if (stored := profile.survey()) and stored[0].obstacle is None:
        profile.set_current(None)  # but for this file's, one may be set
        show(f"by the profile {stored[0].path}")
    else:
        quick = measure_machine(True, None, terminal.part(progress, 0.0, 0.6))
        profile.set_current(profile.parse(profile.encode(quick)))
        took = readable(time.perf_counter() - start)
        show(f"calibrated in {took}, for this run alone ('hetero calibrate' does it better, once)")
    gpu = any(not d.describe().get("is_host_cpu") for d in backends.proven().values())
    size = largest or (_LARGEST_ON_GPU if gpu else _LARGEST)
    shown = [(o, *one) for o in registry.operations() for one in problems.of(o).shown(size)]
    rows, plan = list[dict[str, Any]](), None
    saved: dict[str, Any] = {}  # operation -> the result of its last call
    for number, (operation, title, trial) in enumerate(shown):
        tell(0.6 + 0.4 * number / len(shown), title)
        with planner.use(watch=False):
            row, own, saved[operation.name] = compared(operation, trial, title)
        rows.append(row)
        show("\n" + terminal.aligned(text([row])))
        for module, name, package in problems.of(operation).modules:
            if problems.library(module) is None:
                show(f"{name} is not installed: pip install {package}")
        if plan is None or len(own.candidates) > len(plan.candidates):
            plan = own
    for name, result in saved.items() if picture is not None else ():
        save = problems.of(registry.operation(name)).save
        if save is not None and result is not None:
            show(f"a picture of {name} is in {save(result, picture)}")
    show("\n" + terminal.aligned("\n".join(means(rows))))
    if plan is not None:
        show(f"\nhow one of them was chosen, as hetero.plan and 'hetero explain' print it:\n{plan}")
    show(f"\n{readable(time.perf_counter() - start)} in all")
    return rows
