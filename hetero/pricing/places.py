"""What names of devices stand for, why a method cannot run there, the memory it may take, and what
moves for it.

A call on host arrays that all devices of a kind share is cut into a range for each. Each device
moves its own range over its own bus while the others do the same, so links are as fast as they are
when all copy at once.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
from collections.abc import Iterable
from itertools import pairwise
from typing import Any

from hetero import registry
from hetero.arrays import HOST, Operand
from hetero.devices import peers
from hetero.devices.base import Device
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, one_of
from hetero.host.copying import staging
from hetero.pricing.plan import AGAIN, CPU, Candidate, Terms, with_terms
from hetero.profile import PAGEABLE, Profile
from hetero.registry import Cut, Implementation, Problem, Unasked
from hetero.tables import forced

UNKNOWN_THERE = "no constants in this profile"
_LEAST_MOVED = 16 << 20  # bytes below which a call is over before copies and computation overlap
VARIABLE = "HETERO_MEMORY_LIMIT"
_LIMIT = r"\s*([0-9]*\.?[0-9]+(?:e\+?[0-9]+)?)\s*(?:([KMGT]?)(I?)B)?\s*"  # number, unit
log = logging.getLogger("hetero")
# Ranges begin at multiples of one of these, for tiles and wide loads; the least number of them.
_STEPS, _LEAST_STEPS = (64, 16, 4), 16
_SHARE = 0.9  # of a device's memory; its driver keeps the rest

Info = dict[str, Any]  # a description of a device, as `hetero.machine` has it
Devices = dict[str, Info]


def check_method(
    method: str | None, implementations: Iterable[Implementation], what: str = "method"
) -> None:
    """Raise `MethodNotAvailable` for a method that none of these implementations has."""
    if method is not None and method not in (known := {i.method for i in implementations}):
        raise MethodNotAvailable(one_of(what, sorted(known), method))


def together(devices: Devices, device: str | None) -> dict[str, list[str]]:
    """Kind -> its devices in use, for kinds with at least two; ``device`` may name one kind."""
    found: dict[str, list[str]] = {}
    if len(devices) < 3 or not (device is None or device.endswith(":*")):
        return found
    for name, info in devices.items():
        kind, on_host = info["kind"], name == CPU or info.get("is_host_cpu")
        wanted = not on_host if device is None else device == f"{kind}:*"
        if wanted and not info.get("set_aside"):
            found.setdefault(kind, []).append(name)
    return {kind: names for kind, names in found.items() if len(names) > 1}


def matching_devices(device: str, devices: Devices) -> list[str]:
    """The devices that a name such as "cuda" or "cuda:0" stands for, or `DeviceNotAvailable`."""
    if device in devices:
        return [device]
    others = {name: info["kind"] for name, info in devices.items() if name != CPU}
    asked = str(device).removesuffix(":*")
    matching = [name for name, kind in others.items() if kind == asked != CPU]
    if not matching:
        if str(device).startswith(f"{CPU}+"):
            shared = "name one of both; device='cuda:*' shares a call between all GPUs"
            raise DeviceNotAvailable(f"device={device!r} was removed in 0.2: {shared}")
        every = "".join(f"; '{kind}:*' is all of a kind" for kind in [*others.values()][:1])
        raise DeviceNotAvailable(
            f"{one_of('device', devices, device)} "
            f"('hetero info' tells what is missing for others{every})"
        )
    return matching


def groups(devices: Devices) -> Devices:
    """All equal devices of a kind together, "cuda:*", where there are several.

    A group's constants are kept under its kind and number, "cuda*2".
    """
    found: Devices = {}
    for first in {i["same_as"]: None for i in devices.values() if "same_as" in i}:
        alike = [n for n, i in devices.items() if first in (n, i.get("same_as"))]
        members = [n for n in alike if not devices[n].get("set_aside")]
        if len(members) > 1 and first in devices:
            info, number = devices[first], len(members)
            sizes = {key: info[key] for key in ("memory_bytes", "memory_limit") if info.get(key)}
            found.setdefault(
                f"{info['kind']}:*",
                {
                    **info,
                    "members": tuple(members),
                    "constants": f"{info['kind']}*{number}",
                    **{key: number * nbytes for key, nbytes in sizes.items()},
                },
            )
    return found


def of_device(
    problem: Problem, name: str, info: Info, asked: bool
) -> tuple[str | None, str | None]:
    """Why no method runs on a device, and why it lacks room for the operands; None where it can."""
    reason = info.get("set_aside")
    if reason is None and not asked:
        if info.get("is_host_cpu"):
            reason = f"{name} {AGAIN}; name it with device= to use it"
        elif info.get("same_as") and problem.device != name:
            reason = f"the same as {info['same_as']}"
    if reason is not None or name == CPU:
        return reason, None
    reason = problem.device_obstacle
    for o in () if reason else (*problem.inputs, problem.output):
        if o.location not in (HOST, name) and not o.is_c_contiguous():  # only dense blocks move
            reason = f"an operand on {o.location} is not contiguous"
            break
    return reason, too_large(problem, name, info)


def obstacle(
    problem: Problem,
    row: Implementation,
    info: Info,
    here: tuple[str | None, str | None],
) -> str | None:
    """Why a method is none on the device of which `of_device` says ``here``; None where it is."""
    reason, short = here
    blocks = row.blocks if short is not None else ""
    if blocks == registry.ALWAYS:
        short = None
    elif blocks == registry.WHEN_SHORT:
        short = Unasked(short)
    else:
        reason = reason or short
    return (row.why_not(problem, info) if reason is None else reason) or short


def too_large(problem: Problem, name: str, info: Info) -> str | None:
    """Why a device has no room for a problem's operands, None where it has.

    With a memory limit, copies that are on the device already count as well.
    """
    needed, limited = 0, "memory_limit" in info
    for operand in (*problem.inputs, problem.output):
        if operand.location != name and (limited or name not in operand.copies):
            needed += operand.nbytes
    if needed <= room(info):
        return None
    limit, memory = info.get("memory_limit"), info["memory_bytes"]
    if limit is not None and limit < _SHARE * memory:
        return f"needs {_readable(needed)}, the limit is {_readable(limit)}"
    return f"needs {needed / 2**30:.1f} GiB, the device has {memory / 2**30:.1f} GiB"


def refuse(
    problem: Problem,
    devices: Devices,
    device: str | None,
    method: str | None,
    rows: Iterable[Implementation],
    found: Iterable[Candidate] = (),
) -> None:
    """Raise `MethodNotAvailable`, with what is there, or why it cannot be; but not for a problem
    that a profile from elsewhere has no constants for."""
    names = list(devices) if device is None else matching_devices(device, devices)
    kinds, where = {devices[name]["kind"] for name in names}, ", ".join(names)
    if not found:
        check_method(method, [row for row in rows if row.kind in kinds], f"method on {where}")
    if all(c.reason != UNKNOWN_THERE for c in found):
        reasons = "; ".join(f"{c.method} on {c.device}: {c.reason}" for c in found)
        why = reasons or f"there is no {problem.operation} on {where}"
        raise MethodNotAvailable(f"{problem} cannot be done as asked: {why}")


def is_rescued(problem: Problem, devices: Devices, device: str | None, method: str | None) -> bool:
    """Whether the CPU gives a right result that the devices that were asked for cannot give."""
    if CPU not in devices or method is None or problem.device_obstacle:
        return CPU in devices
    names = devices if device is None else matching_devices(device, devices)
    return all(devices[name].get("set_aside") for name in names)


# -- Ranges of a call, and the memory that it may take ---------------------------------------------


def not_in_ranges(problem: Problem, info: Info) -> str | None:
    """Why a problem cannot be done in ranges of the host's arrays, None where it can.

    Few bytes are only where the caller says so, or limits the device's memory.
    """
    if any(o.location != HOST for o in (*problem.inputs, problem.output)):
        return "not all operands are on the host"
    if moved(problem) < _LEAST_MOVED and "memory_limit" not in info:
        return Unasked(f"is for calls that move {_LEAST_MOVED >> 20} MiB or more")
    return None


def parsed_limit(limit: float | str, name: str = "memory_limit") -> int:
    """A limit in bytes, of a number or such as "4 GB" (10^9) and "512 MiB" (2^20).

    ValueError or TypeError, about what was given as ``name``, if it is no number of bytes above 0.

    >>> parsed_limit("1.5 GB"), parsed_limit("512 MiB"), parsed_limit(1000)
    (1500000000, 536870912, 1000)
    """
    nbytes: float = 0
    if isinstance(limit, str):
        if match := re.fullmatch(_LIMIT, limit, re.IGNORECASE):
            number, letter, binary = match.groups("")
            nbytes = float(number) * (1024 if binary else 1000) ** " KMGT".find(letter.upper())
    elif isinstance(limit, bool) or not hasattr(limit, "__float__"):
        raise TypeError(f"{name} must be a number of bytes or a string, got {limit!r}")
    else:
        with contextlib.suppress(OverflowError):
            nbytes = float(limit)
    if not 1 <= nbytes < 2**63:
        raise ValueError(f'{name} must be bytes above 0, such as 4e9 or "4 GB", got {limit!r}')
    return int(nbytes)


def memory_limit() -> int | None:
    """The limit of a call that begins now, in bytes; None where there is none."""
    outer = forced.get()
    if outer is not None and outer.memory_limit is not None:
        return outer.memory_limit
    given = os.environ.get(VARIABLE)
    return _of_environment(given) if given else None


@functools.cache
def _of_environment(given: str) -> int | None:
    """The environment's limit; None, and a warning, where it is no number of bytes."""
    try:
        return parsed_limit(given, VARIABLE)
    except ValueError as error:
        log.warning("%s: no limit is taken", error)
        return None


