"""`hetero transfer`: is it worth moving this to a device at all? As data, text and a picture.

Copies are compared with the predicted time of the work on the CPU and on the device: White's
decision (2013, listing 4.18).
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, partial
from typing import Any

from hetero.arrays import HOST
from hetero.calling.planner import Machine
from hetero.errors import readable
from hetero.evaluation.calls import Call, break_even, extents, gpu, known
from hetero.evaluation.report import draw_curves, markdown
from hetero.pricing.plan import CPU
from hetero.profile import PAGEABLE, PINNED, STAGED


def transfer(
    up: int | None,
    down: int | None,
    work: Call | tuple[float, ...] = (),
    *,
    device: str | None = None,
    named: str | None = None,
) -> dict[str, Any]:
    """Whether it pays to move bytes to a device, and its results back, as plain data.

    ``up`` and ``down`` are bytes, None for those of a `Call`; ``work`` may also be its seconds, on
    the CPU and on the device, as far as they are known; ``named`` is the profile of another
    machine. Gives for each kind of host memory, in ``pays``, the seconds of both copies, and where
    the work is known: gain, the CPU's time over that of the device with its copies; calls, from how
    many on operands pay that go up once; break_even of a `Call`, in its leading dimension.

    Raises
    ------
    DeviceNotAvailable, ValueError
        If there is no such device or profile, or bytes and a `Call` are both missing.
    """
    if (call := work if isinstance(work, Call) else None) is None and None in (up, down):
        missing = "UP and DOWN" if up is None else "DOWN"
        raise ValueError(f"{missing} must be given in bytes, unless --work names an operation")
    constants, devices = known(named)
    name, machine = gpu(devices, device), Machine(constants, devices)
    over, extent, least, most = "bytes", max(up or 0, down or 0, 1), 1 << 10, 1 << 24
    if call is not None:
        (over, extent), least, most = call.leading, 8, 16384
    sizes = extents(min(least, extent), max(most, 4 * extent))

    def parts(size: int) -> list[list[int]]:
        """Bytes of each copy up, and down."""
        if call is None:
            return [[up * size // extent], [down * size // extent]]
        problem = call.of_size(size).problem()
        return [[o.nbytes for o in problem.inputs], [problem.output.nbytes]]

    # Of the host, around a call with operands there, in addition to one on the device.
    around = constants.dispatch(name, "host") - constants.dispatch(name, "device")
    own = [sum(each) for each in parts(extent)]
    moved = [n if given is None else given for n, given in zip(own, (up, down), strict=True)]

    def copies(memory: str, size: int) -> list[float]:
        """Seconds of both directions; what is too small to be staged goes as pageable memory."""
        seconds = []
        for at, way in enumerate(("upload", "download")):
            link = constants.curve(name, way, memory)  # or KeyError
            link = constants.link(name, way) if memory == STAGED else link
            ratio = moved[at] / max(own[at], 1)
            seconds.append(sum(link(round(ratio * n)) for n in parts(size)[at] if n))
        return seconds

    @cache
    def alone(where: str, size: int) -> tuple[float | None, str | None]:
        """Seconds of the work on the CPU, or on the device with its operands there; its method."""
        if call is None:
            return (*work, None, None)[where != CPU], None
        with suppress(ValueError):  # the operation does not take that size
            on = HOST if where == CPU else where
            if found := call.of_size(size).chosen(machine, on, where):
                return found.seconds, found.method
        return None, None

    def seconds(memory: str | None, size: int) -> float | None:
        """Of the work on the CPU, or on the device with copies from and to such host memory."""
        taken = alone(CPU if memory is None else name, size)[0] if work else 0.0
        if None in (taken, memory):
            return taken
        return taken + sum(copies(memory, size)) + around * (call is not None)

    done, pays, curves = (alone(CPU, extent), alone(name, extent)), {}, {}
    (here, _), (there, _) = done
    for memory in (None,) * bool(work) + (PAGEABLE, STAGED, PINNED):
        label = CPU if memory is None else f"{name}, {memory}"
        with suppress(KeyError):  # of what the profile does not know
            curves[label] = {n: s for n in sizes if (s := seconds(memory, n)) is not None}
            if memory is None:
                continue
            upload, download = copies(memory, extent)
            one = pays[memory] = {"upload": upload, "download": download}
            if here is not None and there is not None:
                one["gain"], gained = here / seconds(memory, extent), here - there - download
                one["calls"] = int(upload / gained) + 1 if gained > 0.0 else None
            if call is not None and here is not None:
                turn = break_even(partial(seconds, None), partial(seconds, memory), sizes)
                one["break_even"] = turn._asdict()
    what = str(call or "the given work") if work else f"copies to and from {name}"
    of = {"device": name, "profile": constants.name, "up": moved[0], "down": moved[1]}
    return of | {"what": what, "done": done, "pays": pays, "over": over, "curves": curves}


def text(found: Mapping[str, Any]) -> str:
    """Whether it pays by copies of ordinary memory, in one sentence; copies and the work."""
    device, kinds, ((cpu, by), (there, by_device)) = found["device"], found["pays"], found["done"]
    one = kinds[memory := STAGED if STAGED in kinds else PAGEABLE]
    both, at, pays = one["upload"] + one["download"], one.get("break_even"), ""
    copies = f"copies of {readable(both)} ({memory} memory)"
    if at is not None:
        every = "at every size looked at, " * (at["extent"] == at["smallest"])
        size = f"{every}from {found['over']} = {at['extent']} on"
        pays = f" moving pays {size if at['extent'] else 'at no size looked at'};"
    if gain := one.get("gain"):
        fast = f"{device} is {gain:.3g} times as fast as {CPU} with {copies}"
        answer = f"{'Yes' if gain > 1.0 else 'No'}:{pays} {fast}."
    elif cpu is None:
        answer = f"Yes, if the work takes {CPU} longer than {device} by more than its {copies}."
    else:
        left = readable(max(cpu - both, 0.0))
        answer = f"Yes, if the work takes {device} less than {left}; {copies}."
    moved = "{up:,} bytes up and {down:,} down, {device} (profile: {profile})".format_map(found)
    lines = [answer, "", moved]
    for where, seconds, method in ((CPU, cpu, by), (f"{device} alone", there, by_device)):
        if seconds is not None:
            lines.append(f"{found['what']} on {where}: {readable(seconds)} by {method or 'itself'}")
    cells = [
        [kind, readable(one["upload"]), readable(one["download"])]
        + [f"{one['gain']:.3g} times" if "gain" in one else "", str(one.get("calls") or "")]
        + [str(one.get("break_even", {}).get("extent") or "")]
        for kind, one in kinds.items()
    ]
    head = "host memory", "upload", "download", "gain of one call", "pays from calls", "from size"
    return "\n".join([*lines, "", *markdown(head, cells)])


def draw(found: Mapping[str, Any], picture: Any) -> None:
    """Draw the curves on a figure of matplotlib's."""
    draw_curves(picture, found["what"], found["over"], found["curves"])
