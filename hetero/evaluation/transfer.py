"""`hetero transfer`: is it worth moving this to a device at all? As data, text and a picture.

Copies up and down are priced by each kind of host memory; beside them stands the predicted time of
the work itself on the CPU and on the device. The decision is White's listing 4.18; how many calls
pay for a copy that stays on the device is the question after it.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

from hetero.arrays import HOST
from hetero.calling.planner import OtherMachine
from hetero.errors import DeviceNotAvailable, one_of
from hetero.evaluation import calls
from hetero.evaluation.calls import Call, break_even, calls_from, extents
from hetero.evaluation.report import markdown
from hetero.pricing.plan import CPU
from hetero.profile import PAGEABLE, PINNED, STAGED, Profile
from hetero.times import readable

PICTURE = (8.0, 5.0)  # inches
_STYLES = ("-", "--", "-.", ":")
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
    named: str | None = None,
) -> dict[str, Any]:
    """Whether it pays to move bytes to a device, and its results back, as plain data.

    ``up`` and ``down`` are bytes, None for those of a `Call`; ``named`` is the profile of another
    machine. ``copies`` are seconds by kind of host memory, ``pays`` what `pays` tells with the
    "break_even" of a `Call`, ``curves`` seconds of a `Call` over its leading dimension, else of
    copies over bytes. All are predicted.

    Raises
    ------
    DeviceNotAvailable
        If there is no such device, or none was named and there is none.
    ValueError
        If bytes are not given, and there is no `Call` to take them from; if there is no such
        profile.
    """
    constants, devices = calls.known(named)
    parts, ratios = ([up], [down]), (1.0, 1.0)
    if isinstance(work, Call):
        own = [sum(each) for each in work.moved()]
        up, down = own[0] if up is None else up, own[1] if down is None else down
        ratios = up / max(own[0], 1), down / max(own[1], 1)  # kept at every size
        parts = work.moved(*ratios)
    elif up is None or down is None:
        missing = "UP and DOWN" if up is None else "DOWN"
        raise ValueError(f"{missing} must be given in bytes, unless --work names an operation")
    name = _device(device, devices, named is None)
    moved = {memory: _copies(constants, name, memory, parts) for memory in MEMORIES}
    copies = {memory: seconds for memory, seconds in moved.items() if seconds is not None}
    machine = OtherMachine(constants, devices)
    done = None if work is None else _work(work, machine, name)
    found = {memory: pays(seconds, done) for memory, seconds in copies.items()}
    over, curves = "bytes", {}
    if isinstance(work, Call):
        over = work.leading
        sizes = extents(min(_SMALLEST, work.extent), max(_LARGEST, _FURTHER * work.extent))

        @functools.cache
        def alone(where: str, extent: int) -> float | None:
            on = HOST if where == CPU else where
            with suppress(ValueError):  # the operation does not take that size
                candidate = work.of_size(extent).chosen(machine, on, where)
                return candidate and candidate.seconds
            return None

        def with_copies(memory: str, extent: int) -> float | None:
            if (seconds := alone(name, extent)) is None:
                return None
            copied = _copies(constants, name, memory, work.of_size(extent).moved(*ratios))
            return seconds + sum(copied.values())

        curves = {CPU: partial(alone, CPU), f"{name} without copies": partial(alone, name)}
        for memory in copies:
            curves[f"{name}, {memory}"] = curve = partial(with_copies, memory)
            at = break_even(curves[CPU], curve, sizes)
            dims = None if at.extent is None else list(work.of_size(at.extent).dims)
            found[memory]["break_even"] = {**at._asdict(), "dims": dims}
    else:
        sizes = extents(_LEAST_BYTES, max(_FURTHER * max(up, down), _MOST_BYTES))
        for memory, way in itertools.product(copies, WAYS):
            curves[f"{way}, {memory}"] = _curve(constants, name, memory, way)
    seconds = {label: [curve(n) for n in sizes] for label, curve in curves.items()}
    return {
        "device": name,
        "profile": constants.name,
        "up": up,
        "down": down,
        "copies": copies,
        "work": done,
        "pays": found,
        "curves": {"over": over, "at": sizes, "seconds": seconds},
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
        machines = "h100, h200, h100x2, h200x2 or tesla-t10"
        said += f"; --profile {machines} predicts for a machine with one"
    raise DeviceNotAvailable(said)


def _copies(
    constants: Profile, name: str, memory: str, parts: tuple[list[int], list[int]]
) -> dict[str, float] | None:
    """Seconds of each direction's copies; None where the profile does not know one."""
    with suppress(KeyError):
        return {
            way: sum(_curve(constants, name, memory, way)(nbytes) for nbytes in copies if nbytes)
            for way, copies in zip(WAYS, parts, strict=True)
        }
    return None


def _curve(constants: Profile, name: str, memory: str, way: str) -> Callable[[int], float]:
    """What is too small to be staged goes as pageable memory does."""
    found = constants.curve(name, way, memory)
    return constants.link(name, way) if memory == STAGED else found


def _work(work: Given | Call, machine: OtherMachine, name: str) -> dict[str, Any]:
    """Seconds of the work on the CPU, and on the device with its operands there, and the methods;
    None where they are not known."""
    if isinstance(work, Given):
        return {"what": str(work), CPU: (work.cpu, None), "device": (work.device, None)}
    found = work.chosen(machine, HOST, CPU), work.chosen(machine, name, name)
    taken = [(one.seconds, one.method) if one else (None, None) for one in found]
    return {"what": str(work), CPU: taken[0], "device": taken[1]}


