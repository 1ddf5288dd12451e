"""What a call costs beside computing: moving operands, packing them, the host's own work."""

from __future__ import annotations

import contextlib
import importlib
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from statistics import median_low
from typing import Any

import numpy as np

from hetero.arrays import reused
from hetero.calibration import fit_link, load
from hetero.calibration.measure import center, measure
from hetero.calibration.workbench import Bench
from hetero.devices.base import Device
from hetero.runtime import registry
from hetero.runtime.cases import Budget, Case, Place, SampleGrid, SmallCall, axis
from hetero.runtime.plan import CPU
from hetero.runtime.profile import PAGEABLE, PINNED, STAGED
from hetero.runtime.registry import Operation

_DIRECTIONS = ("upload", "download")
_LEAST_STAGED = 1 << 18  # bytes of a staged copy that is measured
_MOST_PLAIN = (
    1 << 26
)  # bytes of a copy by the driver alone that is measured, where others go staged
_PASSES, _MORE_PASSES = 3, 2  # as long as processors are stolen
_STOLEN = 0.05  # of the processors' time that a pass wanted
_REST = 3e-4  # seconds after which a thread that helps to copy sleeps
_LONG = 1 << 26  # bytes, whose transfer is timed once in each pass
_SAME_RATE = 1.1
_CACHED = 1 << 20  # bytes of an operand that is in a cache yet when a call begins
_PERIOD = 1 << 24  # random bytes, which are repeated
_SMALLEST = 16
_HOST_ROUNDS, _HOST_CALLS = 40, 8
_DISPATCH_ROUNDS = 3


log = logging.getLogger("hetero")
Way = tuple[str, str]  # direction and kind of memory


class Copies:
    """Copies of any size between a device, which is active, and each kind of the host's memory.

    As in calls, downloads to pageable memory go to a new result, whose memory was used before where
    that is so in calls (`hetero.arrays.reused`), and uploads from it come from a place that no
    cache holds, unless they are so small that a program has just made them. It is copied by the
    driver alone, or "staged" where the device can, beside threads that `rest`.

    Parameters
    ----------
    device : Device
    largest : int
        Bytes.

    Attributes
    ----------
    ways : tuple
        Directions and kinds of memory that can be copied.
    """

    WAYS = tuple((way, of) for way in _DIRECTIONS for of in (PAGEABLE, PINNED))

    def __init__(self, device: Device, largest: int) -> None:
        values = np.random.default_rng(0).integers(0, 255, _PERIOD, np.uint8)
        self._device = device
        self.ways = ways(device)
        if ("download", STAGED) in self.ways:
            reused.open_()  # as the first staged copy does
        self._buffer, self._owner = device.allocate(largest)
        self._pinned = device.pinned(largest)
        for start in range(0, largest, _PERIOD):
            part = self._pinned[start : start + _PERIOD]
            part[:] = values[: len(part)]
        self.renew(largest)

    def renew(self, nbytes: int) -> None:
        """Allocate so much pageable memory anew: it is not equally fast everywhere."""
        self._pageable = self._pinned[:nbytes].copy()
        self._next = 0

    def rest(self, way: Way) -> None:
        """Let threads that help to copy fall asleep, as those of a call do while it computes."""
        if way[1] == STAGED:
            time.sleep(_REST)

    def _source(self, nbytes: int) -> np.ndarray:
        """Pageable memory, another part of it each time."""
        if nbytes < _CACHED:
            return self._pageable[:nbytes]
        begin = self._next if self._next + nbytes <= len(self._pageable) else 0
        self._next = begin + nbytes
        return self._pageable[begin : begin + nbytes]

    def __call__(self, direction: str, memory: str, nbytes: int) -> None:
        """Copy so many bytes; a direction and a kind of memory are one of `ways`."""
        device = self._device
        if memory == PINNED:
            array = self._pinned[:nbytes]
        elif direction == "upload":
            array = self._source(nbytes)
        else:
            array = reused.empty((nbytes,), np.uint8)
        if memory == STAGED:
            device.ring().start(direction, array, self._buffer, 0, device.record()).wait()
        elif nbytes >= _LEAST_STAGED:
            device.copy_plainly(direction, array, self._buffer)
        elif direction == "upload":
            device.upload(array, self._buffer)
        else:
            device.download(self._buffer, array)


