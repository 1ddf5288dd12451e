"""`hetero bench`: an operation by every method side by side, and the libraries that are here.

What is compared is the operation's own: see `hetero.ops.benchmark`. And `hetero bench movement`:
the speed of copies of each kind and size; whole calls from host operands to a host result, as
operations name them.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from functools import partial
from statistics import median
from typing import Any

import numpy as np

from hetero import devices, registry
from hetero.calibration.candidates import leaving_out, once, warn
from hetero.calibration.measure import Queue, measure
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable, one_of
from hetero.host import pages
from hetero.ops import benchmark
from hetero.ops.benchmark import Benchmark, Comparison, Iterations
from hetero.pricing.plan import CPU
from hetero.registry import Operation

_DIFFERENCES = 3
_PEER_LAUNCH = 5e-5  # seconds to launch a peer's call, at most
SIZES = tuple(1 << n for n in (16, 20, 24, 28, 30))  # bytes of a copy
_SECONDS = 0.4  # for all samples of a copy


def bench(
    operation: Operation,
    dtype: str | None = None,
    *,
    device: str | None = None,
    order: str = "C",
    cases: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> list[dict[str, Any]]:
    """Seconds of each call that an operation compares, for each of its cases.

    ``device`` (default: the first GPU, "cpu" without one) and ``order`` are for operations that
    offer a choice; ``cases`` names those that others measured. A row has case, what (is timed:
    "call", "solve", "iteration"), chosen, seconds by "method on device" or peer, peers (which of
    them those are), iterations that each made where a number was asked, copy_bandwidth of the
    device that the times are by, and what else the operation tells.

    Raises
    ------
    ValueError
        If the operation has no cases of that name; the message names those that it has.
    """
    choices = {"device": device or benchmark.cuda_device() or CPU, "order": order}
    if choices["device"] != CPU:
        devices.get(choices["device"])  # or says which there are
    own = benchmark.of(operation, "benchmarks")
    options = {name: choices[name] for name in benchmark.of(operation, "OPTIONS", ())}
    if cases is not None:
        known = benchmark.of(operation, "CASES", {})
        if not known:
            raise ValueError(f"--cases: there are none of {operation.function}, got {cases!r}")
        if cases not in known:
            raise ValueError(one_of(f"--cases of {operation.function}", known, cases))
        dtype, options["sizes"] = dtype or known[cases].dtype, known[cases].sizes
    trials = own(dtype or benchmark.dtype_of(operation), **options)
    return _rows(list(trials), progress or (lambda share, text: None))


def _rows(cases: list[Benchmark], say: Callable[[float, str], object]) -> list[dict[str, Any]]:
    """The rows of all cases of which an own call did not fail."""
    rows, failed, queues = [], dict[str, str](), dict[str, Queue]()
    with ExitStack() as stack:
        for number, case in enumerate(cases):
            say(number / len(cases), case.case)
            if case.device != CPU and case.device not in queues:
                stack.enter_context(devices.get(case.device).active())
                queues[case.device] = Queue(devices.get(case.device))
            one = row(case, queues.get(case.device), failed)
            if set(one["seconds"]) - set(one["peers"]):
                rows.append(one)
    warn(failed)
    return rows


def row(case: Benchmark, queue: Queue | None, failed: dict[str, str]) -> dict[str, Any]:
    """Seconds of each call of one case, as `bench` gives them.

    ``queue`` is of the device that times the calls, None for the wall's clock. ``failed`` takes
    the calls that failed, and why.
    """
    compared: Comparison = case.make()
    seconds, iterations = {}, {}
    for name, call in {**compared.calls, **compared.peers}.items():
        peer = name in compared.peers
        with nullcontext() if peer else leaving_out(name, failed):
            if queue is None:
                seconds[name] = _on_the_wall(case, call)
                if "asked" in case.facts:
                    one = isinstance(call, Iterations)
                    _, iterations[name] = call.run(call.many) if one else call(0)
                continue
            with queue.device.active():  # errors are ours then
                few = (3, _PEER_LAUNCH) if peer else ()
                known = compared.count is not None
                timed = partial(queue.seconds, call, compared.count, *few)
                seconds[name] = timed() if known else queue.quickly(call)
    made = {"case": case.case, "what": case.what, **case.facts, "seconds": seconds}
    made["peers"] = [name for name in compared.peers if name in seconds]
    if iterations:
        made["iterations"] = iterations
    if compared.chosen is not None:
        made["chosen"] = compared.chosen
    if queue is not None:
        made["copy_bandwidth"] = queue.copy_bandwidth()
    return made


def _on_the_wall(case: Benchmark, call: Any) -> float:
    if not isinstance(call, Iterations):
        return measure(lambda: call(0), budget=case.budget, least=case.least, most=case.most)
    few, many = partial(call.run, call.few), partial(call.run, call.many)
    few()  # not counted
    steps = call.many - call.few
    return median((once(many) - once(few)) / steps for _ in range(_DIFFERENCES))


# -- Movement --------------------------------------------------------------------------------------


def movement(
    dtype: str | None = None,
    *,
    device: str | None = None,
    sizes: tuple[int, ...] = SIZES,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Speed of copies of ``sizes`` bytes, for which there is room, and of calls on host operands.

    Gives device; copies: for each size bytes and the bytes per second of each kind of copy; calls:
    rows as `bench`.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or no GPU and none was named.
    """
    where = place(device)
    say = progress or (lambda share, text: None)
    room = int(where.describe()["memory_bytes"]) // 4
    copies = []
    for number, nbytes in enumerate(size for size in sizes if size <= room):
        say(0.3 * number / len(sizes), f"copies of {nbytes} bytes")
        copies.append({"bytes": nbytes, **speeds(where, nbytes)})
    cases = [
        case
        for operation in registry.operations()
        if (own := benchmark.of(operation, "moved"))
        for case in own(dtype or benchmark.dtype_of(operation))
    ]
    rows = _rows(cases, lambda share, text: say(0.35 + 0.65 * share, text))
    return {"device": where.name, "copies": copies, "calls": rows}


