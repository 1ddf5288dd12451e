"""Does the plan choose well? Random shapes, every candidate measured, chosen over best."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero import registry
from hetero.arrays import HOST
from hetero.calibration.candidates import awaited, leaving_out, timed
from hetero.calibration.fit import residuals
from hetero.calling import planner
from hetero.errors import MethodNotAvailable
from hetero.evaluation.calls import Arrays, draw
from hetero.ops import benchmark
from hetero.ops.benchmark import Trial
from hetero.pricing.plan import Plan
from hetero.registry import Operation
from hetero.registry.problem import Problem

_BUDGET = 0.05  # seconds for each candidate
_LONGEST = 1.0  # predicted seconds of a candidate, above which a call is left out
_MUCH_SLOWER = 30.0  # than the best, by prediction: no candidate that needs to be measured
Name = tuple[str, str]  # of a candidate: device and method


@dataclass(frozen=True, slots=True)
class Row:
    """One random problem: what was predicted and what was measured."""

    problem: Problem
    predicted: dict[Name, float]  # seconds
    measured: dict[Name, float]
    chosen: Name
    best: Name
    failed: dict[Name, str]  # why it could not be measured

    @property
    def ratio(self) -> float:
        """Seconds of the chosen candidate over those of the best one."""
        return self.measured[self.chosen] / self.measured[self.best]


def usual() -> tuple[Operation, ...]:
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
    """Measure every candidate of random problems, ``count`` for each operation.

    Operands lie ``on`` the host or a device; after ``seconds`` no further problem is drawn. The
    ``largest`` extent is 4096 unless it is given, 16384 where there is a GPU.
    """
    source = random.Random(seed)
    if progress is not None:
        progress(0.0, "trying the devices")
    gpu = any(not d.describe().get("is_host_cpu") for d in backends.proven().values())
    largest = largest or (16384 if gpu else 4096)
    memory = Arrays(on)
    rows: list[Row] = []
    begin = time.perf_counter()
    total = count * len(operations)
    for number in range(total):
        spent = time.perf_counter() - begin
        if spent > seconds:
            break
        operation = operations[number % len(operations)]
        trial = draw(operation, source, on, largest)
        if progress is not None:
            problem = operation.problem(*trial.operands, **trial.options)
            progress(max(number / total, spent / seconds), str(problem))
        row = measure_candidates(operation, trial, memory)
        if row is not None:
            rows.append(row)
    return rows


def measure_candidates(operation: Operation, trial: Trial, memory: Arrays) -> Row | None:
    """Predict and measure every candidate of a call; None if one would take too long.

    A candidate that fails is left out, and the choice is the best of those that are left.
    ``memory`` is where its operands are made.
    """
    plan = planner.plan_call(operation, trial.operands, trial.options)
    predicted = _predicted(plan)
    if not predicted:
        return None
    arrays, options = memory.of(trial), trial.options
    calls: dict[Name, Callable[[], object]] = {}
    failed: dict[Name, str] = {}
    for name in predicted:
        with leaving_out(name, failed):
            calls[name] = _caller(operation, arrays, options, *name)
    chosen = next(iter(predicted))
    spinning = frozenset(name for name in calls if name[1] == registry.BLAS)
    measured = timed(calls, budget=_BUDGET, failed=failed, chosen=chosen, spinning=spinning)
    predicted = {name: seconds for name, seconds in predicted.items() if name in measured}
    if not predicted:
        return None
    best, chosen = min(measured, key=measured.__getitem__), next(iter(predicted))
    return Row(plan.problem, predicted, measured, chosen, best, failed)


def _predicted(plan: Plan) -> dict[Name, float]:
    """Seconds of the candidates to be measured; none if one has no price or takes too long, unless
    it is slower than another by far."""
    candidates = [c for c in plan.candidates if c.reason is None]
    seconds = {(c.device, c.method): c.seconds for c in candidates if c.seconds is not None}
    if not seconds or len(seconds) < len(candidates):
        return {}
    least = min(seconds.values())
    kept = {name: s for name, s in seconds.items() if s <= max(_LONGEST, _MUCH_SLOWER * least)}
    return kept if max(kept.values()) <= _LONGEST else {}


def _caller(
    operation: Operation,
    arrays: tuple[Any, ...],
    options: Mapping[str, Any],
    device: str,
    method: str,
) -> Callable[[], object]:
    """A call by one candidate that waits until the result is there; MethodNotAvailable if it would
    not run where it says.
    """
    plan = planner.plan_call(operation, arrays, options, device, method)
    if (plan.chosen.device, plan.chosen.method) != (device, method):
        raise MethodNotAvailable(backends.disabled(device) or f"{device} cannot run it now")
    run = benchmark.placed_call(operation, arrays, options, device, method)
    if plan.problem.output.location == HOST:  # and there when the call returns
        return run
    places = {o.location for o in plan.problem.inputs} | {device}
    used = [backends.get(name) for name in places & backends.available().keys()]
    return awaited(run, used)


def summary(rows: list[Row]) -> dict[str, Any]:
    """Chosen over best (geometric mean, 95th and 99th percentile, worst), prediction errors."""
    if not rows:
        return {"problems": 0, "left_out": {}}
    ratios = np.array([row.ratio for row in rows])
    fastest = Counter(f"{_function(row.problem)} {row.best[1]} on {row.best[0]}" for row in rows)
    pairs: dict[tuple[str, str, str], list[tuple[float, float]]] = {}
    for row in rows:
        for name, predicted in row.predicted.items():
            key = _function(row.problem), *name
            pairs.setdefault(key, []).append((predicted, row.measured[name]))
    left_out = dict(backends.broken())  # device -> why measuring something there failed first
    for row in rows:
        for (device, method), reason in row.failed.items():
            left_out.setdefault(device, f"{method}, {row.problem}: {reason}")
    errors = {
        f"{operation} {method} on {device}": residuals(*map(list, zip(*found, strict=True)))
        for (operation, device, method), found in sorted(pairs.items())
    }
    return {
        "problems": len(rows),
        "chosen_over_best": {
            "geometric_mean": float(np.exp(np.log(ratios).mean())),
            "p95": float(np.percentile(ratios, 95)),
            "p99": float(np.percentile(ratios, 99)),
            "worst": float(ratios.max()),
            "fastest_within_5_percent": float((ratios <= 1.05).mean()),
        },
        "fastest": dict(fastest),
        "prediction_error": errors,
        "left_out": left_out,
    }


def _function(problem: Problem) -> str:
    return registry.operation(problem.operation).function
