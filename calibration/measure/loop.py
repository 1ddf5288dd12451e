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

from hetero.calibration.measure import repeating, sampling
from hetero.calibration.measure.timing import Watch, wait_until_idle
from hetero.calibration.measure.workbench import Bench, Samples
from hetero.calibration.progress import Failure
from hetero.calibration.worklist import WorkItem, in_turn
from hetero.ops.cases import Budget, Case, Dims, Place
from hetero.registry import BLAS
from hetero.registry.models import ModelKey

Progress = Callable[[float, str], None]


class Measured(NamedTuple):
    """A case, the place, and its samples."""

    case: Case
    place: Place
    samples: Samples

    @property
    def key(self) -> ModelKey:
        return key_of(self.case, self.place)


def key_of(case: Case, place: Place) -> ModelKey:
    """The key of a case's model."""
    row = case.implementation
    return ModelKey(place.name, row.operation, row.method, case.dtype, case.layout)


def measure(
    worklist: list[WorkItem],
    budget: Budget,
    shares: dict[tuple[str, str, str], float],
    progress: Progress,
    failures: list[Failure],
    watch: Watch | None = None,
) -> list[Measured]:
    """Samples of all cases that can be measured.

    Those that met other load, or are implausible, are taken again at the end.

    Parameters
    ----------
    worklist, budget
    shares : dict
        Place, operation and method -> the host's share of a call.
    progress : callable
        Called with the planned seconds, and the name of what is measured next.
    failures : list
        Is added to.
    watch : Watch, optional
        Notices other load.
    """
    start = time.perf_counter()
    watch = watch or Watch()
    benches: dict[str, Bench] = {}
    gone: set[str] = set()

    def bench_at(place: Place) -> Bench:
        if place.name not in benches:
            benches[place.name] = Bench(place.devices, watch)
        return benches[place.name]

    left = {item.place.name: 0.0 for item in worklist}
    for item in worklist:
        left[item.place.name] += sum(case.seconds for case in item.cases)
    time_left = dict(left)  # time that a case leaves goes to those that follow at its place
    samples: dict[ModelKey, Measured] = {}
    for item, case, seconds in in_turn(worklist):
        place, row, key = item.place, case.implementation, key_of(case, item.place)
        progress(seconds, f"{case} on {place.name}")
        if place.name in gone:
            continue
        share = budget.patience * max(time_left[place.name], 0.1) * seconds / left[place.name]
        left[place.name] = max(left[place.name] - seconds, 1e-9)
        begin = time.perf_counter()
        try:
            _calm(case, place)
            with active(place):
                bench = bench_at(place)
                host = shares.get((place.name, row.operation, row.method))
                before = samples[key].samples if key in samples else None
                taken = sampling.take(case, bench, budget, share, host, before)
                samples[key] = Measured(case, place, taken)
        except Exception as error:
            failures.append(Failure(row.operation, place.name, str(case), error))
            if not alive(place):
                failures.append(Failure("", place.name, str(case), error))
                gone.add(place.name)
        time_left[place.name] -= time.perf_counter() - begin
    results = list(samples.values())

    def again(number: int, dims: list[Dims]) -> Samples:
        case, place, before = results[number]
        if place.name not in gone:
            progress(2 * budget.point * len(dims), f"{case} on {place.name}, again")
            try:
                _calm(case, place)
                with active(place):
                    taken = sampling.again(case, bench_at(place), budget, before, dims)
                results[number] = results[number]._replace(samples=taken)
            except Exception as error:
                if not alive(place):
                    failures.append(Failure("", place.name, str(case), error))
                    gone.add(place.name)
        return results[number].samples

    seconds = time.perf_counter() - start
    watch.count(*repeating.settle(results, again, budget, seconds))
    return results


def _calm(case: Case, place: Place) -> None:
    """Wait for BLAS's idle threads to sleep before a case of the CPU that does not use them."""
    if not place.devices and case.implementation.method != BLAS:
        wait_until_idle()


def active(place: Place) -> Any:
    """A context in which operands of a single device can be made."""
    return place.devices[0].active() if len(place.devices) == 1 else contextlib.nullcontext()


def alive(place: Place) -> bool:
    """Whether the devices of a place still run a small kernel."""
    for device in place.devices:
        try:
            device.probe()
        except Exception:
            return False
    return True
