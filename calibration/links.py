"""Overheads of calls at each place: links, packing, and the host's own work around a call.

Copies are timed as calls make them. Those on two GPUs, begun by two threads, last longer than one
alone: both share the host's memory and its threads, and one of them begins later. So all equal
devices together have links, too. The host times all of them, with all cores: nothing may be
compiled meanwhile.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import spec
from hetero.calibration import fit
from hetero.calibration.measure import awaited, leaving_out, measure, once, undisturbed
from hetero.calibration.samples import Bench
from hetero.calibration.sizes import Budget, Case, Place
from hetero.calling import planner
from hetero.devices import peers
from hetero.devices.base import Device
from hetero.host import cpu
from hetero.ops.products.methods import host_call
from hetero.ops.products.public import matvec_problem
from hetero.pricing.plan import CPU
from hetero.profile import PAGEABLE, PINNED, STAGED
from hetero.registry.models import bind_link

Way = tuple[str, str]  # direction and kind of memory

_DIRECTIONS = ("upload", "download")
_LEAST_STAGED = 1 << 18  # bytes of a staged copy that is measured
_CACHED = 1 << 20  # bytes of an operand that is still in a cache when a call begins
_PERIOD = 1 << 24  # random bytes, which are repeated
_REST = 3e-4  # seconds after which a thread that helps to copy sleeps

_LONG = 1 << 26  # bytes up to which sizes double; staged copies that are longer have no other way
SIZES = tuple(2**power for power in (*range(10, 27), 28))  # bytes of one device's copies
_SIZES = tuple(peers.LEAST << step for step in (0, 1, 2, 4))  # bytes of these, to 64 MiB
_SAMPLES = 8  # of a size
_NOISE = 1.05  # times as long as alone: less counts as equal
_STAGE = "links and overheads"
_SMALLEST = 16
_DISPATCH_ROUNDS = 3
_PACKED = tuple(4**power for power in range(5, 13))  # bytes of copies within the host's memory


class Copies:
    """Copies of any size between a device, which is active, and each kind of the host's memory.

    As in calls, downloads to pageable memory go to a new result, in reused memory
    (`hetero.host.cpu`), and uploads from it come from memory that no cache holds, unless
    they are so small that a program has just made them. Pageable memory is copied by the driver
    alone, or "staged" where the device can, by threads that `rest` lets fall asleep first.

    ``largest`` is in bytes; `ways` are directions and kinds of memory that can be copied.
    """

    WAYS = tuple((way, of) for way in _DIRECTIONS for of in (PAGEABLE, PINNED))

    def __init__(self, device: Device, largest: int) -> None:
        values = np.random.default_rng(0).integers(0, 255, _PERIOD, np.uint8)
        self._device = device
        with device.active():
            is_staged = device.stages and device.ring() is not None
        self.ways = self.WAYS + tuple((way, STAGED) for way in _DIRECTIONS if is_staged)
        self._buffer, self._owner = device.allocate(largest)
        self._pinned = device.pinned(largest)
        for start in range(0, largest, _PERIOD):
            part = self._pinned[start : start + _PERIOD]
            part[:] = values[: len(part)]
        self._pageable, self._next = self._pinned.copy(), 0

    def rest(self, way: Way) -> None:
        """Let threads that help to copy fall asleep, as those of a call do while it computes."""
        if way[1] == STAGED:
            time.sleep(_REST)

    def _source(self, nbytes: int) -> np.ndarray:
        """Pageable memory, a different part each time."""
        if nbytes < _CACHED:
            return self._pageable[:nbytes]
        begin = self._next if self._next + nbytes <= len(self._pageable) else 0
        self._next = begin + nbytes
        return self._pageable[begin : begin + nbytes]

    def __call__(self, direction: str, memory: str, nbytes: int) -> None:
        """Copy ``nbytes``; direction and kind of memory are one of `ways`."""
        device = self._device
        if memory == PINNED:
            array = self._pinned[:nbytes]
        elif direction == "upload":
            array = self._source(nbytes)
        else:
            array = cpu.empty((nbytes,), np.uint8)
        if memory == STAGED:
            device.ring().start(direction, array, self._buffer, 0, device.record()).wait()
        elif nbytes >= _LEAST_STAGED:
            device.enqueue(direction, array, self._buffer)
        elif direction == "upload":
            device.upload(array, self._buffer)
        else:
            device.download(self._buffer, array)


# -- One device ------------------------------------------------------------------------------------


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_copy, int(device.describe()["memory_bytes"]) // 4)
    sizes = [n for n in SIZES if n <= largest]
    models: dict[str, Any] = {"upload": {}, "download": {}}
    with device.active():
        copies = Copies(device, sizes[-1])
        for way, of in copies.ways:
            # Small copies are never staged, and large ones always where that is a way.
            most = _LONG if of == PAGEABLE and (way, STAGED) in copies.ways else largest
            least = _LEAST_STAGED if of == STAGED else 0
            timed, rest = [n for n in sizes if least <= n <= most], partial(copies.rest, (way, of))
            calls = [partial(copies, way, of, nbytes) for nbytes in timed]
            seconds = [measure(call, budget=3 * budget.point, rest=rest) for call in calls]
            models[way][of] = fit.segments(timed, seconds)
    return models


# -- All equal devices at once ---------------------------------------------------------------------


def together(place: Place, links: dict[str, Any], largest: int) -> dict[str, Any]:
    """The links of all equal devices at once: of the ways that are slower then, ``links`` of the
    first, times how much longer a copy on each of them takes."""
    room = min(int(device.describe()["memory_bytes"]) for device in place.devices)
    sizes = [n for n in _SIZES if n <= min(largest, room // 4)]
    if not sizes:
        return {}
    models: dict[str, Any] = {}
    nbytes = sizes[-1]
    for (direction, memory), taken in at_once_seconds(place.devices, nbytes).items():
        alone = links.get(direction, {}).get(memory)
        if alone is not None and (times := taken / bind_link(alone)(nbytes)) > _NOISE:
            samples = alone["samples"]
            model = fit.segments(samples["bytes"], [times * s for s in samples["seconds"]])
            model["samples"] = {"bytes": [nbytes], "times": [times]}
            models.setdefault(direction, {})[memory] = model
    return models


def at_once_seconds(devices: Sequence[Device], nbytes: int) -> dict[Way, float]:
    """Seconds until each device has done one copy, as calls do it, by a thread for each."""
    copies = []
    for device in devices:
        with device.active():
            copies.append(Copies(device, nbytes))

    def copy(way: Way, number: int) -> None:
        with devices[number].active():
            copies[number](*way, nbytes)

    found = {}
    for way in copies[0].ways:
        tasks, samples = [partial(copy, way, number) for number in range(len(devices))], []
        for _ in range(_SAMPLES):
            copies[0].rest(way)
            samples.append(once(partial(peers.run, devices, tasks, nbytes)))
        found[way] = undisturbed(samples)
    return found


# -- All of them, and the host's own work ----------------------------------------------------------


def measured(
    places: list[Place],
    budget: Budget,
    only: tuple[str, ...],
    base: dict[str, Any],
    begin: Callable[[str, str], object],
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The links and the "host" of a profile, those of ``base``, a profile's content, with what is
    measured.

    Without ``only`` all is measured. With it, links are of devices that it names, or their kinds,
    and of those that the base does not know.
    """
    found: dict[str, Any] = {**base["links"]} if only else {}
    host: dict[str, Any] = {**base["host"]}
    around: dict[str, Any] = {**host.get("dispatch", {})} if only else {}
    if not only or CPU in only:
        begin(_STAGE, "copies in host memory")
        host["pack"] = pack(budget)
    for place in sorted(places, key=lambda place: len(place.devices)):
        asked = not only or place.name not in found or {place.name, place.info["kind"]} & {*only}
        with leaving_out(f"links on {place.name}"):
            if len(place.devices) == 1:
                begin(_STAGE, f"links of {place.name}")
                if asked or place.name not in around:
                    found[place.name] = links(place.devices[0], budget)
                    around[place.name] = dispatch(place.devices[0], budget)
            elif place.devices and asked:
                begin(_STAGE, f"links of {place.name} at once")
                first = found.get(place.devices[0].name, {})
                found[place.name] = together(place, first, budget.largest_copy)
                around[place.name] = {}
    return found, {**host, "dispatch": around}


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
