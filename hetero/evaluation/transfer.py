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
from hetero.evaluation.break_even import break_even, calls_from, extents
from hetero.evaluation.calls import Call
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
    """Whether it pays to move bytes to a device, and its results back.

    Parameters
    ----------
    up, down : int or None
        Bytes. None: those of a `Call`.
    work : Given or Call, optional
        What is done there. Default: nothing is known of it.
    device : str, optional
        Default: the first one that is not the host's CPU.
    constants : Profile, optional
        Of another machine, where nothing is measured. Default: this one, priced and measured.
    progress : callable, optional
        As in `hetero.calibrate`.

    Returns
    -------
    dict
        device, profile, up, down (bytes);
        copies: kind of host memory -> "predicted", "measured" -> None, or the seconds "upload" and
        "download";
        work: None, or "what" it is, "cpu" and "device" with the seconds "predicted" and "measured"
        and the "method", and "chosen", what a call with operands on the host comes down to;
        pays: kind of host memory -> what `pays` tells, with "break_even" of a `Call`;
        curves: predicted seconds of a `Call` over its leading dimension, else of copies over bytes.

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
        curves = _curves_of_copies(constants, name, copies)
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
    if device in others:
        return device
    if device is None:
        usual = [name for name in others if not devices[name].get("is_host_cpu")]
        if usual:
            return usual[0]
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
    if isinstance(work, Given):
        seconds = {CPU: work.cpu, "device": work.device}
        given = {where: _taken(None, s, None) for where, s in seconds.items()}
        return {"what": str(work), **given, "chosen": None}
    found: dict[str, Any] = {"what": str(work)}
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
    """Whether moving pays, by the copies of one kind of host memory.

    Parameters
    ----------
    copies, work
        As in what `transfer` gives. What was measured counts, else what is predicted.

    Returns
    -------
    dict
        transfer: seconds of both copies. Of work whose time on the CPU is known also
        gain: the CPU's time over that of the device with both copies; None where that is not known;
        least_gain: how many times as fast as the CPU the device must compute for a gain of 1; None
        where the copies alone take longer than the CPU;
        calls: from how many calls on it pays, if operands go up once and each result comes down;
        None where no number does;
        calls_staying: the same if results stay there but for the last one.
        Where the device's time is not known both are as if it took none.
    """
    moves = _best(copies)
    up, down = (moves[way] for way in WAYS)
    cpu = None if work is None else _best(work[CPU])
    if work is None or cpu is None:
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


def _curves_of_copies(
    constants: Profile, name: str, memories: Iterable[str]
) -> dict[str, Callable[[int], float]]:
    """Predicted seconds of copies alone over bytes, of those that the profile knows."""
    found = {}
    for memory in memories:
        for way in WAYS:
            with suppress(KeyError):
                found[f"{way}, {memory}"] = _curve(constants, name, memory, way)
    return found
