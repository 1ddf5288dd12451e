"""Calls of one thing compared: hetero's own, by each candidate of the plan, and other libraries'.

What ran before a call decides what it takes: caches are cold, threads must be woken, and BLAS's
idle threads, which spin for 0.1 s after a product, hold the cores that others want. So a turn
begins when BLAS's threads sleep, with calls that do not count; then some calls in a row do. Turns
go round, so that a slower spell of the machine hits all alike. What fails is left out.
"""

from __future__ import annotations

import logging
import math
import os
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from statistics import fmean, median
from typing import Any

import numpy as np

from hetero import devices, registry, tables
from hetero.arrays import HOST, kept
from hetero.calibration.measure import Queue, awaited, once, wait_until_idle
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.errors import DeviceError, DeviceNotAvailable, MethodNotAvailable, readable
from hetero.evaluation import problems
from hetero.evaluation.problems import Trial
from hetero.evaluation.report import markdown, rounded
from hetero.moving import failures
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.profile import inventory
from hetero.registry import Operation

_WARM = 1e-2  # seconds of calls that do not count: to find cores for threads takes ticks of 4 ms
_TURN, _LEAST, _MOST = 3e-3, 3, 15  # seconds of calls that count, how few, how many
_LONG = 0.05  # seconds of a call of which there is one turn, and one that counts
_SLOW = 0.5  # seconds of a call that has one turn
_ROUNDS, _NEAR = 3, 1.5  # one turn of what takes longer than this many times the fastest
_COLD_BYTES, _SETS = 200 << 20, 64  # operands change from call to call, against caches
OWN = "automatic"  # the name of a call that is placed by itself
log = logging.getLogger("hetero")


# -- What fails ------------------------------------------------------------------------------------


@contextmanager
def leaving_out(name: str, failed: dict[str, str]) -> Iterator[None]:
    """Run a block that measures a candidate; where it fails, note why, and go on after it.

    Inside, no other device takes over: what is measured is what the name says. ``failed`` gets why,
    in one line; the first reason stays. All of it is in the log at DEBUG.
    """
    try:
        with tables.setting(failures.without_fallback, True):
            yield
    except (DeviceError, DeviceNotAvailable, MethodNotAvailable) as error:
        failed.setdefault(name, str(error).partition("\n")[0])
        log.debug("%s failed", name, exc_info=True)


# -- Calls in turn ---------------------------------------------------------------------------------


def timed(
    calls: Mapping[str, Callable[[], object]],
    *,
    failed: dict[str, str],
    chosen: str | None = None,
    rounds: int = _ROUNDS,
) -> dict[str, float]:
    """Seconds of each call, the median of its fastest turn; of those that do not fail. Other load
    only adds, in spells that outlast a turn.

    A call returns when its work is done; what fails is added to ``failed``. ``chosen`` is timed as
    well as the fastest one, however slow. Each call moves its operands as a first one does. Each
    has a turn in each of the ``rounds``.
    """
    lengths: dict[str, float] = {}  # of the fastest call
    medians: dict[str, float] = {}
    with _unwatched():
        for name, call in calls.items():  # whatever is compiled, loaded or allocated once
            with leaving_out(name, failed):
                lengths[name] = once(call)
                if lengths[name] > _LONG:  # how long it is without that
                    lengths[name] = medians[name] = once(call)
        order, draw = list(lengths), random.Random(0)
        for number in range(rounds):
            order = [name for name in order if name not in failed]
            least = min((lengths[name] for name in order), default=0.0)
            if number and least > _SLOW:
                break
            draw.shuffle(order)
            for name in order:
                if number and name != chosen and lengths[name] > _NEAR * least:
                    continue
                wait_until_idle()
                with leaving_out(name, failed):
                    turn = _turn(calls[name], lengths[name])
                    lengths[name] = min(lengths[name], *turn)
                    medians[name] = min(median(turn), medians.get(name, math.inf))
    return {name: seconds for name, seconds in medians.items() if name not in failed}


@contextmanager
def _unwatched() -> Iterator[None]:
    """Watch no arrays in this process; calls are remembered, which in `use` blocks they are not."""
    before = os.environ.get(kept.OFF)
    os.environ[kept.OFF] = "0"
    tables.forget()
    try:
        yield
    finally:
        os.environ.pop(kept.OFF) if before is None else os.environ.update({kept.OFF: before})
        tables.forget()


