"""Overheads of calls at each place: links, packing, and the host's own work around a call.

The host times all of them, with all cores: nothing may be compiled meanwhile.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import spec
from hetero.calibration import fit, links
from hetero.calibration.measure import awaited, measure, once, undisturbed
from hetero.calibration.repeat import Shares, leaving_out
from hetero.calibration.samples import Bench
from hetero.calibration.sizes import Budget, Case, Place
from hetero.calling import planner
from hetero.devices.base import Device
from hetero.ops.products.calls import host_call
from hetero.ops.products.public import matvec_problem
from hetero.pricing.plan import CPU

log = logging.getLogger("hetero")
_STAGE = "links and overheads"
_SMALLEST = 16
_HOST_ROUNDS, _HOST_CALLS = 40, 8
_DISPATCH_ROUNDS = 3
_PACKED = tuple(4**power for power in range(5, 13))  # bytes of copies within the host's memory


def measured(
    places: list[Place],
    cases: list[Case],
    budget: Budget,
    only: tuple[str, ...],
    base: dict[str, Any],
    begin: Callable[[str, str], object],
) -> tuple[dict[str, Any], dict[str, Any], Shares]:
    """The links and the "host" of a profile, those of ``base``, a profile's content, with what is
    measured; and the shares of the host in calls on devices.

    Without ``only`` all is measured. With it, links are of devices that it names, or their kinds,
    and of those that the base does not know.
    """
    found: dict[str, Any] = {**base["links"]} if only else {}
    host: dict[str, Any] = {**base["host"]}
    around: dict[str, Any] = {**host.get("dispatch", {})} if only else {}
    shares: Shares = {}
    if not only or CPU in only:
        begin(_STAGE, "copies in host memory")
        host["pack"] = pack(budget)
    for place in sorted(places, key=lambda place: len(place.devices)):
        asked = not only or place.name not in found or {place.name, place.info["kind"]} & {*only}
        with leaving_out(f"links on {place.name}"):
            if len(place.devices) == 1:
                begin(_STAGE, f"links of {place.name}")
                if asked or place.name not in around:
                    found[place.name] = links.links(place.devices[0], budget)
                    around[place.name] = dispatch(place.devices[0], budget)
                if (own := around[place.name].get("device")) is not None:
                    mine = [case for case in cases if case.place is place]
                    shares |= host_shares(place, mine, own)
            elif place.devices and asked:
                begin(_STAGE, f"links of {place.name} at once")
                first = found.get(place.devices[0].name, {})
                for device in links.of_others(place.devices, first, links.CHECKED):
                    log.warning("copies of %s are slower, so its links are measured", device.name)
                    found[device.name] = links.links(device, budget)
                found[place.name] = links.together(place, first, budget.largest_copy)
                around[place.name] = {}
    return found, {**host, "dispatch": around}, shares


def pack(budget: Budget) -> dict[str, Any]:
    """Model of packing a strided host array, by bytes of the packed one."""
    sizes = [size for size in _PACKED if size <= budget.largest_copy]
    source = np.ones(sizes[-1] // 4)
    seconds = []
    for size in sizes:
        view = source[: size // 4 : 2]  # size / 8 elements of 8 bytes, with stride 2
        seconds.append(measure(partial(np.ascontiguousarray, view), budget=budget.point))
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
    problem = matvec_problem(
        spec(arrays[0].shape, "float32", on=device.name), spec((_SMALLEST,), "float32")
    )
    of_host = host_call(planner.plan(matvec_problem(*arrays), device.name, row.method), np.matvec)
    case = Case(Place(device.name, {}, (device,)), row, "float32", "*", [], matvec_problem)
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
        call = partial(registry.operation("matvec").call, *there)
        outside["there"] = awaited(partial(call, device=device.name, method=row.method), [device])
        outside["fallback"] = awaited(partial(call, device=CPU), [device])
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


def host_shares(place: Place, cases: list[Case], dispatch: float) -> Shares:
    """What the host adds to each call on a CUDA device in addition to ``dispatch`` seconds.

    Place, operation and method -> seconds: of calls by the public function on arrays of the device,
    as a program makes them, less the device's own time. They are measured in turn, so that noise
    hits all alike, and are one figure for all layouts and dtypes: of each alone it
    would be too uncertain to choose by.
    """
    (device,) = place.devices
    samples: dict[tuple[str, str, str], list[float]] = {}
    calls: dict[tuple[str, str, str], tuple[Callable[[], object], float]] = {}
    with device.active():
        bench = Bench(place.devices)
        for case in cases:
            row = case.row
            key = (row.operation, row.method, case.dtype)
            if case.steps is not None or case.options is not None or key in calls:
                continue
            problem = case.problem(*(_SMALLEST for _ in case.axes))
            if row.obstacle(problem, place.info) is not None:
                continue
            arrays = [device.new_array(a.shape, a.dtype)[0] for a in problem.inputs]
            function = registry.operation(row.operation).call
            call = partial(function, *arrays, device=device.name, method=row.method)
            calls[key] = awaited(call, [device]), bench.seconds(case, problem, 0)

    for _ in range(_HOST_ROUNDS):
        for (operation, method, _), (call, alone) in calls.items():
            call()  # not counted: another one ran before
            differences = samples.setdefault((place.name, operation, method), [])
            differences.extend(once(call) - alone for _ in range(_HOST_CALLS))
    return {key: max(undisturbed(found) - dispatch, 0.0) for key, found in samples.items()}
