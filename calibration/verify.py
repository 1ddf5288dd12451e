"""Does the plan choose well? Random shapes, every candidate measured, chosen over best."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero import devices as backends
from hetero import planner, profile
from hetero.arrays import HOST, Operand, describe, spec
from hetero.calibration import overheads, verify_convolutions
from hetero.calibration.fit import residuals
from hetero.calibration.measure import center
from hetero.errors import DeviceError
from hetero.ops import calling, module_of
from hetero.problem import DEVICE_DTYPES, Problem

MEASURED = ("matvec", "matmul", "convolve2d")
DEFAULT = MEASURED[:2]


@dataclass(frozen=True, slots=True)
class Row:
    """One random problem: what was predicted and what was measured.

    Attributes
    ----------
    problem : Problem
    predicted, measured : dict
        (device, method) -> seconds.
    chosen, best : (device, method)
    """

    problem: Problem
    predicted: dict[tuple[str, str], float]
    measured: dict[tuple[str, str], float]
    chosen: tuple[str, str]
    best: tuple[str, str]

    @property
    def ratio(self) -> float:
        """Seconds of the chosen candidate over those of the best one."""
        return self.measured[self.chosen] / self.measured[self.best]


def random_problem(draw: random.Random, operation: str, on: str, largest: int) -> Problem:
    """A problem with sizes log-uniform up to ``largest``, any dtype and order."""
    if operation == "convolve2d":
        return verify_convolutions.random_problem(draw, on, min(largest, 4096))
    dtype = draw.choice(DEVICE_DTYPES)

    def size() -> int:
        return max(2, round(2.0 ** draw.uniform(2, math.log2(largest))))

    m, k = size(), size()
    order = draw.choice("CCF")
    second = (k,) if operation == "matvec" else (k, size())
    first = spec((m, k), dtype, on=on, order=order)
    return module_of(operation).problem(first, spec(second, dtype, on=on, order=draw.choice("CCF")))


def verify(
    operations: tuple[str, ...] = DEFAULT,
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
    operations : tuple of str
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
    gpu = any(not d.describe().get("is_host_cpu") for d in backends.available().values())
    largest = largest or (16384 if gpu else 4096)
    bench = Operands(on)
    rows: list[Row] = []
    begin = time.perf_counter()
    total = count * len(operations)
    for number in range(total):
        spent = time.perf_counter() - begin
        if spent > seconds:
            break
        operation = operations[number % len(operations)]
        problem = random_problem(
            draw, operation, on, largest if operation == "matvec" else largest // 2
        )
        row = measure_candidates(problem, bench)
        if row is not None:
            rows.append(row)
        if progress is not None:
            progress(max(number / total, spent / seconds), str(problem))
    return rows


def measure_candidates(
    problem: Problem,
    bench: Operands,
    budget: float = 0.05,
    longest: float = 1.0,
    also: tuple[tuple[str, str], ...] = (),
) -> Row | None:
    """Predict and measure every candidate of a problem; None if one would take too long.

    Parameters
    ----------
    problem : Problem
    bench : Operands
    budget : float
        Seconds for each candidate.
    longest : float
        Predicted seconds of a candidate above which the problem is left out.
    also : tuple of (device, method)
        Measured too, although the plan does not consider them unasked.
    """
    plan = planner.plan(problem)
    candidates = [c for c in plan.candidates if c.reason is None]
    predicted = {(c.device, c.method): c.seconds for c in candidates if c.seconds is not None}
    if len(predicted) < len(candidates) or max(predicted.values()) > longest:
        return None
    arrays, operands = bench.arrays(problem)
    calls = {
        name: _caller(planner.plan(problem, *name), arrays, operands)
        for name in (*predicted, *also)
    }
    samples: dict[tuple[str, str], list[float]] = {name: [] for name in calls}
    begin = time.perf_counter()
    draw = random.Random(0)
    while True:  # in turn, so that a slower spell of the machine hits all alike
        order = list(calls.items())
        draw.shuffle(order)  # threads that still spin after a call on the CPU hit all alike
        for name, call in order:
            call()  # not counted: the one before ran elsewhere, caches and threads have gone cold
            for _ in range(3):
                start = time.perf_counter()
                call()
                samples[name].append(time.perf_counter() - start)
        done = len(next(iter(samples.values())))
        if done >= 15 or time.perf_counter() - begin > budget * len(calls):
            break
    measured = {name: center(values) for name, values in samples.items()}
    best = min(measured, key=lambda name: measured[name])
    chosen = (plan.chosen.device, plan.chosen.method)
    return Row(problem, predicted, measured, chosen, best)


def _caller(
    plan: planner.Plan, arrays: tuple[Any, ...], operands: tuple[Operand, ...]
) -> Callable[[], object]:
    """Run a plan and wait until the result is there; a failing device is an error here."""
    chosen = plan.chosen
    waits = {o.location for o in operands if o.location != HOST} | {chosen.device}
    waits -= {planner.CPU}
    used = [backends.get(name) for name in waits]
    if plan.problem.operation == "convolve2d":
        run = verify_convolutions.caller(plan, *arrays)
        arrays = ()
    elif all(o.location == HOST for o in operands):  # what the second call of a shape comes down to
        run = calling.shortcut(plan, getattr(np, plan.problem.function))
    else:
        function = getattr(module_of(plan.problem.function), plan.problem.function)
        run = partial(function, device=chosen.device, method=chosen.method)

    def call() -> None:
        run(*arrays)
        for device in used:
            with device.active():
                device.synchronize()
        for device in used:
            if reason := backends.set_aside(device.name):
                raise DeviceError(reason)

    return call


class Operands:
    """Arrays for random problems, on the host or on a device, from memory allocated once."""

    def __init__(self, on: str) -> None:
        self._on = on
        self._block = np.random.default_rng(3).random(1 << 20) - 0.5
        self._pools: dict[Any, np.ndarray] = {}

    def arrays(self, problem: Problem) -> tuple[tuple[Any, ...], tuple[Operand, ...]]:
        """The operands' arrays and descriptions."""
        found = []
        for number, operand in enumerate(problem.inputs):
            host = self._host(operand, number)
            if number and problem.operation == "convolve2d":
                host = verify_convolutions.values(problem, self._block)
                if operand.location == HOST:
                    found.append(host)
                    continue
            found.append(host if self._on == HOST else self._device(host, number))
        return tuple(found), tuple(describe(a) for a in found)

    def _host(self, operand: Operand, number: int) -> np.ndarray:
        key = (number, operand.dtype.name)
        pool = self._pools.get(key)
        if pool is None or pool.size < operand.size:
            pool = np.resize(self._block.astype(operand.dtype), operand.size)
            self._pools[key] = pool
        return np.ndarray(operand.shape, operand.dtype, pool, 0, operand.strides)

    def _device(self, host: np.ndarray, number: int) -> Any:
        from pycuda import gpuarray

        with backends.get(self._on).active():
            return gpuarray.to_gpu(host)


def summary(rows: list[Row]) -> dict[str, Any]:
    """Chosen over best (geometric mean, 95th and 99th percentile, worst), prediction errors."""
    if not rows:
        return {"problems": 0}
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
    }


def verify_links(device_name: str, seed: int = 0, count: int = 24) -> dict[str, dict[str, float]]:
    """Relative error of the link models at random sizes from 4 KB to 1 GB, whole float64s."""
    device = backends.get(device_name)
    draw = random.Random(seed)
    limit = min(30.0, math.log2(device.describe()["memory_bytes"] / 4))
    sizes = sorted(round(2.0 ** draw.uniform(12, limit)) // 8 * 8 for _ in range(count))
    constants = profile.current()
    with device.active():
        measured = overheads.transfers(device, sizes, budget=0.1)
    return {
        f"{direction}, {memory}": residuals(
            [constants.link(device_name, direction, memory)(n) for n in sizes], seconds
        )
        for (direction, memory), seconds in measured.items()
    }
