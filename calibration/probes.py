"""What is measured: links, copies in host memory, every implementation over sizes and shapes."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from hetero import planner
from hetero.arrays import HOST, spec
from hetero.calibration import fit
from hetero.calibration.measure import center, measure
from hetero.calibration.workbench import Bench
from hetero.devices.base import Device
from hetero.ops import calling, matvec, module_of
from hetero.problem import DEVICE_DTYPES, Problem
from hetero.registry import Implementation, lookup

_PASSES = 3
_LEAST_EXTENT, _LEAST_KNOT = 4, 16
_BETWEEN = [48, 96]
_WAVES_STEP = 4.0  # ratio of neighbouring sizes where waves are counted
_HOST_HIDDEN = 1e-4  # seconds of device time beside which the host's share does not matter
_CLEARLY = 1.5
_LOOKS = 4
_SMALLEST = {"matvec": (16, 16), "matmul": (16, 16, 16)}
_HOST_ROUNDS, _HOST_CALLS = 40, 8
_LONG = 1 << 26  # bytes, whose transfer is timed once in each pass


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time the probes may take.

    Attributes
    ----------
    budget : float
        Seconds for one measured point.
    longest : float
        Seconds of one call above which a point is extrapolated, not measured.
    step, device_step : float
        Ratio of neighbouring sizes of a grid, on the CPU and on a device.
    held_out : int
        Shapes measured beside each grid, for the residuals.
    largest_transfer : int
        Bytes.
    link_step : float
        Ratio of neighbouring transfer sizes.
    total, device_total : float
        Seconds for the CPU, and for each device beside it; a slow machine measures fewer of
        the large knots.
    solves : float
        Seconds for the solves on each of them, and on each group of equal devices.
    filters : float
        Seconds for the convolutions on each of them.
    """

    budget: float
    longest: float
    step: float
    device_step: float
    held_out: int
    largest_transfer: int
    link_step: float
    total: float
    device_total: float
    solves: float
    filters: float


QUICK = Effort(
    budget=0.004,
    longest=0.03,
    step=2.0,
    device_step=4.0,
    held_out=8,
    largest_transfer=2**27,
    link_step=2.0,
    total=8.0,
    device_total=25.0,
    solves=3.0,
    filters=3.0,
)
FULL = Effort(
    budget=0.008,
    longest=0.2,
    step=2.0,
    device_step=2.0,
    held_out=32,
    largest_transfer=2**30,
    link_step=2.0,
    total=20.0,
    device_total=70.0,
    solves=11.0,
    filters=18.0,
)


def axis(smallest: int, largest: int, step: float) -> list[int]:
    """Sizes from smallest to largest with about the given ratio."""
    sizes = [smallest]
    while sizes[-1] * step <= largest * 1.01:
        sizes.append(round(sizes[-1] * step))
    return sizes


@dataclass(frozen=True, slots=True)
class Subject:
    """What one model is fitted to: an implementation, a dtype, a layout, and its problems.

    ``axes`` are the knots that are measured. Where there is a ``reference``, these are few, and how
    far it is from that layout's model is interpolated between them. With ``by_waves`` the
    implementation estimates its own time, and how far off it is gets interpolated.
    """

    implementation: Implementation
    dtype: str
    layout: str
    axes: list[list[int]]
    problem: Callable[[tuple[int, ...]], Problem]
    reference: str | None = None
    by_waves: bool = False


def subjects(
    implementation: Implementation, place: str, effort: Effort, largest: dict[str, int]
) -> Iterator[Subject]:
    """The grids to measure for an implementation: dtypes, layouts, aligned and odd sizes."""
    operation = implementation.operation
    on = HOST if place == planner.CPU else place
    odd_too = place != planner.CPU
    for dtype in DEVICE_DTYPES:
        for odd in (False, True) if odd_too else (False,):
            for order in _orders(operation, odd_too):
                end, extents = largest[operation], 2 if operation == "matvec" else 3

                def problem(
                    dims: tuple[int, ...], dtype: str = dtype, order: str = order
                ) -> Problem:
                    return product(operation, dims, on, dtype, order)

                if not odd_too:
                    layout = order if operation == "matvec" else "*"
                    axes = [axis(_LEAST_EXTENT, end, effort.step)] * extents
                    yield Subject(implementation, dtype, layout, axes, problem)
                    continue
                fit_for = "odd" if odd else "aligned"
                layout, reference = f"{order} {fit_for}", None
                if by_waves := _by_waves(implementation):
                    sizes = axis(_LEAST_KNOT, end, max(effort.device_step, _WAVES_STEP))
                else:
                    if operation == "matmul" and order != "CC":
                        reference = f"CC {fit_for}"
                    elif odd:
                        reference = f"{order} aligned"
                    sizes = _knots(operation, end, effort.device_step, few=reference is not None)
                axes = [[n - odd for n in sizes]] * extents
                yield Subject(implementation, dtype, layout, axes, problem, reference, by_waves)