def limited(devices: Devices, limit: int | None) -> Devices:
    """Descriptions of devices with a limit of their memory for each call."""
    if limit is None:
        return devices
    return {
        name: info if info["kind"] == "cpu" else {**info, "memory_limit": limit}
        for name, info in devices.items()
    }


def described(device: Device) -> Info:
    """A device's description, with the limit of a call that begins now."""
    return limited({device.name: device.describe()}, memory_limit())[device.name]


def room(info: Info) -> float:
    """Bytes of a device's memory that a call may take; infinite where that is not known."""
    memory = info.get("memory_bytes")
    most = float("inf") if memory is None else _SHARE * memory
    return min(most, info.get("memory_limit") or most)


def _readable(nbytes: int) -> str:
    for size, unit in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if nbytes >= size:
            return f"{nbytes / size:.3g} {unit}"
    return f"{nbytes} byte{'s' * (nbytes != 1)}"


# -- Moves of a call -------------------------------------------------------------------------------


def moves(problem: Problem, name: str, constants: Profile) -> tuple[Terms, Terms, bool]:
    """Seconds of moves before and after computing on a device, by terms; whether some go through
    pinned buffers (`host.copying.staging`)."""
    here = HOST if name == CPU else name
    before: Terms = {}
    after: Terms = upload_next(problem, constants) if here == HOST else {}
    if here == HOST and problem.device is None:
        return before, after, False
    at_the_same_time: list[tuple[int, float]] = []  # bytes, and seconds alone
    staged = False

    def move(terms: Terms, operand: Operand, source: str, target: str) -> None:
        nonlocal staged
        if source == target or target in operand.copies:
            return
        nbytes = operand.nbytes
        if source != HOST:  # device to device goes through the host
            memory = operand.memory if target == HOST else PAGEABLE
            term = constants.link(source, "download", memory)(nbytes)
            terms["download"] = terms.get("download", 0.0) + term
            is_large = nbytes >= constants.least_staged(source, "download")
            staged = staged or (is_large and not operand.pinned)
        if target != HOST:
            is_packed = source == HOST and terms is before and not operand.is_dense()
            memory = PAGEABLE if is_packed or source != HOST else operand.memory
            term = constants.link(target, "upload", memory)(nbytes)
            is_large = nbytes >= constants.least_staged(target, "upload")
            staged = staged or (is_large and not operand.pinned)
            if is_large and memory == PAGEABLE and terms is before:
                at_the_same_time.append((nbytes, term))
            if is_packed:
                packing = constants.pack(nbytes)
                if is_large:  # packed by the threads that copy
                    packing = max(packing / staging.usual_threads() - term, 0.0)
                terms["pack"] = terms.get("pack", 0.0) + packing
            terms["upload"] = terms.get("upload", 0.0) + term

    for operand in problem.inputs:
        move(before, operand, operand.location, here)
    if len(at_the_same_time) > 1:  # between one after the other and one copy of them all
        together = constants.link(here, "upload", PAGEABLE)(sum(n for n, _ in at_the_same_time))
        before["upload"] += 0.5 * min(together - sum(s for _, s in at_the_same_time), 0.0)
    if problem.next_device is None:
        move(after, problem.output, here, problem.output.location)
    return before, after, staged


