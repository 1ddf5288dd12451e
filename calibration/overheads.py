"""What a call costs beside computing: moving operands, packing them, the host's own work."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero.arrays import spec
from hetero.calibration import fit
from hetero.calibration.efforts import Effort, axis
from hetero.calibration.measure import center, measure
from hetero.calibration.probes import product
from hetero.calibration.workbench import Bench
from hetero.devices.base import Device
from hetero.ops import matvec, module_of
from hetero.ops.products import calling
from hetero.runtime import planner
from hetero.runtime.problem import DEVICE_DTYPES
from hetero.runtime.registry import lookup

_PASSES = 3
_LONG = 1 << 26  # bytes, whose transfer is timed once in each pass
_SMALLEST = {"matvec": (16, 16), "matmul": (16, 16, 16)}
_HOST_ROUNDS, _HOST_CALLS = 40, 8


def transfers(
    device: Device, sizes: list[int], budget: float
) -> dict[tuple[str, str], list[float]]:
    """Seconds to move each size: (direction, kind of host memory) -> one figure per size.

    Downloads to pageable memory go to fresh pages, as those of real calls do; uploads come from
    memory that is allocated anew for each pass, as it is not equally fast everywhere. Of several
    passes, some seconds apart, the fastest counts: whatever else the host does only adds to a
    transfer.
    """
    buffer, owner = device.allocate(sizes[-1])
    pinned = device.pinned(sizes[-1])
    pinned[:] = np.random.default_rng(0).integers(0, 255, sizes[-1], dtype=np.uint8)
    pageable = pinned
    calls: dict[tuple[str, str], Callable[[int], object]] = {
        ("upload", "pageable"): lambda n: device.upload(pageable[:n], buffer),
        ("upload", "pinned"): lambda n: device.upload(pinned[:n], buffer),
        ("download", "pageable"): lambda n: device.download(buffer, np.empty(n, np.uint8)),
        ("download", "pinned"): lambda n: device.download(buffer, pinned[:n]),
    }
    found: dict[tuple[str, str], list[float]] = {}
    for _ in range(_PASSES):
        pageable = pinned.copy()
        for key, call in calls.items():
            one = [
                measure(
                    partial(call, n), budget=budget / _PASSES, least=3 if n < _LONG else 1
                ).seconds
                for n in sizes
            ]
            found[key] = [min(pair) for pair in zip(one, found.get(key, one), strict=True)]
    del owner
    return found


def links(device: Device, effort: Effort) -> dict[str, Any]:
    """Link models of a device: each direction, pageable and pinned."""
    largest = min(effort.largest_transfer, int(device.describe()["memory_bytes"]) // 4)
    sizes = [size // 8 * 8 for size in axis(1024, largest, effort.link_step)]  # whole float64s
    found: dict[str, Any] = {"upload": {}, "download": {}}
    for (direction, memory), seconds in transfers(device, sizes, 6 * effort.budget).items():
        found[direction][memory] = fit.segments(sizes, seconds)
    return found


def pack(effort: Effort) -> dict[str, Any]:
    """Model of packing a host array that is not dense, by bytes of the packed one."""
    sizes = axis(1024, min(effort.largest_transfer, 2**27), 4.0)
    source = np.ones(sizes[-1] // 4)
    seconds = []
    for size in sizes:
        view = source[: size // 4 : 2]  # every second one of size / 4 elements of 8 bytes
        seconds.append(
            measure(lambda view=view: np.ascontiguousarray(view), budget=effort.budget).seconds
        )
    return fit.segments(sizes, seconds)


def dispatch(device: Device, effort: Effort) -> dict[str, float]:
    """Seconds of the host's own work around one call: describing, allocating, looking up the plan.

    What a whole call on tiny operands takes, less its transfers and its launch: for operands on the
    host, on the device, and on the device with the CPU computing ("detour"). The calls find the
    device as they do in a program: not active yet.
    """
    A, x = np.ones((16, 16), np.float32), np.ones(16, np.float32)
    budget = 20 * effort.budget

    def seconds(call: Callable[[], object]) -> float:
        return measure(call, budget=budget, least=15).seconds

    problem = matvec.problem(spec(A.shape, A.dtype, on=device.name), spec(x.shape, x.dtype))
    tiled = next(i for i in lookup("matvec") if i.kind == device.kind and i.method == "tiled")
    with device.active():
        bench = Bench(device)
        place, owner = device.allocate(A.nbytes)
        upload = seconds(lambda: device.upload(x, place))
        download = seconds(lambda: device.download(place, np.empty(16, np.float32)))
        alone = seconds(bench.waiting(tiled, problem))
    plan = planner.plan(matvec.problem(A, x), device.name, "tiled")
    from_host = seconds(partial(calling.shortcut(plan, np.matvec), A, x))
    found = {"host": max(from_host - 2 * upload - download - alone, 0.0)}
    if device.kind == "cuda":
        on_device = [device.new_array(a.shape, a.dtype)[0] for a in (A, x)]

        def call(name: str) -> None:
            matvec.matvec(*on_device, device=name, method="tiled" if name != planner.CPU else None)
            with device.active():
                device.synchronize()

        found["device"] = max(seconds(partial(call, device.name)) - alone, 0.0)
        detour = seconds(partial(call, planner.CPU)) - 2 * download - upload
        found["detour"] = max(detour, 0.0)
    del owner
    return found


def host_shares(
    device: Device, info: dict[str, Any], dispatch: float
) -> dict[tuple[str, str], float]:
    """What the host adds to a product on a CUDA device, however small, beside ``dispatch`` seconds.

    Operation and method -> seconds: of calls by the public function on arrays of the device, as a
    program makes them, less the device's own time. They are measured in turn, so that a slow spell
    of the machine hits all alike, and are one figure for all layouts and dtypes: of each alone it
    would be too uncertain to choose by.
    """
    samples: dict[tuple[str, str], list[float]] = {}
    calls: list[tuple[tuple[str, str], Callable[[], object], float]] = []
    with device.active():
        bench = Bench(device)
        for operation, dims in _SMALLEST.items():
            for implementation, dtype in itertools.product(lookup(operation), DEVICE_DTYPES):
                problem = product(operation, dims, device.name, dtype)
                if implementation.kind != device.kind or implementation.excludes(problem, info):
                    continue
                arrays = [device.new_array(a.shape, a.dtype)[0] for a in problem.inputs]
                function = module_of(operation).call
                method = implementation.method
                call = partial(function, *arrays, device=device.name, method=method)
                calls.append(((operation, method), call, bench.seconds(implementation, problem, 0)))

    def timed(call: Callable[[], object]) -> float:
        begin = time.perf_counter()
        call()
        with device.active():
            device.synchronize()
        return time.perf_counter() - begin

    for _ in range(_HOST_ROUNDS):
        for key, call, alone in calls:
            timed(call)  # not counted: another one ran before
            samples.setdefault(key, []).extend(timed(call) - alone for _ in range(_HOST_CALLS))
    return {key: max(center(found) - dispatch, 0.0) for key, found in samples.items()}