def ways(device: Device) -> tuple[Way, ...]:
    """Directions and kinds of memory that can be copied to and from a device."""
    with device.active():
        ring = device.ring() if device.stages else None
        if is_staged := ring is not None:
            ring.prepare()
    if is_staged:
        return (*Copies.WAYS, *((way, STAGED) for way in _DIRECTIONS))
    return Copies.WAYS


def transfers(device: Device, sizes: list[int], budget: float) -> dict[Way, dict[int, float]]:
    """Seconds to move each size: (direction, kind of host memory) -> size -> seconds.

    Of several passes, each with other pageable memory, the typical one counts; of long transfers
    the fastest, since what went as fast as the next smaller one is not done again. Passes in which
    other virtual machines stole processors count only where there is no other.
    """
    copies = Copies(device, sizes[-1])
    found: dict[Way, dict[int, float]] = {way: {} for way in copies.ways}
    quiet: dict[tuple[Way, int], list[float]] = {}
    stolen: dict[tuple[Way, int], list[float]] = {}
    asked = {way: [n for n in sizes if _is_timed(way, n, copies.ways)] for way in copies.ways}
    left = asked
    for number in range(_PASSES + _MORE_PASSES):
        if number:
            copies.renew(max(n for wanted in left.values() for n in wanted))
        theft = Theft()
        taken = {(way, n): _timed(copies, way, n, budget) for way in left for n in left[way]}
        is_quiet = not theft.seen()
        for (way, n), seconds in taken.items():
            (quiet if is_quiet else stolen).setdefault((way, n), []).append(seconds)
            passes = quiet.get((way, n))
            if not passes:
                found[way][n] = min(stolen[way, n])
            else:
                found[way][n] = min(passes) if n > _LONG else median_low(passes)
        if number + 1 >= _PASSES and all((way, n) in quiet for way in asked for n in asked[way]):
            break
        left = {
            way: [
                n for n in wanted if n <= _LONG or (way, n) not in quiet or _is_slow(found[way], n)
            ]
            for way, wanted in asked.items()
        }
    if doubtful := sum((way, n) not in quiet for way in asked for n in asked[way]):
        log.warning(
            "%s: %d of %d copies were timed only while other virtual machines took processors",
            *(device.name, doubtful, sum(map(len, asked.values()))),
        )
    return found


def is_asked(way: Way, nbytes: int) -> bool:
    """Whether copies of so many bytes are measured; small ones are never staged."""
    return way[1] != STAGED or nbytes >= _LEAST_STAGED


def _is_timed(way: Way, nbytes: int, ways: Sequence[Way]) -> bool:
    """Whether copies of so many bytes are measured, where these are the ways to copy."""
    is_plain = way[1] == PAGEABLE and (way[0], STAGED) in ways
    return is_asked(way, nbytes) and not (is_plain and nbytes > _MOST_PLAIN)


def _timed(copies: Copies, way: Way, nbytes: int, budget: float) -> float:
    """Seconds of a copy, in one pass."""
    call, rest = partial(copies, *way, nbytes), partial(copies.rest, way)
    if nbytes >= _LONG:
        if way[0] == "download" and way[1] != PINNED and ("download", STAGED) in copies.ways:
            call()  # brings the result's pages
        rest()
        return _once(call)
    return measure(call, budget=budget / _PASSES, rest=rest).seconds


class Theft:
    """Whether other virtual machines take processors that this process wants, from now on."""

    def __init__(self) -> None:
        self._before = self._now()

    @staticmethod
    def _now() -> tuple[float, float]:
        times = load.times()
        return (times.stolen if times is not None else 0.0), load.own()

    def seen(self) -> bool:
        """Whether they did, by more than what a tick of the system tells."""
        stolen, own = (now - then for now, then in zip(self._now(), self._before, strict=True))
        return stolen > 2 * load.TICK and stolen > _STOLEN * (own + stolen)


def _is_slow(seconds: dict[int, float], nbytes: int) -> bool:
    """Whether a copy went clearly slower than the next smaller one."""
    smaller = max(n for n in seconds if n < nbytes)
    return seconds[nbytes] / nbytes > _SAME_RATE * seconds[smaller] / smaller


