"""Does the plan choose well? Random shapes, every candidate measured; the call over the best."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from hetero import devices as backends
from hetero import registry
from hetero.arrays import HOST
from hetero.calibration.fit import residuals
from hetero.calling import planner
from hetero.errors import readable
from hetero.evaluation import problems
from hetero.evaluation.calls import Arrays, draw
from hetero.evaluation.comparing import OWN, callers, name_of, timed
from hetero.evaluation.problems import Trial
from hetero.evaluation.report import errors
from hetero.imports import load
from hetero.registry import Operation, Problem
from hetero.terminal import Progress, silent

USUAL = ("matvec", "matmul")  # what is verified unless others are named
_LONGEST = 1.0  # predicted seconds of a candidate, above which a call is left out
_MUCH_SLOWER = 30.0  # than the best, by prediction: no candidate that needs to be measured
_BRIEF = 0.01  # seconds of a call, above which slow spells are a small part
_ROUNDS = 3, 9  # of the call in turn with the fastest candidate; of brief ones
# Times at most that both are measured where they are the same work, as long as they differ by more.
_AGAIN, _ALIKE = 3, 1.02
_WORST, _WRONG = 8, 1.05  # choices that are listed; times the best, above which one is wrong


class Row(NamedTuple):
    """One random problem: what was predicted and what was measured, by "method on device"."""

    problem: Problem
    predicted: dict[str, float]  # seconds; that of the one that is chosen comes first
    measured: dict[str, float]  # of calls that name the candidate
    seconds: float  # of the call that is placed by itself
    best: str  # the fastest candidate
    failed: dict[str, str]  # why it could not be measured

    @property
    def ratio(self) -> float:
        """Seconds of the call that is placed by itself over those of the best one, itself included:
        a call that names a method is not always remembered, and may take longer."""
        return self.seconds / min(self.seconds, self.measured[self.best])


def verify(
    operations: tuple[Operation, ...],
    *,
    on: str = HOST,
    count: int = 100,
    seconds: float = 60.0,
    seed: int = 0,
    largest: int | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Measure every candidate of random problems, ``count`` for each operation.

    Operands lie ``on`` the host or a device; after ``seconds`` no further problem is drawn. The
    ``largest`` extent is 4096 unless it is given, 16384 where there is a GPU.
    """
    source = random.Random(seed)
    progress(0.0, "trying the devices")
    usual = 16384 if problems.cuda_device() else 4096
    memory, rows = Arrays(on), list[Row]()
    load("scipy.signal")  # as a program that filters images; until then few products are NumPy's
    begin, total = time.perf_counter(), count * len(operations)
    for number in range(total):
        spent = time.perf_counter() - begin
        if spent > seconds:
            break
        operation = operations[number % len(operations)]
        trial = draw(operation, source, on, largest or usual)
        problem = operation.problem(*trial.operands, **trial.options)
        progress(max(number / total, spent / seconds), str(problem))
        if (row := _measured(operation, trial, memory)) is not None:
            rows.append(row)
    return rows


def _measured(operation: Operation, trial: Trial, memory: Arrays) -> Row | None:
    """Predict and measure every candidate of a call, and the call itself; operands in ``memory``.

    None if a candidate has no price or would take too long, unless it is slower than another by
    far. One that fails is left out, and the choice is the best of those that are left.
    """
    plan, failed = planner.plan_call(operation, trial.operands, dict(trial.options)), {}
    prices = {name_of(c): c.seconds for c in plan.candidates if c.reason is None}
    if not prices or None in prices.values():
        return None
    most = max(_LONGEST, _MUCH_SLOWER * min(prices.values()))
    prices = {name: seconds for name, seconds in prices.items() if seconds <= most}
    if max(prices.values()) > _LONGEST:
        return None
    calls = callers(operation, memory.of(trial), trial.options, prices, failed)
    own = calls.pop(OWN, None)
    measured = timed(calls, failed=failed)
    predicted = {name: price for name, price in prices.items() if name in measured}
    if own is None or not predicted:
        return None
    # Not by the samples that it is the fastest by, maybe by luck, but in turn with the call; often,
    # or a slow spell of one of them would count as a wrong choice.
    best = min(measured, key=measured.__getitem__)
    rounds = _ROUNDS[measured[best] < _BRIEF]
    del measured[best]
    for _ in range(_AGAIN if best == next(iter(predicted)) else 1):
        taken = timed({OWN: own, best: calls[best]}, failed=failed, chosen=OWN, rounds=rounds)
        if taken.keys() != {OWN, best}:
            return None
        for name, seconds in taken.items():
            measured[name] = min(seconds, measured.get(name, seconds))
        if measured[OWN] <= _ALIKE * measured[best]:
            break
    return Row(plan.problem, predicted, measured, measured.pop(OWN), best, failed)


def summary(rows: list[Row]) -> dict[str, Any]:
    """The call over the best (geometric mean, 95th and 99th percentile, worst), prediction errors,
    and the worst choices, a line for each."""
    if not rows:
        return {"problems": 0, "left_out": {}, "worst_choices": []}
    worst = sorted(rows, key=lambda row: -row.ratio)
    ratios = np.array([row.ratio for row in rows])
    pairs: dict[str, list[tuple[float, float]]] = {}
    left_out = dict(backends.broken())  # device -> why measuring something there failed first
    for row in rows:
        for name, predicted in row.predicted.items():
            pairs.setdefault(_title(row, name), []).append((predicted, row.measured[name]))
        for name, reason in row.failed.items():
            method, _, device = name.partition(" on ")
            left_out.setdefault(device, f"{method}, {row.problem}: {reason}")
    return {
        "problems": len(rows),
        "chosen_over_best": {
            "geometric_mean": float(np.exp(np.log(ratios).mean())),
            "p95": float(np.percentile(ratios, 95)),
            "p99": float(np.percentile(ratios, 99)),
            "worst": float(ratios.max()),
            "fastest_within_5_percent": float((ratios <= _WRONG).mean()),
        },
        "fastest": dict(Counter(_title(row, row.best) for row in rows)),
        "prediction_error": {
            title: residuals(*map(list, zip(*found, strict=True)))
            for title, found in sorted(pairs.items())
        },
        "left_out": left_out,
        "worst_choices": [_line(row) for row in worst[:_WORST] if row.ratio > _WRONG],
    }


def _title(row: Row, name: str) -> str:
    return f"{registry.operation(row.problem.operation).function} {name}"


def _line(row: Row) -> str:
    named = (next(iter(row.predicted)), row.seconds), (row.best, row.measured[row.best])
    chosen, best = (
        f"{name} ({readable(seconds)}, predicted {readable(row.predicted[name])})"
        for name, seconds in named
    )
    return f"{row.ratio:5.2f}x {row.problem}: chose {chosen}, best {best}"


def text(found: Mapping[str, Any]) -> str:
    """What `summary` gives."""
    left_out = [f"left out: {name}: {why}" for name, why in found["left_out"].items()]
    if not found["problems"]:
        return "\n".join(["no problem could be measured", *left_out])
    over = found["chosen_over_best"]
    lines = [
        f"{found['problems']} random problems",
        f"call / best: geometric mean {over['geometric_mean']:.3f}, 95th percentile "
        f"{over['p95']:.3f}, 99th {over['p99']:.3f}, worst {over['worst']:.3f}",
        *(f"  fastest {count} times: {name}" for name, count in sorted(found["fastest"].items())),
        *errors("prediction error", found["prediction_error"]),
    ]
    return "\n".join([*lines, *found["worst_choices"], *left_out])
