"""`hetero demo`: calibrate quickly, run real calls of all sizes, show what was chosen."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, NamedTuple

from hetero import devices as backends
from hetero import profile, registry, terminal
from hetero.arrays import HOST, Spec
from hetero.calibration.calibrate import measure_machine
from hetero.calibration.measure.candidates import leaving_out, once
from hetero.calling import overview, planner
from hetero.evaluation import report
from hetero.evaluation.calls import Arrays
from hetero.evaluation.verify import measure_candidates, summary
from hetero.ops import benchmark
from hetero.ops.benchmark import Trial
from hetero.pricing.plan import Candidate, Plan, readable
from hetero.registry import Operation
from hetero.registry.problem import Problem

_SLOW = 3e9  # flops from which on OpenCL on the CPU is left out: it would take seconds


class Demo(NamedTuple):
    """What an operation's own part of the demonstration gets."""

    show: Callable[[str], None]  # prints a text
    gpu: bool  # whether there is a device that is not the CPU itself
    picture: str | None  # file to save a picture in

    def second(self, call: Callable[[], Any]) -> tuple[Any, float]:
        """What a call gives, and the seconds of its second run: the first one may compile."""
        call()
        results = []
        seconds = once(lambda: results.append(call()))
        return results[0], seconds

    def seconds(
        self,
        operation: Operation,
        operands: tuple[Any, ...],
        options: Mapping[str, Any],
        plan: Plan,
        longest: float,
    ) -> dict[str, float]:
        """Seconds of the second call by each candidate that is not expected to take too long."""

        def placed(candidate: Candidate) -> Callable[[], object]:
            place = {"device": candidate.device, "method": candidate.method}
            return partial(operation.call, *operands, **options, **place)

        times: dict[str, float] = {}
        failed: dict[str, str] = {}
        for name, call in benchmark.of_candidates(plan, placed, longest=longest).items():
            with leaving_out(name, failed):
                _, times[name] = self.second(call)
        for name, reason in failed.items():
            self.show(f"{name} is left out: {reason}")
        return times


def demo(
    *,
    largest: int | None = None,
    picture: str | None = None,
    progress: Callable[[float, str], None] | None = None,
    show: Callable[[str], None] = print,
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run the demonstration; the profile measured for it is used here and not stored.

    Parameters
    ----------
    largest : int, optional
        Largest extent of the products.
    picture : str, optional
        PGM file to save the filtered photograph in.
    progress, show : callable

    Returns
    -------
    (calls, summary)
        A dict for each call: shape, where the operands lie, chosen device and method, predicted
        and measured seconds, the best alternative; and the figures of chosen over best.
    """
    start = time.perf_counter()
    tell = progress or (lambda fraction, text: None)
    tell(0.0, "trying the devices")
    show(overview.summary())
    quick = measure_machine(True, None, terminal.part(progress, 0.0, 0.5))
    profile.set_current(profile.parse(profile.encode(quick)))
    show(f"calibrated in {time.perf_counter() - start:.1f} s (hetero calibrate stores it)\n")
    infos = {name: device.describe() for name, device in backends.proven().items()}
    gpus = [name for name, info in infos.items() if not info.get("is_host_cpu")]
    rows = _table(largest or (8192 if gpus else 4096), terminal.part(progress, 0.5, 0.85), show)
    found = summary([row for row, _ in rows])
    show("")
    if rows:
        show(report.chosen_over_best(found["chosen_over_best"]) + f", {found['problems']} calls")
        show(f"\nwhy, for the last one:\n{planner.plan(rows[-1][0].problem)}")
    parts = [(o, part) for o in registry.operations() if (part := benchmark.of(o, "demonstrate"))]
    for number, (operation, demonstrate) in enumerate(parts):
        tell(0.85 + 0.15 * number / len(parts), operation.summary)
        found |= demonstrate(Demo(show, bool(gpus), picture))
    show(f"\n{time.perf_counter() - start:.0f} s in all")
    return [entry for _, entry in rows], found


def _table(
    largest: int,
    progress: Callable[[float, str], None] | None,
    show: Callable[[str], None],
) -> list[tuple[Any, dict[str, Any]]]:
    """A line for each call that the operations want shown, operands on the host and on a GPU."""
    calls = [
        (operation, text, trial)
        for operation in registry.operations()
        for text, trial in benchmark.of(operation, "trials", lambda largest: ())(largest)
    ]
    gpu = benchmark.cuda_device()
    places = [HOST] if gpu is None else [HOST, gpu]
    show(
        f"{'call':<34} {'operands on':<11} {'chosen':<18} {'predicted':>10} {'measured':>10}   "
        "best alternative"
    )
    rows = []
    failed: dict[str, str] = {}
    for turn, place in enumerate(places):
        memory = Arrays(place)
        for number, (operation, text, trial) in enumerate(calls):
            if progress is not None:
                progress((turn + number / len(calls)) / len(places), text)
            there = _moved(trial, place)
            problem = operation.problem(*there.operands, **there.options)
            also = [name for name in _unasked(problem) if name[0] not in failed]
            row = measure_candidates(
                operation, there, memory, budget=0.02, longest=5.0, also=tuple(also[:1])
            )
            if row is None:
                continue
            for (name, method), reason in row.failed.items():
                if failed.setdefault(name, reason) is reason:
                    show(f"{method} on {name} is left out: {reason}")
            others = {name: s for name, s in row.measured.items() if name != row.chosen}
            best = min(others, key=lambda name: others[name]) if others else None
            rows.append((row, _as_dict(text, place, row, best)))
            alternative = f"{_name(best)} {readable(others[best])}" if best else "none here"
            predicted, measured = row.predicted[row.chosen], row.measured[row.chosen]
            show(
                f"{text:<34} {place:<11} {_name(row.chosen):<18} {readable(predicted):>10} "
                f"{readable(measured):>10}   {alternative}"
            )
    return rows


def _name(candidate: tuple[str, str]) -> str:
    device, method = candidate
    return f"{method} on {device}"


def _moved(trial: Trial, place: str) -> Trial:
    """The same call with its arrays on a device."""
    operands = tuple(
        Spec(x.shape, x.dtype, on=place, order=x.order) if isinstance(x, Spec) else x
        for x in trial.operands
    )
    return trial._replace(operands=operands)


def _unasked(problem: Problem) -> list[tuple[str, str]]:
    """Ways on devices that are the CPU once more, which no plan considers unless it is asked to."""
    found = []
    for name, device in backends.proven().items():
        info = device.describe()
        for row in registry.considered(problem.operation):
            there = info.get("is_host_cpu") and row.kind == device.kind
            if there and row.work(problem, info).flops < _SLOW:
                found.append((name, row.method))
    return found


def _as_dict(call: str, place: str, row: Any, best: tuple[str, str] | None) -> dict[str, Any]:
    def named(name: tuple[str, str]) -> dict[str, Any]:
        return {"device": name[0], "method": name[1]}

    return {
        "call": call,
        "operands_on": place,
        **named(row.chosen),
        "predicted": row.predicted[row.chosen],
        "measured": row.measured[row.chosen],
        "best_alternative": best and {**named(best), "measured": row.measured[best]},
    }