def _turn(call: Callable[[], object], length: float) -> list[float]:
    """Seconds of some calls in a row, after some that do not count; of a long call one."""
    if length > _LONG:
        return [once(call)]
    begin = time.perf_counter()
    while time.perf_counter() - begin < _WARM:
        call()
    begin, samples = time.perf_counter(), list[float]()
    while len(samples) < _LEAST or (len(samples) < _MOST and time.perf_counter() - begin < _TURN):
        samples.append(once(call))
    return samples


# -- What is compared ------------------------------------------------------------------------------


def name_of(candidate: Candidate) -> str:
    """As a call by this candidate is named."""
    return f"{candidate.method} on {candidate.device}"


def callers(
    operation: Operation,
    operands: Sequence[Any],
    options: Mapping[str, Any],
    names: Iterable[str],
    failed: dict[str, str],
) -> dict[str, Callable[[], Any]]:
    """A call as it is placed by itself, and by candidates, by `name_of`, that run where they say;
    each returns when its result is there. ``failed`` gets why others do not."""
    calls, given, used = dict[str, Callable[[], Any]](), dict(options), set[str]()

    def add(name: str, places: set[str], **named: str) -> None:
        plan = planner.plan_call(operation, operands, given, **named)
        if named and name_of(plan.chosen) != name:
            why = devices.disabled(named["device"])
            raise MethodNotAvailable(why or f"{named['device']} cannot run it now")
        places = places | {o.location for o in plan.problem.inputs}
        if plan.problem.output.location == HOST:  # and there when the call returns
            places = set()
        waits = [devices.get(one) for one in places & devices.available().keys()]
        calls[name] = awaited(partial(operation.call, *operands, **given, **named), waits)

    for name in names:
        with leaving_out(name, failed):
            method, _, device = name.partition(" on ")
            used.add(device)
            add(name, {device}, device=device, method=method)
    add(OWN, used)
    return calls


def compared(
    operation: Operation, trial: Trial, case: str, *, longest: float = 0.0
) -> tuple[dict[str, Any], Plan, Any]:
    """A call on host operands as it is placed by itself, by each candidate that is predicted to
    take less than ``longest`` seconds, and the same by other libraries.

    Gives a row for `text`, the plan, and the result. A row has case, chosen, predicted, seconds by
    "method on device" or library, peers (which of them are other libraries), iterations of those
    that tell them, difference (of other libraries' results, as a share of the largest number),
    failed (why something is left out), flops and bytes.
    """
    of, results, failed = problems.of(operation), dict[str, Any](), dict[str, str]()
    plan = planner.plan_call(operation, trial.operands, dict(trial.options))
    possible = (c for c in plan.candidates if c.reason is None and (c.seconds or 0.0) < longest)
    calls = callers(operation, *trial, map(name_of, possible), failed)
    peers, cupy = of.peers(trial), problems.library("cupy")
    if of.by_cupy and cupy and problems.cuda_device():

        def through_cupy() -> Any:
            there = (cupy.asarray(x) if isinstance(x, np.ndarray) else x for x in trial.operands)
            result = of.by_cupy(cupy, *there, **trial.options)
            x, *rest = result if isinstance(result, tuple) else (result,)
            return (cupy.asnumpy(x), *rest) if rest else cupy.asnumpy(x)

        peers["CuPy"] = through_cupy
    calls |= {name: partial(of_others, call) for name, call in peers.items()}

    def run(name: str, call: Callable[[], Any]) -> None:
        results[name] = call()

    runs = {name: partial(run, name, call) for name, call in calls.items()}
    seconds = timed(runs, failed=failed, chosen=OWN)
    row = _row(case, plan, seconds, [name for name in peers if name in seconds], failed)
    row |= {"iterations": {}, "difference": {}}
    for name, result in results.items():
        *_, made = parts = result if isinstance(result, tuple) else (result, None)
        made = made["iterations"] if isinstance(made, Mapping) else made
        row["iterations"] |= {name: made} if made is not None else {}
        results[name] = parts[0]
    if OWN in seconds:
        own, most = results[OWN], np.abs(results[OWN]).max()
        for name in row["peers"]:
            apart = np.abs(np.ravel(results[name]) - np.ravel(own)).max()
            row["difference"][name] = float(apart / most)
    return row, plan, results.get(OWN)


def _row(case: str, plan: Plan, seconds: Any, peers: Any, failed: Any) -> dict[str, Any]:
    problem, chosen = plan.problem, plan.chosen
    flops = registry.lookup(problem.operation)[0].work(problem, inventory.devices()[CPU]).flops
    nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
    row = {"case": case, "chosen": name_of(chosen), "predicted": chosen.seconds}
    row |= {"seconds": seconds, "peers": peers, "failed": failed}
    return row | {"flops": flops, "bytes": nbytes}