def place(device: str | None) -> Device:
    """The device that is named, else the first GPU; DeviceNotAvailable says what is missing."""
    name = device or benchmark.cuda_device()
    if name is not None:
        return devices.get(name)
    others = ", ".join(devices.proven())
    ask = f"; --device takes {others}" if others else ""
    raise DeviceNotAvailable(f"no GPU is here: {'; '.join(devices.missing())}{ask}")


def speeds(device: Device, nbytes: int) -> dict[str, float]:
    """Bytes per second of each kind of copy, of both directions together where both go at once."""
    with device.active():
        (there, _one), (other, _two) = device.allocate(nbytes), device.allocate(nbytes)
        ordinary = np.random.default_rng(0).integers(0, 255, nbytes, np.uint8)
        given, shape = np.ones(nbytes, np.uint8), (nbytes,)
        pinned, second = device.pinned(nbytes), device.pinned(nbytes)
        pinned[:], second[:] = ordinary, 1

        def both() -> None:
            down = device.begin_download(other, second)
            device.begin_upload(pinned, there).wait()
            down.wait()

        ways: dict[str, Callable[[], object]] = {
            "upload": lambda: device.upload(ordinary, there),
            "upload, pinned": lambda: device.upload(pinned, there),
            "download, new array": lambda: device.download(there, pages.empty(shape, np.uint8)),
            "download, fresh pages": lambda: device.download(there, np.empty(nbytes, np.uint8)),
            "download, given array": lambda: device.download(there, given),
            "download, pinned": lambda: device.download(there, pinned),
            "both at once, pinned": both,
            **_by_cupy(device, ordinary),
        }
        found = {}
        for name, copy in ways.items():
            moved = nbytes * (2 if name.startswith("both") else 1)
            found[name] = moved / measure(copy, budget=_SECONDS)
    return found


def _by_cupy(device: Device, values: np.ndarray) -> dict[str, Callable[[], object]]:
    if not device.is_cuda:
        return {}
    try:
        import cupy

        with cupy.cuda.Device(int(device.name.partition(":")[2])):
            there = cupy.asarray(values)
            cupy.cuda.Device().synchronize()
    except Exception:  # not installed, not working here, or no room
        return {}

    def up() -> None:
        cupy.asarray(values)
        cupy.cuda.Device().synchronize()

    return {"CuPy asarray": up, "CuPy asnumpy": lambda: cupy.asnumpy(there)}