def _once(call: Callable[[], object]) -> float:
    """Seconds of one call, the first: where it was slow, another pass tells."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def links(device: Device, budget: Budget) -> dict[str, Any]:
    """Link models of a device: each direction, each kind of host memory."""
    largest = min(budget.largest_transfer, int(device.describe()["memory_bytes"]) // 4)
    short = axis(1024, min(largest, _LONG), budget.link_step)
    sizes = [*short, *axis(short[-1], largest, budget.link_step**2)[1:]]
    sizes = [size // 8 * 8 for size in sizes]  # whole float64s
    found: dict[str, Any] = {"upload": {}, "download": {}}
    for (direction, memory), seconds in transfers(device, sizes, 3 * budget.point).items():
        found[direction][memory] = fit_link.segments([*seconds], [*seconds.values()])
    return found


def pack(budget: Budget) -> dict[str, Any]:
    """Model of packing a host array that is not dense, by bytes of the packed one."""
    sizes = axis(1024, min(budget.largest_transfer, 2**27), 4.0)
    source = np.ones(sizes[-1] // 4)
    seconds = []
    for size in sizes:
        view = source[: size // 4 : 2]  # every second one of size / 4 elements of 8 bytes
        seconds.append(
            measure(lambda view=view: np.ascontiguousarray(view), budget=budget.point).seconds
        )
    return fit_link.segments(sizes, seconds)


def of_calls(
    place: Place, cases: list[Case], operations: Iterable[Operation], budget: Budget
) -> tuple[dict[str, float], dict[tuple[str, str], float]]:
    """A device's `dispatch`, and `host_shares`."""
    (device,) = place.devices
    around = dispatch(device, operations, budget)
    shares = host_shares(place, cases, around["device"]) if "device" in around else {}
    return around, shares


def dispatch(device: Device, operations: Iterable[Operation], budget: Budget) -> dict[str, float]:
    """Seconds of the host's own work around one call: describing, allocating, looking up the plan.

    What a whole call on tiny operands takes, less its transfers and its launch: for operands on the
    host, on the device, and on the device with the CPU computing (the fallback, "detour" in the
    profile). The calls find the device as they do in a program: not active yet. Empty where no
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
    if device.kind == "cuda":
        arrays = [device.new_array(a.shape, a.dtype)[0] for a in small.arrays]

        def call(name: str, method: str | None) -> None:
            operation.call(*arrays, device=name, method=method)
            with device.active():
                device.synchronize()

        outside["there"] = partial(call, device.name, small.implementation.method)
        outside["fallback"] = partial(call, CPU, None)
    took: dict[str, float] = {}
    for _ in range(_DISPATCH_ROUNDS):  # or a slow spell of the host would hit one and not another
        for calls, where in ((inside, device.active()), (outside, contextlib.nullcontext())):
            with where:
                for name, one in calls.items():
                    found = measure(one, budget=10 * budget.point / _DISPATCH_ROUNDS, least=15)
                    took[name] = min(took.get(name, found.seconds), found.seconds)
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
        with contextlib.suppress(Exception):  # of a module that fails the loop tells
            make = getattr(importlib.import_module(operation.cases), "small_call", None)
            small = make(device) if make is not None else None
            if small is not None:
                yield operation, small


def host_shares(place: Place, cases: list[Case], dispatch: float) -> dict[tuple[str, str], float]:
    """What the host adds to a call on a CUDA device, however small, beside ``dispatch`` seconds.

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
            if row.excludes(problem, place.info) is not None:
                continue
            arrays = [device.new_array(a.shape, a.dtype)[0] for a in problem.inputs]
            function = registry.operation(row.operation).call
            call = partial(function, *arrays, device=device.name, method=row.method)
            calls[key] = call, bench.seconds(case, problem, 0)

    def timed(call: Callable[[], object]) -> float:
        begin = time.perf_counter()
        call()
        with device.active():
            device.synchronize()
        return time.perf_counter() - begin

    for _ in range(_HOST_ROUNDS):
        for (operation, method, _), (call, alone) in calls.items():
            timed(call)  # not counted: another one ran before
            found = samples.setdefault((operation, method), [])
            found.extend(timed(call) - alone for _ in range(_HOST_CALLS))
    return {key: max(center(found) - dispatch, 0.0) for key, found in samples.items()}
