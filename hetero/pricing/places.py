"""What names stand for, and why a method cannot run on a device, or nowhere."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetero import registry, removed
from hetero.arrays import HOST
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, one_of
from hetero.pricing import memory_limit
from hetero.pricing.plan import AGAIN, CPU, Candidate
from hetero.profile import Profile
from hetero.registry import Implementation, Unasked
from hetero.registry.problem import Problem

UNKNOWN_THERE = "no constants in this profile"
Devices = dict[str, dict[str, Any]]


def check_method(
    method: str | None, implementations: Iterable[Implementation], what: str = "method"
) -> None:
    """Raise `MethodNotAvailable` for a method that none of these implementations has."""
    implementations = list(implementations)
    if method is not None and method not in {i.method for i in implementations}:
        for operation in {i.operation for i in implementations}:
            if gone := removed.method(operation, method):
                raise MethodNotAvailable(gone)
            if method in removed.RUNGS:
                timed = f"`hetero ladder {registry.operation(operation).function}` times it"
                raise MethodNotAvailable(removed.TEXT.format(f"method={method!r}", timed))
        raise MethodNotAvailable(one_of(what, sorted({i.method for i in implementations}), method))


def matching_devices(device: str, devices: dict[str, dict[str, Any]]) -> list[str]:
    """The devices that a name such as "cuda" or "cuda:0" stands for, or `DeviceNotAvailable`."""
    if device in devices:
        return [device]
    others = {name: info["kind"] for name, info in devices.items() if name != CPU}
    asked = str(device).removesuffix(":*")
    matching = [name for name, kind in others.items() if kind == asked != CPU]
    if not matching:
        if str(device).startswith(f"{CPU}+"):
            raise DeviceNotAvailable(removed.TEXT.format(f"device={device!r}", removed.SHARED))
        every = "".join(f"; '{kind}:*' is all of a kind" for kind in [*others.values()][:1])
        raise DeviceNotAvailable(
            f"{one_of('device', devices, device)} "
            f"('hetero info' tells what is missing for others{every})"
        )
    return matching


def groups(devices: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All equal devices of a kind together, "cuda:*", where there are several.

    A group's constants are kept under its kind and number, "cuda*2".
    """
    by_kind: dict[str, dict[str, Any]] = {}
    if not any(["same_as" in info for info in devices.values()]):  # noqa: C419  of every new plan
        return by_kind
    for name, info in devices.items():
        members = [n for n, i in devices.items() if n == name or i.get("same_as") == name]
        members = [n for n in members if not devices[n].get("set_aside")]
        if len(members) > 1 and f"{info['kind']}:*" not in by_kind:
            by_kind[f"{info['kind']}:*"] = {
                **info,
                "members": tuple(members),
                "constants": f"{info['kind']}*{len(members)}",
                "memory_bytes": sum(devices[n]["memory_bytes"] for n in members),
            }
            if (limit := info.get("memory_limit")) is not None:  # of each of them
                by_kind[f"{info['kind']}:*"]["memory_limit"] = limit * len(members)
    return by_kind


def obstacle(
    problem: Problem, row: Implementation, name: str, info: dict[str, Any], asked: bool
) -> str | None:
    """Why a way is none, None where it is one."""
    reason, short = info.get("set_aside"), None
    if reason is None and not asked:
        if info.get("is_host_cpu"):
            reason = f"{name} {AGAIN}; name it with device= to use it"
        elif info.get("same_as") and problem.device != name:
            reason = f"the same as {info['same_as']}"
    if reason is None and name != CPU:
        reason = problem.device_obstacle or _elsewhere(problem, name)
        if row.blocks != registry.ALWAYS:
            short = too_large(problem, name, info)
        if short is not None and row.blocks == registry.WHEN_SHORT:
            short = Unasked(short)
        elif reason is None:
            reason = short
    reason = row.excludes(problem, info) if reason is None else reason
    return reason or short


def _elsewhere(problem: Problem, name: str) -> str | None:
    """Why operands of another device cannot be moved: only dense blocks are."""
    for operand in (*problem.inputs, problem.output):
        if operand.location not in (HOST, name) and not operand.is_c_contiguous():
            return f"an operand on {operand.location} is not contiguous"
    return None


def has_constants(constants: Profile, device: str, operation: str) -> bool:
    """Whether a profile has models of an operation on a device, or on several together."""
    return any(key.startswith(f"{device}|{operation}|") for key in constants.data["models"])


def too_large(problem: Problem, name: str, info: dict[str, Any]) -> str | None:
    """Why a device has no room for a problem's operands, None where it has.

    With a memory limit, copies that are on the device already count as well.
    """
    needed, limited = 0, "memory_limit" in info
    for operand in (*problem.inputs, problem.output):
        if operand.location != name and (limited or name not in operand.copies):
            needed += operand.nbytes
    return memory_limit.too_much(needed, info)


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
