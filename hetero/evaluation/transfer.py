"""`hetero transfer`: is it worth moving this to a device at all?

Copies up and down are priced, and measured where the device is here, by each kind of host memory.
Beside them stands the time of the work itself on the CPU and on the device. The decision is White's
listing 4.18; how many calls pay for a copy that stays on the device is the question after it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from hetero import devices as backends
from hetero import profile
from hetero.arrays import HOST
from hetero.calibration.environment.copies import Copies, is_asked
from hetero.calling.planner import Machine, OtherMachine
from hetero.errors import DeviceNotAvailable
from hetero.evaluation.break_even import break_even, calls_from, extents
from hetero.evaluation.work import Call, Given, typical
from hetero.pricing.plan import CPU, Candidate
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile, inventory

WAYS = ("upload", "download")
MEMORIES = (PAGEABLE, STAGED, PINNED)
_SMALLEST, _LARGEST = 8, 16384  # leading dimensions among which the break-even size is looked for
_FURTHER = 4  # and up to so many times the given one
_LEAST_BYTES, _MOST_BYTES = 1 << 10, 1 << 24  # of the curve of copies, at least


def transfer(
    up: int | None,
    down: int | None,
    work: Given | Call | None = None,
    *,
    device: str | None = None,
    constants: Profile | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> dict[str, Any]:
    """Whether it pays to move so many bytes to a device, and so many back.

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
        raise ValueError("UP and DOWN must be given as bytes, unless --work names an operation")
    else:
        parts = [up], [down]
    is_here = constants is None
    if constants is None:
        backends.proven()
        constants, devices = profile.current(), inventory.devices()
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
        curves = _Curves(work, machine, name, constants, ratios)
        sizes = _sizes(work)
        for memory, one in copies.items():
            if one["predicted"] is not None:
                at = break_even(curves.cpu, partial(curves.moved, memory), sizes)
                dims = None if at.extent is None else list(work.of_size(at.extent).dims)
                found[memory]["break_even"] = {**at._asdict(), "dims": dims}
        curve = curves.table(sizes, list(copies))
    else:
        curve = _over_bytes(constants, name, list(copies), max(up, down))
    return {
        "device": name,
        "profile": constants.name,
        "up": up,
        "down": down,
        "copies": copies,
        "work": done,
        "pays": found,
        "curves": curve,
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
    said = "no GPU is here" if device is None else f"--device names none that is here: {device!r}"
    if others:
        said += f"; --device takes {' or '.join(map(repr, others))}"
    if is_here:
        said += "; --profile h100, h200 or tesla-t10 predicts for a machine that has one"
    raise DeviceNotAvailable(said)


def _predicted_copies(
    constants: Profile, name: str, memory: str, parts: tuple[list[int], list[int]]
) -> dict[str, float] | None:
    """Seconds of each direction's copies; None where the profile does not know one.

    What is too small to be staged goes as pageable memory does.
    """
    try:
        return {
            way: sum(_curve(constants, name, memory, way)(nbytes) for nbytes in copies if nbytes)
            for way, copies in zip(WAYS, parts, strict=True)
        }
    except KeyError:
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
            found.setdefault(memory, {})[way] = typical(copy) if nbytes else 0.0
    return found


def _work(work: Given | Call, machine: Machine, name: str, is_here: bool) -> dict[str, Any]:
    """What the work takes on the CPU, and on the device."""
    if isinstance(work, Given):
        seconds = {CPU: work.cpu, "device": work.device}
        told = {where: _told(None, s, None) for where, s in seconds.items()}
        return {"what": str(work), **told, "chosen": None}
    here, there = work.chosen(machine, HOST, CPU), work.chosen(machine, name, name)
    best = work.chosen(machine, HOST)
    measured = [
        work.measured(one, on) if is_here else None for one, on in ((here, HOST), (there, name))
    ]
    return {
        "what": str(work),
        CPU: _told(here, here and here.seconds, measured[0]),
        "device": _told(there, there and there.seconds, measured[1]),
        "chosen": best and {"device": best.device, **_told(best, best.seconds, None)},
    }


def _told(
    candidate: Candidate | None, predicted: float | None, measured: float | None
) -> dict[str, Any]:
    method = None if candidate is None else candidate.method
    return {"predicted": predicted, "measured": measured, "method": method}


def _best(told: Mapping[str, Any]) -> Any:
    """What was measured, or else predicted."""
    return told["predicted"] if told["measured"] is None else told["measured"]


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


class _Curves:
    """Predicted seconds of a call over its leading dimension; each is asked for once."""

    def __init__(
        self, call: Call, machine: Machine, name: str, constants: Profile, ratios: Sequence[float]
    ) -> None:
        self._call, self._machine, self._name, self._constants = call, machine, name, constants
        self._ratios = ratios
        self._known: dict[tuple[str, int], float | None] = {}

    def _seconds(self, where: str, on: str, extent: int) -> float | None:
        key = where, extent
        if key not in self._known:
            try:
                found = self._call.of_size(extent).chosen(self._machine, on, where)
            except ValueError:  # the operation does not take that size
                found = None
            self._known[key] = None if found is None else found.seconds
        return self._known[key]

    def cpu(self, extent: int) -> float | None:
        return self._seconds(CPU, HOST, extent)

    def device(self, extent: int) -> float | None:
        """Without any copies."""
        return self._seconds(self._name, self._name, extent)

    def moved(self, memory: str, extent: int) -> float | None:
        """With both copies, by a kind of host memory."""
        alone = self.device(extent)
        if alone is None:
            return None
        parts = self._call.of_size(extent).moved(*self._ratios)
        copies = _predicted_copies(self._constants, self._name, memory, parts)
        return None if copies is None else alone + sum(copies.values())

    def table(self, sizes: Sequence[int], memories: Sequence[str]) -> dict[str, Any]:
        """All of them at these extents."""
        return {
            "over": self._call.leading,
            "given": self._call.dims[self._call.growing[0]],
            "at": list(sizes),
            "seconds": {
                CPU: [self.cpu(n) for n in sizes],
                f"{self._name} without copies": [self.device(n) for n in sizes],
                **{
                    f"{self._name}, {memory}": [self.moved(memory, n) for n in sizes]
                    for memory in memories
                },
            },
        }


def _sizes(call: Call) -> list[int]:
    given = call.dims[call.growing[0]]
    return extents(min(_SMALLEST, given), max(_LARGEST, _FURTHER * given))


def _over_bytes(
    constants: Profile, name: str, memories: Sequence[str], largest: int
) -> dict[str, Any]:
    """Predicted seconds of copies alone."""
    sizes = extents(_LEAST_BYTES, max(_FURTHER * largest, _MOST_BYTES))
    seconds = {}
    for memory in memories:
        for way in WAYS:
            try:
                curve = _curve(constants, name, memory, way)
            except KeyError:
                continue
            seconds[f"{way}, {memory}"] = [curve(n) for n in sizes]
    return {"over": "bytes", "given": None, "at": sizes, "seconds": seconds}
