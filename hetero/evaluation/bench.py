"""`hetero bench`: an operation by every method side by side, beside the libraries that are here.

What is compared is the operation's own: see `hetero.ops.benchmark`.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from functools import partial
from statistics import median
from typing import Any

from hetero import devices
from hetero.arrays import HOST
from hetero.calibration.measure.queue import Queue
from hetero.calibration.measure.timing import measure
from hetero.evaluation import draws, left_out
from hetero.evaluation.left_out import leaving_out
from hetero.ops import benchmark
from hetero.ops.benchmark import Benchmark, Comparison, Iterations
from hetero.pricing.plan import CPU
from hetero.registry import Operation

_DRAWN, _LARGEST_DRAWN = 8, 64  # trials of an operation that says nothing of its own
_LONGEST = 1.0  # predicted seconds of a candidate in one of these
_DIFFERENCES = 3


def bench(
    operation: Operation,
    dtype: str | None = None,
    *,
    device: str | None = None,
    order: str = "C",
    progress: Callable[[float, str], None] | None = None,
) -> list[dict[str, Any]]:
    """Seconds of each call that an operation compares, for each of its cases.

    Parameters
    ----------
    operation : Operation
    dtype : str, optional
        Default: the operation's own choice.
    device, order : str, optional
        For operations that offer a choice. Default: the first GPU, "cpu" without one; by rows.
    progress : callable, optional
        As in `hetero.calibrate`.

    Returns
    -------
    list of dict
        case, what (is timed: "call", "solve", "iteration"), chosen, seconds by "method on device"
        or peer, peers (which of them those are), iterations that each made where a number was
        asked, copy_bandwidth of the device whose clock was read,
        and what else the operation tells.
    """
    choices = {"device": device or benchmark.cuda_device() or CPU, "order": order}
    if choices["device"] != CPU:
        devices.get(choices["device"])  # or says which there are
    own = benchmark.of(operation, "benchmarks", partial(_drawn, operation))
    options = {name: choices[name] for name in benchmark.of(operation, "OPTIONS", ())}
    cases = list(own(dtype or benchmark.of(operation, "DTYPE", benchmark.DTYPE), **options))
    rows = []
    failed: dict[str, str] = {}
    with ExitStack() as stack:
        queues: dict[str, Queue] = {}
        for number, case in enumerate(cases):
            if progress is not None:
                progress(number / len(cases), case.case)
            if case.device != CPU and case.device not in queues:
                stack.enter_context(devices.get(case.device).active())
                queues[case.device] = Queue(devices.get(case.device))
            one = row(case, queues.get(case.device), failed)
            if set(one["seconds"]) - set(one["peers"]):
                rows.append(one)
    left_out.warn(failed)
    return rows


def _drawn(operation: Operation, dtype: str) -> Iterator[Benchmark]:
    """A few random calls, of an operation that has no cases of its own to compare."""
    draw = random.Random(0)
    for _ in range(_DRAWN):
        trial = draws.draw(operation, draw, HOST, _LARGEST_DRAWN)
        arrays = draws.Arrays(HOST).of(trial)
        shapes = " ".join("x".join(map(str, a.shape)) for a in arrays if hasattr(a, "shape"))
        options = trial.options
        make = partial(benchmark.by_candidates, operation, arrays, options, longest=_LONGEST)
        yield Benchmark(f"{operation.function} {shapes}", make)


def row(case: Benchmark, queue: Queue | None, failed: dict[str, str]) -> dict[str, Any]:
    """Seconds of each call of one case, as `bench` gives them.

    Parameters
    ----------
    case : Benchmark
    queue : Queue or None
        Of the device by whose clock calls are timed; None: each on the wall's.
    failed : dict
        Takes the calls that failed, and why.
    """
    found: Comparison = case.make()
    seconds, iterations = {}, {}
    for name, call in {**found.calls, **found.peers}.items():
        peer = name in found.peers
        with nullcontext() if peer else leaving_out(name, failed):
            if queue is None:
                seconds[name] = _on_the_wall(case, call)
                if "asked" in case.facts:
                    one = isinstance(call, Iterations)
                    _, iterations[name] = call.run(call.many) if one else call(0)
            else:
                with queue.device.active():  # whose errors are ours
                    seconds[name] = _on_the_device(found, queue, call, peer)
    made = {"case": case.case, "what": case.what, **case.facts, "seconds": seconds}
    made["peers"] = [name for name in found.peers if name in seconds]
    if iterations:
        made["iterations"] = iterations
    if found.chosen is not None:
        made["chosen"] = found.chosen
    if queue is not None:
        made["copy_bandwidth"] = queue.copy_bandwidth()
    return made


def _on_the_wall(case: Benchmark, call: Any) -> float:
    if isinstance(call, Iterations):
        return _one_iteration(call)
    timed = measure(lambda: call(0), budget=case.budget, least=case.least, most=case.most)
    return timed.seconds


def _one_iteration(call: Iterations) -> float:
    def seconds(count: int) -> float:
        start = time.perf_counter()
        call.run(count)
        return time.perf_counter() - start

    seconds(call.few)  # not counted
    steps = call.many - call.few
    return median((seconds(call.many) - seconds(call.few)) / steps for _ in range(_DIFFERENCES))


def _on_the_device(found: Comparison, queue: Queue, call: Any, peer: bool) -> float:
    if found.count is None:
        return queue.quickly(call)
    if peer:
        return queue.seconds(call, found.count, 3, found.peer_seconds)
    return queue.seconds(call, found.count)