def pays(copies: Mapping[str, float], work: Mapping[str, Any] | None) -> dict[str, Any]:
    """Whether moving pays, by the copies of one kind of host memory.

    transfer: seconds of both copies. If the time on the CPU is known also gain: the CPU's
    time over that of the device with both copies; least_gain: how many times as fast as the CPU the
    device must compute for a gain of 1; calls: from how many calls on it pays, if operands go up
    once and each result comes down; calls_staying: if results stay there but for the last one. None
    where there is no such number; without the device's time calls are as if it took none.
    """
    up, down = (copies[way] for way in WAYS)
    if work is None or (cpu := work[CPU][0]) is None:
        return {"transfer": up + down}
    device, left = work["device"][0], cpu - up - down
    return {
        "transfer": up + down,
        "gain": None if device is None else cpu / (up + device + down),
        "least_gain": cpu / left if left > 0.0 else None,
        "calls": calls_from(up, (device or 0.0) + down, cpu),
        "calls_staying": calls_from(up + down, device or 0.0, cpu),
    }


# -- As text ---------------------------------------------------------------------------------------


def text(found: Mapping[str, Any]) -> str:
    """Whether it pays; then copies and the work, in words."""
    device, work, kinds = found["device"], found["work"], found["pays"]
    moved = f"{found['up']:,} bytes up and {found['down']:,} down"
    lines = [answer(found), "", f"{moved}, {device} (profile: {found['profile']})", ""]
    head = ["host memory", *WAYS]
    cells = [[of, *map(readable, seconds.values())] for of, seconds in found["copies"].items()]
    if work is not None:
        is_known = work["device"][0] is not None
        lines.append(f"{work['what']}: {_taken(CPU, *work[CPU])}")
        lines[-1] += f"; {_taken(f'{device} without copies', *work['device'])}" * is_known
        lines.append("")
        if work[CPU][0] is not None:
            head += ["gain of one call" if is_known else "must be faster by", "pays from calls"]
            head += ["results staying", "pays from size"]
            for row, one in zip(cells, kinds.values(), strict=True):
                gain = one["gain" if is_known else "least_gain"]
                row.append("never" if gain is None else f"{gain:.3g} times")
                numbers = one["calls"], one["calls_staying"]
                row += ["never" if n is None else f"{n:,}" for n in numbers]
                row.append(_size(one.get("break_even")))
    return "\n".join([*lines, *markdown(head, cells)])


def answer(priced: Mapping[str, Any]) -> str:
    """Whether it pays to move the operands, and from where on, in one sentence.

    Operands in ordinary memory count, staged where the profile knows what that takes, or pinned
    ones where only these pay.
    """
    device, kinds = priced["device"], priced["pays"]
    gains = {memory: pays.get("gain") or 0.0 for memory, pays in kinds.items()}
    memory = STAGED if STAGED in kinds else next(iter(kinds))
    if gains[memory] <= 1.0 < gains.get(PINNED, 0.0):
        memory = PINNED
    pays = kinds[memory]
    copies = f"copies of {readable(pays['transfer'])} ({memory} memory)"
    if priced["work"] is None:
        return f"Yes, if the work takes {CPU} longer than {device} by more than its {copies}."
    if "gain" not in pays:
        return f"Not known: the profile does not tell what {CPU} takes; {copies}."
    calls, gain, least = pays["calls"], pays["gain"], pays["least_gain"]
    staying = "" if calls is None else f"; operands that stay there pay from {calls:,} calls on"
    if gain is None and least is None:
        return f"No: {CPU} takes no longer than the {copies}{staying}."
    if gain is None:
        return f"Yes, if {device} computes {least:.4g} times as fast as {CPU} or faster; {copies}."
    begin = ""
    if (at := pays.get("break_even")) is not None:
        name = "n" if len(set(at["dims"] or ())) == 1 else priced["curves"]["over"].lower()
        size = f"from {name} = {at['extent']} on"
        if at["extent"] is None:
            size = f"at no size up to {at['largest']}"
        elif at["extent"] == at["smallest"]:
            size = f"at every size looked at, {size}"
        begin = f" moving pays {size};"
    if gain > 1.0:
        return f"Yes:{begin} {device} is {gain:.3g} times as fast as {CPU} with {copies}."
    slower = f" {device} takes {1.0 / gain:.3g} times as long as {CPU} with {copies}"
    return f"No:{begin}{slower}{staying}."


def _taken(where: str, seconds: float | None, method: str | None) -> str:
    by = f" by {method}" if method else ""
    return f"{where}{by} {'-' if seconds is None else readable(seconds)}"


def _size(at: Mapping[str, Any] | None) -> str:
    if at is None:
        return "-"
    return " ".join(map(str, at["dims"])) if at["dims"] else f"not up to {at['largest']}"


def draw(found: Mapping[str, Any], picture: Any) -> None:
    """Draw the curves on a figure of matplotlib's."""
    axes, curves, work = picture.subplots(), found["curves"], found["work"]
    for style, (name, seconds) in zip(itertools.cycle(_STYLES), curves["seconds"].items()):
        points = [(n, s) for n, s in zip(curves["at"], seconds, strict=True) if s is not None]
        if points:
            axes.plot(*zip(*points, strict=True), style, label=name)
    title = work["what"] if work else f"copies to and from {found['device']}"
    if work is not None and curves["over"] == "bytes":
        axes.axhline(work[CPU][0], color="0.4", linewidth=0.8, label="the work on the CPU")
    axes.set_xscale("log", base=2)
    axes.set(xlabel=curves["over"], ylabel="seconds, predicted", yscale="log", title=title)
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