def _knots(operation: str, largest: int, step: float, few: bool) -> list[int]:
    """Sizes to measure on a device: powers of two, and what lies beside them.

    A library takes other ways for tiny sizes. Between 32 and 128 it works in tiles that fit some
    sizes and not others.
    """
    sizes = axis(_LEAST_KNOT, largest, step)
    if few:
        sizes = sizes[::2]
    elif operation == "matmul" and step <= 2.0:
        sizes += _BETWEEN
    return [_LEAST_EXTENT, *sorted(sizes)]


def product(
    operation: str, dims: tuple[int, ...], on: str, dtype: str = "float32", order: str = "C"
) -> Problem:
    """A matvec of dimensions (m, k), or matmul of (m, n, k), whose operands lie in one place."""
    m, *n, k = dims
    first = spec((m, k), dtype, on=on, order=order[0])
    second = spec((k, *n), dtype, on=on, order=order[-1])
    return module_of(operation).problem(first, second)


def _by_waves(implementation: Implementation) -> bool:
    """The own products on CUDA devices know the waves that they run in."""
    return (implementation.operation, implementation.method, implementation.kind) == (
        "matmul",
        "tiled",
        "cuda",
    )


def _orders(operation: str, on_device: bool) -> tuple[str, ...]:
    """Orders of the matrices, C or F each, that are measured apart."""
    if operation == "matvec":
        return "C", "F"
    return ("CC", "CF", "FC", "FF") if on_device else ("CC",)


def works(
    implementation: Implementation, place: str, effort: Effort, largest: dict[str, int]
) -> Iterator[tuple[Implementation, Problem, list[Any]]]:
    """What `measure_subject` does on a device, with addresses that stand for nothing."""
    for subject in subjects(implementation, place, effort, largest):
        for dims in fit.grid(subject.axes):
            yield implementation, subject.problem(dims), [0, 0]


def measure_subject(
    subject: Subject, bench: Bench, effort: Effort, seconds_left: float, host: float | None
) -> tuple[dict[tuple[int, ...], float], dict[tuple[int, ...], float], float]:
    """Seconds on the grid, seconds of held-out shapes between its knots, the host's share.

    Knots that are not reached in ``seconds_left`` are missing, the largest ones. ``host`` is the
    host's share from `host_shares`, if it is known; it is in all these seconds, but not in those of
    an implementation that estimates the device's time.
    """
    end = time.perf_counter() + seconds_left
    seconds: dict[tuple[int, ...], float] = {}

    implementation = subject.implementation
    smallest = subject.problem(tuple(axis[0] for axis in subject.axes))
    alone = bench.seconds(implementation, smallest, effort.budget)
    least = bench.host_seconds(implementation, smallest, alone, 100)
    host = least if host is None else host

    def more(problem: Problem, device_seconds: float) -> float:
        """What the host does for this shape beyond its share, if that is clearly more.

        A library may launch several kernels for some shapes; that costs the host, not the device.
        What does not last is a slow spell of the machine.
        """
        seen = []
        while len(seen) < _LOOKS:
            seen.append(bench.host_seconds(implementation, problem, device_seconds, 7))
            if seen[-1] <= _CLEARLY * least:
                return 0.0
        return min(seen) - least

    def seconds_of(dims: tuple[int, ...]) -> float:
        problem = subject.problem(dims)
        device_seconds = bench.seconds(implementation, problem, effort.budget)
        if subject.by_waves:
            return device_seconds
        if device_seconds > _HOST_HIDDEN:
            return host + device_seconds
        return host + device_seconds + more(problem, device_seconds)

    def volume(dims: tuple[int, ...]) -> int:
        return int(np.prod([float(d) for d in dims]))

    grid = sorted(fit.grid(subject.axes), key=volume)
    rate = 0.0  # the best seen: volume per second
    for dims in grid:
        if rate and (volume(dims) / rate > effort.longest or time.perf_counter() > end):
            continue
        seconds[dims] = seconds_of(dims)
        rate = max(rate, volume(dims) / seconds[dims])
    draw = random.Random(1)
    held_out: dict[tuple[int, ...], float] = {}
    odd = subject.axes[0][0] % 2
    few = subject.reference or (subject.by_waves and subject.layout != "CC aligned")
    wanted = effort.held_out // 4 if few else effort.held_out
    for _ in range(wanted * 20):
        if len(held_out) >= wanted or time.perf_counter() > end + 0.2 * seconds_left:
            break
        dims = tuple(
            round(a[0] * (a[-1] / a[0]) ** draw.random()) // 4 * 4 - odd for a in subject.axes
        )
        if min(dims) > 1 and volume(dims) / rate <= effort.longest / 4:
            held_out[dims] = seconds_of(dims)
    return seconds, held_out, host


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
                function = getattr(module_of(operation), operation)
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
