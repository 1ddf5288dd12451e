"""`hetero transfer`: is it worth moving this to a device at all?

Copies up and down are priced, and measured where the device is here, by each kind of host memory.
Beside them stands the time of the work itself on the CPU and on the device. The decision is White's
listing 4.18; how many calls pay for a copy that stays on the device is the question after it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from hetero import devices as backends
from hetero.arrays import HOST
from hetero.calibration.environment.copies import Copies, is_asked
from hetero.calibration.measure import candidates
from hetero.calling.planner import Machine, OtherMachine
from hetero.errors import DeviceNotAvailable, one_of
from hetero.evaluation import calls
from hetero.evaluation.calls import Call, break_even, calls_from, extents
from hetero.pricing.plan import CPU, Candidate
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile, inventory

WAYS = ("upload", "download")
MEMORIES = (PAGEABLE, STAGED, PINNED)
_SMALLEST, _LARGEST = 8, 16384  # leading dimensions among which the break-even size is looked for
_FURTHER = 4  # and up to that many times the given one
_LEAST_BYTES, _MOST_BYTES = 1 << 10, 1 << 24  # of the curve of copies, at least


class Given(NamedTuple):
    """Work by its seconds: on the CPU, and on the device with its operands there, if known."""

    cpu: float
    device: float | None = None

    def __str__(self) -> str:
        return "the given work"


def transfer(
    up: int | None,
    down: int | None,
    work: Given | Call | None = None,
    *,
    device: str | None = None,
    constants: Profile | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Whether it pays to move bytes to a device, and its results back, as plain data.

    ``up`` and ``down`` are bytes, None for those of a `Call`; ``constants`` those of another
    machine, where nothing is measured. ``copies`` are by kind of host memory, ``pays`` what `pays`
    tells with the "break_even" of a `Call`, ``curves`` predicted seconds of a `Call` over its
    leading dimension, else of copies over bytes.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or none was named and there is none.
    ValueError
        If bytes are not given, and there is no `Call` to take them from.
    """
    say = progress or (lambda share, text: None)
    if isinstance(work, Call):
        own = [sum(parts) for parts in work.moved()]
        up, down = own[0] if up is None else up, own[1] if down is None else down
        ratios = up / max(own[0], 1), down / max(own[1], 1)  # kept at every size
        parts = work.moved(*ratios)
    elif up is None or down is None:
        missing = "UP and DOWN" if up is None else "DOWN"
        raise ValueError(f"{missing} must be given in bytes, unless --work names an operation")
    else:
        parts = [up], [down]
    is_here = constants is None
    if constants is None:
        constants, devices = calls.known(None)
    else:
        devices = constants.machine() or inventory.devices()
    name = _device(device, devices, is_here)
    say(0.0, "copies")
    measured = _measured_copies(name, up, down) if is_here else {}
    copies = {}
    for memory in MEMORIES:
        predicted = _predicted_copies(constants, name, memory, parts)
        if predicted is not None or memory in measured:
            copies[memory] = {"predicted": predicted, "measured": measured.get(memory)}
    say(0.4, "the work")
    machine = OtherMachine(constants, devices)
    done = None if work is None else _work(work, machine, name, is_here)
    say(0.7, "sizes")
    found = {memory: pays(one, done) for memory, one in copies.items()}
    if isinstance(work, Call):
        sizes = extents(min(_SMALLEST, work.extent), max(_LARGEST, _FURTHER * work.extent))
        curves = _curves(work, machine, name, constants, ratios, copies)
        for memory, one in copies.items():
            if one["predicted"] is not None:
                at = break_even(curves[CPU], curves[f"{name}, {memory}"], sizes)
                dims = None if at.extent is None else list(work.of_size(at.extent).dims)
                found[memory]["break_even"] = {**at._asdict(), "dims": dims}
        over, given = work.leading, work.extent
    else:
        sizes = extents(_LEAST_BYTES, max(_FURTHER * max(up, down), _MOST_BYTES))
        curves = {}
        for memory in copies:
            for way in WAYS:
                with suppress(KeyError):  # what the profile does not know
                    curves[f"{way}, {memory}"] = _curve(constants, name, memory, way)
        over, given = "bytes", None
    seconds = {label: [curve(n) for n in sizes] for label, curve in curves.items()}
    return {
        "device": name,
        "profile": constants.name,
        "up": up,
        "down": down,
        "copies": copies,
        "work": done,
        "pays": found,
        "curves": {"over": over, "given": given, "at": sizes, "seconds": seconds},
    }


def _device(device: str | None, devices: Mapping[str, Mapping[str, Any]], is_here: bool) -> str:
    """The device that is asked about."""
    others = [name for name in devices if name != CPU]
    for name in others:
        if name == device or (device is None and not devices[name].get("is_host_cpu")):
            return name
    said = "no GPU is here"
    if others and device is not None:
        said = one_of("--device", others, device)
    elif others:
        said += f"; --device takes {' or '.join(map(repr, others))}"
    if is_here:
        said += (
            "; --profile h100, h200, h100x2, h200x2 or tesla-t10 predicts for a machine with one"
        )
    raise DeviceNotAvailable(said)


