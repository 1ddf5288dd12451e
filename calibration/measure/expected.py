"""What is known of samples before they are taken: work, estimates, conservative seconds."""

from __future__ import annotations

import functools
from collections.abc import Callable
from statistics import median

from hetero import profile
from hetero.calibration.measure.samples import Samples
from hetero.ops.cases import Case, Dims, Passes, Place, TimedSolves

_FEW = 8  # knots of a curve that are compared with the conservative constants


def curves(samples: Samples) -> list[dict[Dims, float]]:
    """Seconds by dimensions; of solves, of a step, of few, and of as many for all as for some."""
    if not samples.timed:
        return [samples.seconds]
    few = {dims: seconds[0] for dims, seconds in samples.timed.items()}
    if all(len(steps) < 2 for steps in samples.steps.values()):
        return [samples.seconds, few]
    number = median(steps[-1] for steps in samples.steps.values())
    more = {
        dims: samples.timed[dims][-1] + (number - steps[-1]) * samples.seconds[dims]
        for dims, steps in samples.steps.items()
    }
    return [samples.seconds, few, {dims: max(more[dims], few[dims]) for dims in more}]


def amount(case: Case, place: Place) -> Callable[[Dims], float]:
    """What a step of a solve has to do: a dense matrix has more entries than unknowns, squared."""

    @functools.cache
    def units(dims: Dims) -> float:
        work = case.implementation.work(case.problem(*dims), place.info)
        return work.flops + work.bytes

    return units


def estimated(case: Case, place: Place) -> Callable[[Dims], float] | None:
    """What the implementation itself expects, where that is what its model corrects."""
    if not getattr(case.how, "by_estimate", False):
        return None

    @functools.cache
    def seconds(dims: Dims) -> float:
        return case.implementation.work(case.problem(*dims), place.info).estimate

    return seconds


def spread_out(dims: list[Dims]) -> list[Dims]:
    """Few of them, the first and the last among them: a whole curve is what they stand for."""
    return dims[:: max(len(dims) // _FEW, 1)] + dims[-1:]


@functools.cache
def _constants() -> profile.Profile:
    return profile.shipped("conservative")


def conservative(case: Case, place: Place) -> Callable[[Dims], float] | None:
    """Seconds by the constants used before calibration; of one step in a solve of several."""
    row = case.implementation
    cost = _constants().cost(
        place.name, place.kind, row.operation, row.method, case.dtype, case.layout
    )
    if cost is None or case.problem is None:
        return None
    sizes = {**case.how.held_out, **case.how.knots} if isinstance(case.how, Passes) else {}

    @functools.cache
    def seconds(dims: Dims) -> float:
        work = row.work(case.problem(*sizes.get(dims, dims)), place.info)
        overhead, compute = cost(work)
        if isinstance(case.how, TimedSolves) and case.how.few < case.how.many:
            compute /= max(work.repeat, 1)
        return overhead * work.calls + compute

    return seconds