def upload_next(problem: Problem, constants: Profile) -> Terms:
    """Seconds to upload a result on the host to the device that is expected to use it next; empty
    where that, or its link, is not known."""
    if problem.next_device is None:
        return {}
    with contextlib.suppress(KeyError):
        link = constants.link(problem.next_device, "upload")
        return {"upload next": link(problem.output.nbytes)}
    return {}


def to_all(problem: Problem, info: Info, constants: Profile) -> tuple[Terms, Terms]:
    """Seconds to move shares of the operands from the host to several devices, which ``info``
    describes as `groups` does, and the result back; KeyError if the links are not known."""
    members = info["members"]

    def seconds(direction: str, operand: Operand) -> float:
        nbytes = operand.nbytes // len(members)
        if nbytes < peers.LEAST:  # one after the other
            return len(members) * constants.link(members[0], direction)(nbytes)
        return constants.at_once(info["constants"]).link(members[0], direction)(nbytes)

    before = sum(seconds("upload", operand) for operand in problem.inputs)
    return {"upload": before}, {"download": seconds("download", problem.output)}


# -- Calls that several devices share --------------------------------------------------------------


def cut(problem: Problem, parts: int) -> tuple[Cut, int] | None:
    """How a call is cut for several devices: along the axis that is long enough for the most of
    them, and along which they read the least; None where each would read all there is."""
    found = registry.cut(problem)
    if found is None:
        return None
    most = sum(o.nbytes for o in problem.inputs)
    best, key = None, (1, 0, 0)
    for axis, (_, extent) in enumerate(found.axes):
        number = min(extent, parts)
        if number > 1:
            box = found.box(axis, 0, -(-extent // number))
            read = sum(o.nbytes for o in found.problem(box, HOST).inputs)
            if read < most and (number, -read, extent) > key:
                best, key = axis, (number, -read, extent)
    return None if best is None else (found, best)


def moved(problem: Problem) -> int:
    """Bytes that go to a device and back, of a problem of host arrays."""
    return sum(o.nbytes for o in (*problem.inputs, problem.output) if o.location == HOST)


def contended(candidate: Candidate, part: Problem, constants: Profile) -> Candidate:
    """The price of a method that moves ranges both ways while it computes, on all devices at once.

    Staged copies of all devices share the host's threads: both directions add up. Pinned memory
    moves both ways at once. A range is at most half an operand, so half of the shorter of copying
    and computing overlaps with the longer.
    """
    moves = [*((o, "upload") for o in part.inputs), (part.output, "download")]
    staged, by_way = 0.0, {"upload": 0.0, "download": 0.0}
    with contextlib.suppress(KeyError):  # links that are not known
        for operand, way in moves:
            seconds = 2 * constants.link(candidate.device, way, operand.memory)(operand.nbytes // 2)
            by_way[way] += seconds
            staged += 0.0 if operand.pinned else seconds
        both = max(staged, *by_way.values()), candidate.terms.get("compute", 0.0)
        more = max(both) + min(both) / 2 - (candidate.seconds or 0.0)
        return with_terms(candidate, {"upload": max(more, 0.0)})
    return candidate


def bounds(extent: int, number: int) -> list[tuple[int, int]]:
    """Equal ranges of 0 to ``extent``, which is no less than their number; none is empty.

    >>> bounds(10, 3), bounds(4096, 2)
    ([(0, 3), (3, 7), (7, 10)], [(0, 2048), (2048, 4096)])
    """
    step = next((s for s in _STEPS if extent >= s * _LEAST_STEPS * number), 1)
    cuts = [round(extent * i / number / step) * step for i in range(number)]
    return list(pairwise([*cuts, extent]))