def _predicted_copies(
    constants: Profile, name: str, memory: str, parts: tuple[list[int], list[int]]
) -> dict[str, float] | None:
    """Seconds of each direction's copies; None where the profile does not know one.

    What is too small to be staged goes as pageable memory does.
    """
    with suppress(KeyError):
        return {
            way: sum(_curve(constants, name, memory, way)(nbytes) for nbytes in copies if nbytes)
            for way, copies in zip(WAYS, parts, strict=True)
        }
    return None


def _curve(constants: Profile, name: str, memory: str, way: str) -> Callable[[int], float]:
    found = constants.curve(name, way, memory)
    return constants.link(name, way) if memory == STAGED else found


def _measured_copies(name: str, up: int, down: int) -> dict[str, dict[str, float]]:
    """Kind of memory -> direction -> seconds, of copies for which the device has room."""
    device = backends.get(name)
    if max(up, down) > int(device.describe()["memory_bytes"]) // 4:
        return {}
    found: dict[str, dict[str, float]] = {}
    with device.active():
        copies = Copies(device, max(up, down, 1))
        for way, memory in copies.ways:
            nbytes = up if way == WAYS[0] else down
            as_it_goes = memory if is_asked((way, memory), nbytes) else PAGEABLE
            copy = partial(copies, way, as_it_goes, nbytes)
            found.setdefault(memory, {})[way] = candidates.typical(copy) if nbytes else 0.0
    return found


def _work(work: Given | Call, machine: Machine, name: str, is_here: bool) -> dict[str, Any]:
    """What the work takes on the CPU, and on the device."""
    found: dict[str, Any] = {"what": str(work)}
    if isinstance(work, Given):
        given = {CPU: _taken(None, work.cpu, None), "device": _taken(None, work.device, None)}
        return {**found, **given, "chosen": None}
    for where, device, on in ((CPU, CPU, HOST), ("device", name, name)):
        one = work.chosen(machine, on, device)
        taken = work.measured(one, on) if is_here else None
        found[where] = _taken(one, one and one.seconds, taken)
    best = work.chosen(machine, HOST)
    found["chosen"] = best and {"device": best.device, **_taken(best, best.seconds, None)}
    return found


def _taken(
    candidate: Candidate | None, predicted: float | None, measured: float | None
) -> dict[str, Any]:
    method = None if candidate is None else candidate.method
    return {"predicted": predicted, "measured": measured, "method": method}


def _best(taken: Mapping[str, Any]) -> Any:
    """What was measured, or else predicted."""
    return taken["predicted"] if taken["measured"] is None else taken["measured"]


def pays(copies: Mapping[str, Any], work: Mapping[str, Any] | None) -> dict[str, Any]:
    """Whether moving pays, by the copies of one kind of host memory: measured, else predicted.

    transfer: seconds of both copies. If the time on the CPU is known also gain: the CPU's
    time over that of the device with both copies; least_gain: how many times as fast as the CPU the
    device must compute for a gain of 1; calls: from how many calls on it pays, if operands go up
    once and each result comes down; calls_staying: if results stay there but for the last one. None
    where there is no such number; without the device's time calls are as if it took none.
    """
    moves = _best(copies)
    up, down = (moves[way] for way in WAYS)
    cpu = None if work is None else _best(work[CPU])
    if cpu is None:
        return {"transfer": up + down}
    device, left = _best(work["device"]), cpu - up - down
    return {
        "transfer": up + down,
        "gain": None if device is None else cpu / (up + device + down),
        "least_gain": cpu / left if left > 0.0 else None,
        "calls": calls_from(up, (device or 0.0) + down, cpu),
        "calls_staying": calls_from(up + down, device or 0.0, cpu),
    }


def _curves(
    call: Call,
    machine: Machine,
    name: str,
    constants: Profile,
    ratios: Sequence[float],
    memories: Iterable[str],
) -> dict[str, Callable[[int], float | None]]:
    """Predicted seconds of a call over its leading dimension: on the CPU, on the device without
    copies, and there with both copies by each kind of host memory."""

    @functools.cache
    def alone(where: str, extent: int) -> float | None:
        try:
            found = call.of_size(extent).chosen(machine, HOST if where == CPU else where, where)
        except ValueError:  # the operation does not take that size
            found = None
        return None if found is None else found.seconds

    def moved(memory: str, extent: int) -> float | None:
        if (seconds := alone(name, extent)) is None:
            return None
        parts = call.of_size(extent).moved(*ratios)
        copies = _predicted_copies(constants, name, memory, parts)
        return None if copies is None else seconds + sum(copies.values())

    return {
        CPU: partial(alone, CPU),
        f"{name} without copies": partial(alone, name),
        **{f"{name}, {memory}": partial(moved, memory) for memory in memories},
    }
