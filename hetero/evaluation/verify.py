"""Does the plan choose well? Random shapes, every candidate measured, chosen over best."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero import registry
from hetero.arrays import HOST
from hetero.calibration.fit.fit import residuals
from hetero.calling import planner
from hetero.errors import MethodNotAvailable
from hetero.evaluation import draws, turns
from hetero.evaluation.left_out import leaving_out
from hetero.host import limits
from hetero.ops import benchmark
from hetero.ops.benchmark import Trial
from hetero.pricing.plan import Plan
from hetero.registry import Operation
from hetero.registry.problem import Problem

_MUCH_SLOWER = 30.0  # than the best, by prediction: no candidate that needs to be measured


@dataclass(frozen=True, slots=True)
class Row:
    """One random problem: what was predicted and what was measured.

    Attributes
    ----------
    problem : Problem
    predicted, measured : dict
        (device, method) -> seconds.
    chosen, best : (device, method)
    failed : dict
        (device, method) -> why it could not be measured.
    """

    problem: Problem
    predicted: dict[tuple[str, str], float]
    measured: dict[tuple[str, str], float]
    chosen: tuple[str, str]
    best: tuple[str, str]
    failed: dict[tuple[str, str], str]

    @property
    def ratio(self) -> float:
        """Seconds of the chosen candidate over those of the best one."""
        return self.measured[self.chosen] / self.measured[self.best]


def unless_told() -> tuple[Operation, ...]:
    """The operations that are verified unless others are named."""
    return tuple(o for o in registry.operations() if benchmark.of(o, "VERIFIED", False))


def verify(
    operations: tuple[Operation, ...],
    *,
    on: str = HOST,
    count: int = 100,
    seconds: float = 60.0,
    seed: int = 0,
    largest: int | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[Row]:
    """Measure every candidate of random problems.

    Parameters
    ----------
    operations : tuple of Operation
    on : str
        Where the operands lie: "host" or a device.
    count : int
        Problems for each operation.
    seconds : float
        Time after which no further problem is drawn.
    seed : int
    largest : int, optional
        Largest extent. Default: 4096, 16384 where there is a GPU.
    progress : callable, optional
        As in `hetero.calibrate`.
    """
    draw = random.Random(seed)
    if progress is not None:
        progress(0.0, "trying the devices")
    gpu = any(not d.describe().get("is_host_cpu") for d in backends.proven().values())
    largest = largest or (16384 if gpu else 4096)
    memory = draws.Arrays(on)
    rows: list[Row] = []
    begin = time.perf_counter()
    total = count * len(operations)
    for number in range(total):
        spent = time.perf_counter() - begin
        if spent > seconds:
            break
        operation = operations[number % len(operations)]
        trial = draws.draw(operation, draw, on, largest)
        if progress is not None:
            problem = operation.problem(*trial.operands, **trial.options)
            progress(max(number / total, spent / seconds), str(problem))
        row = measure_candidates(operation, trial, memory)
        if row is not None:
            rows.append(row)
    return rows


def measure_candidates(
    operation: Operation,
    trial: Trial,
    memory: draws.Arrays,
    budget: float = 0.05,
    longest: float = 1.0,
    also: tuple[tuple[str, str], ...] = (),
) -> Row | None:
    """Predict and measure every candidate of a call; None if one would take too long.

    A candidate that fails is left out, and the choice is the best of those that are left.

    Parameters
    ----------
    operation : Operation
    trial : Trial
    memory : Arrays
        Where its operands are made.
    budget : float
        Seconds for each candidate.
    longest : float
        Predicted seconds of a candidate above which the call is left out; the candidate alone
        where it is slower than another by far.
    also : tuple of (device, method)
        Measured too, although the plan does not consider them unasked.
    """
    plan = planner.plan_call(operation, trial.operands, trial.options)
    predicted = _predicted(plan, longest)
    if not predicted:
        return None
    arrays, options = memory.of(trial), trial.options
    calls: dict[tuple[str, str], Callable[[], object]] = {}
    failed: dict[tuple[str, str], str] = {}
    spinning = set()
    for name in (*predicted, *also):
        with leaving_out(name, failed):
            calls[name], uses = _caller(operation, arrays, options, *name)
            spinning |= {name} if limits.BLAS in uses else set()
    chosen = min(predicted, key=lambda name: predicted[name])
    measured = turns.timed(
        calls, budget=budget, failed=failed, chosen=chosen, spinning=frozenset(spinning)
    )
    predicted = {name: seconds for name, seconds in predicted.items() if name in measured}
    if not predicted:
        return None
    best = min(measured, key=lambda name: measured[name])
    chosen = min(predicted, key=lambda name: predicted[name])
    return Row(plan.problem, predicted, measured, chosen, best, failed)


def _predicted(plan: Plan, longest: float) -> dict[tuple[str, str], float]:
    """Seconds of the candidates to be measured; none if one has no price or takes too long."""
    candidates = [c for c in plan.candidates if c.reason is None]
    seconds = {(c.device, c.method): c.seconds for c in candidates if c.seconds is not None}
    if not seconds or len(seconds) < len(candidates):
        return {}
    least = min(seconds.values())
    kept = {name: s for name, s in seconds.items() if s <= max(longest, _MUCH_SLOWER * least)}
    return kept if max(kept.values()) <= longest else {}


def _caller(
    operation: Operation,
    arrays: tuple[Any, ...],
    options: Mapping[str, Any],
    device: str,
    method: str,
) -> tuple[Callable[[], object], tuple[str, ...]]:
    """A call by one candidate that waits until the result is there, and what it uses.

    Raises
    ------
    MethodNotAvailable
        If it would not run where it says.
    """
    plan = planner.plan_call(operation, arrays, options, device, method)
    if (plan.chosen.device, plan.chosen.method) != (device, method):
        raise MethodNotAvailable(backends.disabled(device) or f"{device} cannot run it now")
    run = benchmark.placed_call(operation, arrays, options, device, method)
    uses = () if plan.chosen.implementation is None else plan.chosen.implementation.uses
    if plan.problem.output.location == HOST:  # and there when the call returns
        return run, uses
    places = {o.location for o in plan.problem.inputs} | {device}
    used = [backends.get(name) for name in places & backends.available().keys()]

    def call() -> None:
        run()
        for one in used:
            with one.active():
                one.synchronize()

    return call, uses


def summary(rows: list[Row]) -> dict[str, Any]:
    """Chosen over best (geometric mean, 95th and 99th percentile, worst), prediction errors."""
    if not rows:
        return {"problems": 0, "left_out": {}}
    ratios = np.array([row.ratio for row in rows])
    errors: dict[str, dict[str, float]] = {}
    wins: dict[str, int] = {}
    for row in rows:
        name = f"{row.problem.operation} {row.best[1]} on {row.best[0]}"
        wins[name] = wins.get(name, 0) + 1
    names = sorted({(row.problem.operation, *name) for row in rows for name in row.predicted})
    for operation, device, method in names:
        pairs = [
            (row.predicted[device, method], row.measured[device, method])
            for row in rows
            if row.problem.operation == operation and (device, method) in row.predicted
        ]
        errors[f"{operation} {method} on {device}"] = residuals(
            [p for p, _ in pairs], [m for _, m in pairs]
        )
    return {
        "problems": len(rows),
        "chosen_over_best": {
            "geometric_mean": float(np.exp(np.log(ratios).mean())),
            "p95": float(np.percentile(ratios, 95)),
            "p99": float(np.percentile(ratios, 99)),
            "worst": float(ratios.max()),
            "fastest_within_5_percent": float((ratios <= 1.05).mean()),
        },
        "fastest": wins,
        "prediction_error": errors,
        "left_out": left_out(rows),
    }


def left_out(rows: list[Row]) -> dict[str, str]:
    """Device -> why measuring something there failed first; what is broken from the start, too."""
    found = {f"{name}": reason for name, reason in backends.broken().items()}
    for row in rows:
        for (device, method), reason in row.failed.items():
            found.setdefault(device, f"{method}, {row.problem}: {reason}")
    return found
