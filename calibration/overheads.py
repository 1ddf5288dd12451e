"""Overheads of calls at each place: links, packing, and the host's own work around a call.

The host times all of them, with all cores: nothing may be compiled meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import spec
from hetero.calibration import fit, links
from hetero.calibration.measure import awaited, measure, once, undisturbed
from hetero.calibration.repeat import leave_out
from hetero.calibration.samples import Bench
from hetero.calibration.sizes import Budget, Case, Place, WorkItem
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.ops import matvec
from hetero.ops.products.calls import host_call
from hetero.pricing.plan import CPU

log = logging.getLogger("hetero")
_SMALLEST = 16
_HOST_ROUNDS, _HOST_CALLS = 40, 8
_DISPATCH_ROUNDS = 3
_PACKED = tuple(4**power for power in range(5, 14))  # bytes of copies within the host's memory
_PACK, _AROUND = 0.3, 3.0  # planned seconds


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
    sizes = [size for size in _PACKED if size <= budget.largest_copy]
    source = np.ones(sizes[-1] // 4)
    seconds = []
    for size in sizes:
        view = source[: size // 4 : 2]  # size / 8 elements of 8 bytes, with stride 2
        seconds.append(measure(lambda v=view: np.ascontiguousarray(v), budget=budget.point))
    return fit.segments(sizes, seconds)


def dispatch(device: Device, budget: Budget) -> dict[str, float]:
    """Seconds of the host's own work around one call: describing, allocating, looking up the plan.

    What a whole product of 16 x 16 elements takes by the own kernel, less its transfers and its
    launch: for operands on the host, on the device, and on the device with the CPU computing (the
    fallback, "detour" in the profile). The device is not active when a call begins, as in a
    program.
    """
    rows = registry.lookup("matvec")
    row = next(row for row in rows if (row.kind, row.method) == (device.kind, "tiled"))
    arrays = np.ones((_SMALLEST, _SMALLEST), np.float32), np.ones(_SMALLEST, np.float32)
    problem = matvec.problem(
        spec(arrays[0].shape, "float32", on=device.name), spec((_SMALLEST,), "float32")
    )
    of_host = host_call(planner.plan(matvec.problem(*arrays), device.name, row.method), np.matvec)
    case = Case(row, "float32", "*", [], matvec.problem)
    vector = arrays[-1]

    with device.active():
        place, owner = device.allocate(max(a.nbytes for a in arrays))
        inside = {
            "upload": lambda: device.upload(vector, place),
            "download": lambda: device.download(place, np.empty_like(vector)),
            "alone": Bench((device,)).waiting(case, problem),
        }
    outside = {"from host": partial(of_host, *arrays)}
    if device.is_cuda:
        there = [device.new_array(a.shape, a.dtype)[0] for a in arrays]

        def call(name: str, method: str | None) -> None:
            registry.operation("matvec").call(*there, device=name, method=method)
            with device.active():
                device.synchronize()

        outside["there"] = partial(call, device.name, row.method)
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
            if case.steps is not None or case.by_host or key in calls:
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


def planned(places: list[Place]) -> float:
    """Seconds that measuring overheads takes, about."""
    each = {0: 0.0, 1: _AROUND}
    return _PACK + sum(each.get(len(place.devices), links.SECONDS) for place in places)


def at_places(
    places: list[Place],
    worklist: list[WorkItem],
    budget: Budget,
    only: tuple[str, ...],
    base: dict[str, Any],
    begin: Callable[[float, str], object],
) -> Overheads:
    """Measure the overheads of each place; links that ``base`` has, the content of a profile, are
    measured where ``only`` names their device or kind."""
    made = Overheads(None, {}, {}, {})
    if not base or CPU in only:
        begin(_PACK, "copies in host memory")
        made = made._replace(pack=pack(budget))
    for place in sorted(places, key=lambda place: len(place.devices)):
        known = {**base.get("links", {}), **made.links}
        asked = place.name not in known or bool({place.name, place.kind} & set(only))
        try:
            if len(place.devices) == 1:
                begin(_AROUND, f"links of {place.name}")
                _around(place, worklist, budget, asked, base, made)
            elif place.devices and asked:
                begin(links.SECONDS, f"links of {place.name} at once")
                first = known.get(place.devices[0].name, {})
                for device in links.of_others(place.devices, first, links.CHECKED):
                    log.warning("copies of %s are slower, so its links are measured", device.name)
                    with device.active():
                        own = links.links(device, budget.largest_copy, 3 * budget.point)
                    made.links[device.name] = own
                found = links.together(place, first, budget.largest_copy)
                made.links[place.name], made.dispatch[place.name] = found, {}
        except Exception as error:
            leave_out("links", place.name, error)
    return made


def _around(
    place: Place,
    worklist: list[WorkItem],
    budget: Budget,
    asked: bool,
    base: dict[str, Any],
    made: Overheads,
) -> None:
    """Add the overheads of calls on a device; its links are measured where they are asked for."""
    (device,), known = place.devices, base.get("host", {}).get("dispatch", {})
    if asked or place.name not in known:
        with device.active():
            found = links.links(device, budget.largest_copy, 3 * budget.point)
        around = dispatch(device, budget)
    else:
        found, around = base["links"][place.name], known[place.name]
    if "device" in around:
        cases = [item.case for item in worklist if item.place is place]
        for key, share in host_shares(place, cases, around["device"]).items():
            made.shares[place.name, *key] = share
    made.links[place.name], made.dispatch[place.name] = found, around
