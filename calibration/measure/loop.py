"""Calibration's loop over the operations: cases -> samples.

`worklist` lists the cases, `modelling` fits models to the samples. Each step is a function of data,
and its result can be printed. An error costs only the models that it concerns: it becomes a
`Failure`, and the rest goes on.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from hetero.calibration.measure import sampling
from hetero.calibration.measure.timing import wait_until_idle
from hetero.calibration.measure.workbench import Bench, Samples
from hetero.calibration.progress import Failure
from hetero.calibration.worklist import WorkItem
from hetero.ops.cases import Budget, Case, Place
from hetero.registry import BLAS
from hetero.registry.models import ModelKey


class Measured(NamedTuple):
    """A case, the place, and its samples."""

    case: Case
    place: Place
    samples: Samples

    @property
    def key(self) -> ModelKey:
        """The key of the case's model."""
        case, row = self.case, self.case.implementation
        return ModelKey(self.place.name, row.operation, row.method, case.dtype, case.layout)


def measure(
    worklist: list[WorkItem],
    budget: Budget,
    shares: dict[tuple[str, str, str], float],
    progress: Callable[[float, str], None],
    failures: list[Failure],
) -> tuple[list[Measured], tuple[int, int, int]]:
    """Samples of all cases that can be measured; the numbers of all, of those taken again, and of
    those that are still doubtful.

    Those that the other samples of their case contradict are taken once more at the end, since
    bursts of other load last for a while. ``shares``: place, operation and method -> the host's
    share of a call. ``progress`` is called with the planned seconds, and the name of what is
    measured next.
    """
    benches: dict[str, Bench] = {}
    gone: set[str] = set()

    def taken(case: Case, place: Place, take: Callable[..., Any], *given: Any) -> Any:
        """What ``take(case, bench, budget, *given)`` returns; None where that fails."""
        if place.name in gone:
            return None
        try:
            if not place.devices and case.implementation.method != BLAS:
                wait_until_idle()  # threads of BLAS spin
            alone = len(place.devices) == 1  # so that its operands can be made
            with place.devices[0].active() if alone else contextlib.nullcontext():
                if place.name not in benches:
                    benches[place.name] = Bench(place.devices)
                return take(case, benches[place.name], budget, *given)
        except Exception as error:
            failures.append(Failure(case.implementation.operation, place.name, str(case), error))
            if not alive(place):
                failures.append(Failure("", place.name, str(case), error))
                gone.add(place.name)
            return None

    left: dict[str, float] = {}
    for place, case in worklist:
        left[place.name] = left.get(place.name, 0.0) + case.seconds
    time_left = dict(left)  # time that a case leaves goes to those that follow at its place
    results: list[Measured] = []
    for place, case in worklist:
        row, seconds = case.implementation, case.seconds
        progress(seconds, f"{case} on {place.name}")
        share = budget.patience * max(time_left[place.name], 0.1) * seconds / left[place.name]
        left[place.name] = max(left[place.name] - seconds, 1e-9)
        begin = time.perf_counter()
        host = shares.get((place.name, row.operation, row.method), 0.0)
        samples = taken(case, place, sampling.take, share, host)
        if samples is not None:
            results.append(Measured(case, place, samples))
        time_left[place.name] -= time.perf_counter() - begin
    doubts = [sampling.contradicted(one.case, one.samples) for one in results]
    doubtful = 0
    for number, dims in enumerate(doubts):
        case, place, before = results[number]
        if dims:
            progress(2 * budget.point * len(dims), f"{case} on {place.name}, again")
            samples = taken(case, place, sampling.again, before, dims)
            if samples is not None:
                results[number] = results[number]._replace(samples=samples)
            doubtful += len(sampling.unconfirmed(case, before, results[number].samples, dims))
    total = sum(len(one.samples.seconds) + len(one.samples.held_out) for one in results)
    return results, (total, sum(map(len, doubts)), doubtful)


def alive(place: Place) -> bool:
    """Whether the devices of a place still run a small kernel."""
    for device in place.devices:
        try:
            device.probe()
        except Exception:
            return False
    return True
