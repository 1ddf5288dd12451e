"""Overheads of calls at each place: links, packing, and the host's own work around a call.

The host times all of them, with all cores: nothing may be compiled meanwhile.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.calibration import fit, transfers
from hetero.calibration.measure.candidates import awaited
from hetero.calibration.measure.timing import measure, once, undisturbed
from hetero.calibration.measure.workbench import Bench
from hetero.calibration.progress import Failure, Schedule
from hetero.calibration.request import Request
from hetero.calibration.worklist import WorkItem
from hetero.devices.base import Device
from hetero.imports import load
from hetero.ops.cases import Budget, Case, Place, SampleGrid, SmallCall, axis
from hetero.pricing.plan import CPU
from hetero.registry import Operation

_SMALLEST = 16
_HOST_ROUNDS, _HOST_CALLS = 40, 8
_DISPATCH_ROUNDS = 3
# Planned seconds, quick and in full; measured ones correct them.
_PACK, _AROUND = (0.2, 0.4), (3.0, 6.0)


class Overheads(NamedTuple):
    """What calls cost other than computing.

    ``pack`` is the model of copies within the host's memory, None where it was not asked for;
    ``links`` and ``dispatch`` are by place; ``shares``: place, operation and method -> the host's
    share of a call.
    """

    pack: dict[str, Any] | None
    links: dict[str, dict[str, Any]]
    dispatch: dict[str, dict[str, float]]
    shares: dict[tuple[str, str, str], float]


def pack(budget: Budget) -> dict[str, Any]:
    """Model of packing a strided host array, by bytes of the packed one."""
    sizes = axis(1024, min(budget.largest_transfer, 2**27), 4.0)
    source = np.ones(sizes[-1] // 4)
    seconds = []
    for size in sizes:
        view = source[: size // 4 : 2]  # size / 8 elements of 8 bytes, with stride 2
        seconds.append(measure(lambda v=view: np.ascontiguousarray(v), budget=budget.point))
    return fit.segments(sizes, seconds)


def dispatch(device: Device, operations: Iterable[Operation], budget: Budget) -> dict[str, float]:
    """Seconds of the host's own work around one call: describing, allocating, looking up the plan.

    What a whole call on tiny operands takes, less its transfers and its launch: for operands on the
    host, on the device, and on the device with the CPU computing (the fallback, "detour" in the
    profile). The device is not active when a call begins, as in a program. Empty where no
    operation has such a call.
    """
    operation, small = next(_small_calls(device, operations), (None, None))
    if small is None:
        return {}
    case = Case(small.implementation, small.problem.dtype, "*", SampleGrid(), problem=None)
    vector = small.arrays[-1]

    with device.active():
        place, owner = device.allocate(max(a.nbytes for a in small.arrays))
        inside = {
            "upload": lambda: device.upload(vector, place),
            "download": lambda: device.download(place, np.empty_like(vector)),
            "alone": Bench((device,)).waiting(case, small.problem),
        }
    outside = {"from host": small.from_host}
    if device.is_cuda:
        arrays = [device.new_array(a.shape, a.dtype)[0] for a in small.arrays]

        def call(name: str, method: str | None) -> None:
            operation.call(*arrays, device=name, method=method)
            with device.active():
                device.synchronize()

        outside["there"] = partial(call, device.name, small.implementation.method)
        outside["fallback"] = partial(call, CPU, None)
    took: dict[str, float] = {}
    for _ in range(_DISPATCH_ROUNDS):  # interleaved, so that a slow spell of the host hits all
        for calls, where in ((inside, device.active()), (outside, contextlib.nullcontext())):
            with where:
                for name, one in calls.items():
                    timed = measure(one, budget=10 * budget.point / _DISPATCH_ROUNDS, least=15)
                    took[name] = min(took.get(name, timed), timed)
    del owner
    upload, download, alone = took["upload"], took["download"], took["alone"]
    around = {"host": max(took["from host"] - 2 * upload - download - alone, 0.0)}
    if "there" in took:
        around["device"] = max(took["there"] - alone, 0.0)
        around["detour"] = max(took["fallback"] - 2 * download - upload, 0.0)
    return around


def _small_calls(
    device: Device, operations: Iterable[Operation]
) -> Iterator[tuple[Operation, SmallCall]]:
    for operation in operations:
        with contextlib.suppress(Exception):  # the loop reports a module that fails
            make = getattr(load(operation.cases), "small_call", None)
            small = make(device) if make is not None else None
            if small is not None:
                yield operation, small


def host_shares(place: Place, cases: list[Case], dispatch: float) -> dict[tuple[str, str], float]:
    """What the host adds to each call on a CUDA device in addition to ``dispatch`` seconds.

    Operation and method -> seconds: of calls by the public function on arrays of the device, as a
    program makes them, less the device's own time. They are measured in turn, so that noise
    hits all alike, and are one figure for all layouts and dtypes: of each alone it
    would be too uncertain to choose by.
    """
    (device,) = place.devices
    samples: dict[tuple[str, str], list[float]] = {}
    calls: dict[tuple[str, str, str], tuple[Callable[[], object], float]] = {}
    with device.active():
        bench = Bench(place.devices)
        for case in cases:
            row = case.implementation
            key = (row.operation, row.method, case.dtype)
            if not isinstance(case.how, SampleGrid) or key in calls:
                continue
            problem = case.problem(*(_SMALLEST for _ in case.axes))
            if row.obstacle(problem, place.info) is not None:
                continue
            arrays = [device.new_array(a.shape, a.dtype)[0] for a in problem.inputs]
            function = registry.operation(row.operation).call
            call = partial(function, *arrays, device=device.name, method=row.method)
            calls[key] = awaited(call, (device,)), bench.seconds(case, problem, 0)

    for _ in range(_HOST_ROUNDS):
        for (operation, method, _), (call, alone) in calls.items():
            call()  # not counted: another one ran before
            differences = samples.setdefault((operation, method), [])
            differences.extend(once(call) - alone for _ in range(_HOST_CALLS))
    return {key: max(undisturbed(found) - dispatch, 0.0) for key, found in samples.items()}


def planned(places: list[Place], quick: bool) -> float:
    """Seconds that measuring overheads takes."""
    each = {0: 0.0, 1: _AROUND[not quick]}
    return _PACK[not quick] + sum(each.get(len(p.devices), transfers.SECONDS) for p in places)


def at_places(
    places: list[Place],
    worklist: list[WorkItem],
    request: Request,
    schedule: Schedule,
    failures: list[Failure],
) -> Overheads:
    """Measure the overheads of each place; arguments are those of the calibration."""
    made = Overheads(None, {}, {}, {})
    if request.base is None or CPU in request.only:
        schedule.begin(_PACK[not request.quick], "copies in host memory")
        made = made._replace(pack=pack(request.budget))
    for place in (place for place in places if len(place.devices) == 1):
        schedule.begin(_AROUND[not request.quick], f"links of {place.name}")
        try:
            _around(place, worklist, request, made)
        except Exception as error:
            failures.append(Failure("links", place.name, "", error))
    known = {**(request.base or {}).get("links", {}), **made.links}
    for place in (place for place in places if len(place.devices) > 1):
        if _needs_links(place, request):
            schedule.begin(transfers.SECONDS, f"links of {place.name} at once")
            links = known.get(place.devices[0].name, {})
            at_once = transfers.together(place, links, request.budget, failures)
            made.links[place.name], made.dispatch[place.name] = at_once, {}
    return made


def _around(place: Place, worklist: list[WorkItem], request: Request, made: Overheads) -> None:
    """Add the overheads of calls on a device; its links are measured where they are needed."""
    (device,), base = place.devices, request.base or {}
    if _needs_links(place, request):
        with device.active():
            links = transfers.links(device, request.budget)
        around = dispatch(device, registry.operations(), request.budget)
    else:
        links, around = base["links"][place.name], base["host"]["dispatch"][place.name]
    if "device" in around:
        cases = [item.case for item in worklist if item.place is place]
        for key, share in host_shares(place, cases, around["device"]).items():
            made.shares[place.name, *key] = share
    made.links[place.name], made.dispatch[place.name] = links, around


def _needs_links(place: Place, request: Request) -> bool:
    """Whether links are to be measured: they are unknown, or requested."""
    base = request.base or {}
    known = place.name in base.get("links", {})
    if len(place.devices) == 1:
        known = known and place.name in base.get("host", {}).get("dispatch", {})
    return not known or bool({place.name, place.kind} & set(request.only))