def of_others(call: Callable[..., Any], *arguments: Any) -> Any:
    """A call of another library, in which anything may fail: then it is left out."""
    try:
        return call(*arguments)
    except Exception as error:
        raise DeviceError(f"{type(error).__name__}: {error}") from error


def on_device(
    operation: Operation, trial: Trial, case: str, device: Device, *, longest: float
) -> dict[str, Any]:
    """A row by every method of a device on operands that lie there, by its clock, and by CuPy and
    torch on the same memory."""
    of, operands = problems.of(operation), trial.operands
    nbytes = sum(x.nbytes for x in operands if isinstance(x, np.ndarray))
    number = max(1, min(_SETS, -(-_COLD_BYTES // nbytes)))

    def rotating(call: Callable[..., Any], sets: Sequence[Sequence[Any]]) -> Callable[[int], Any]:
        """The call on another set of operands each turn, so that caches have none of them."""
        return lambda turn: call(*sets[turn % number], **trial.options)

    def converted(array_of: Callable[[Any], Any], sets: Sequence[Sequence[Any]]) -> Any:
        return [[x if isinstance(x, int) else array_of(x) for x in one] for one in sets]

    with device.active():
        queue, seconds, failed = Queue(device), dict[str, float](), dict[str, str]()
        sets = converted(device.array_of, [operands] * number)
        plan = planner.plan_call(operation, tuple(sets[0]), dict(trial.options))
        calls = {
            name_of(c): rotating(partial(operation.call, device=c.device, method=c.method), sets)
            for c in plan.candidates
            if c.reason is None and c.device == device.name and (c.seconds or 0.0) < longest
        }
        if device.name == problems.cuda_device():  # others would compute on theirs
            if of.by_cupy and (cupy := problems.library("cupy")):
                there = converted(cupy.asarray, sets)
                calls["CuPy"] = partial(of_others, rotating(partial(of.by_cupy, cupy), there))
            if of.by_torch and (torch := problems.library("torch")) and torch.cuda.is_available():
                torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = False
                there = converted(partial(torch.as_tensor, device=device.name), sets)
                calls["torch"] = partial(of_others, rotating(partial(of.by_torch, torch), there))
        for name, call in calls.items():
            with leaving_out(name, failed):
                seconds[name] = queue.quickly(call)
        peers = [name for name in ("CuPy", "torch") if name in seconds]
        bandwidth = {"copy_bandwidth": queue.copy_bandwidth()}
        return _row(case, plan, seconds, peers, failed) | bandwidth


def text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows in Markdown: of each case seconds, rates, and each over the fastest of all; `means`."""
    if not rows:
        return "nothing could be measured"
    lines = list[str]()
    head = "", "time", "times the fastest", "GFLOP/s", "GB/s", "iterations", "difference"
    for row in rows:
        cells, predicted = [], ""
        times = sorted(row["seconds"].items(), key=lambda item: item[1])
        for name, seconds in times:
            rates = (rounded(1e-9 * row[what] / seconds) for what in ("flops", "bytes"))
            cells.append([name, readable(seconds), f"{seconds / times[0][1]:.2f}", *rates])
            for known in (row.get("iterations", {}), row.get("difference", {})):
                cells[-1].append(f"{known[name]:.3g}" if name in known else "")
        if row["predicted"] is not None:
            predicted = f", predicted {readable(row['predicted'])}"
        lines += [f"{row['case']} (chosen: {row['chosen']}{predicted})", "", *markdown(head, cells)]
        lines += [f"{name} is left out: {why}" for name, why in row["failed"].items()] + [""]
    return "\n".join([*lines, *means(rows)])


def means(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """For each name the geometric mean of its time over that of hetero's own choice; lines."""
    over: dict[str, list[float]] = {}
    for row in rows:
        own = row["seconds"].get(OWN, row["seconds"].get(row["chosen"]))
        for name, seconds in row["seconds"].items() if own and len(rows) > 1 else ():
            over.setdefault(name, []).append(seconds / own)
    cells = [
        [name, f"{math.exp(fmean(map(math.log, ratios))):.3f}", str(len(ratios))]
        for name, ratios in over.items()
    ]
    return markdown(("", "times hetero's own choice, mean", "cases"), cells) if cells else []
