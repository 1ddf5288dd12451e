"""Every candidate of a problem priced by the constants of one profile, this machine's or another's.

The rule is White's listing 4.18, for any number of candidates: compute plus the movement that the
candidate needs, smallest sum wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetero import registry, removed
from hetero.arrays import HOST
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, one_of
from hetero.pricing import compiling
from hetero.pricing.candidate_pricing import UNKNOWN, UNKNOWN_THERE, candidate, serves_limit
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.profile import Profile
from hetero.registry import Implementation
from hetero.registry.problem import Problem


def _priced_together(
    problem: Problem,
    implementations: Iterable[Implementation],
    shared: dict[str, dict[str, Any]],
    constants: Profile,
) -> set[int] | None:
    """Ids of what the profile prices on several devices: others may be priced on one of them.

    None where it knows nothing of these methods and this dtype on several, in any layout.
    """
    known, priced = False, set()
    for info in shared.values():
        for i in implementations:
            key = info["constants"], problem.operation, i.method, problem.dtype
            known |= any(
                model.startswith("|".join((*key, ""))) for model in constants.data["models"]
            )
            if constants.cost(key[0], "", *key[1:], problem.layout) is not None:
                priced.add(id(i))
    return priced if known else None


def price(
    problem: Problem,
    constants: Profile,
    devices: dict[str, dict[str, Any]],
    device: str | None = None,
    method: str | None = None,
) -> Plan:
    """Price every implementation of the problem's operation on every device.

    Parameters
    ----------
    problem : Problem
    constants : Profile
        Of this machine or of any other.
    devices : dict
        Device name -> description, as `hetero.machine()` gives it, or `Profile.machine()`.
    device, method : str, optional
        Forced placement.
    """
    names = matching_devices(device, devices) if device is not None else list(devices)
    implementations = registry.lookup(problem.operation)
    check_method(method, implementations)
    of_kind: dict[str, list[Implementation]] = {}
    for implementation in implementations:
        of_kind.setdefault(implementation.kind, []).append(implementation)
    shared = {name: info for name, info in groups(devices).items() if device in (None, name)}
    together = {
        id(i) for i in implementations if device in shared and i.shared and i.shared(problem)
    }
    if method is None and together:
        priced = _priced_together(problem, implementations, shared, constants)
        together &= together if priced is None else priced
    if together:  # what several devices cannot do together is done by the first of them
        names = [*shared[device]["members"][:1]]
    candidates, serving = [], []
    for name, info in [*((name, devices[name]) for name in names), *shared.items()]:
        for implementation in of_kind.get(info["kind"], ()):
            if (
                (method is None or implementation.method == method)
                and not (
                    device is method is None
                    and implementation.stands_in
                    and info.get("is_host_cpu")
                )
                and (
                    id(implementation) not in together
                    if name in devices
                    else implementation.shared and implementation.shared(problem)
                )
            ):
                row = problem, implementation, name, info, constants, device is not None
                if method is None and implementation.stands_in is not None:
                    serving.append(row)
                else:
                    candidates.append(candidate(*row))
    if method is None:
        candidates = [
            c._replace(reason=why) if (why := c.unasked or _not_there(c, device)) else c
            for c in candidates
        ]
    for row in serving:
        reason = row[3].get("set_aside")
        if reason is None and not serves_limit(row[1], row[3]):
            reason = compiling.not_needed(row[1], problem, candidates, devices)
        candidates.append(
            candidate(*row)
            if reason is None
            else Candidate(row[2], row[1].method, None, {}, reason, row[1])
        )
    if method is None:
        candidates = compiling.without(problem, candidates, devices)
    if method is not None and not candidates:
        kinds, where = {devices[name]["kind"] for name in names}, ", ".join(names)
        if there := [i for i in implementations if i.kind in kinds]:
            check_method(method, there, f"method on {where}")
        raise MethodNotAvailable(f"{problem.operation} has no method on {where}, got {method!r}")
    possible = [c for c in candidates if c.reason is None]
    if (
        not possible
        and CPU in devices
        and (
            method is None
            or problem.device_obstacle
            or all(devices[name].get("set_aside") for name in names)
        )
    ):  # a right result, if not where it was asked for
        candidates += [
            candidate(problem, implementation, CPU, devices[CPU], constants, True)
            for implementation in implementations
            if implementation.kind == CPU
            and implementation.run is not None
            and all(c.implementation is not implementation for c in candidates)
        ]
        possible = [c for c in candidates if c.reason is None]
    there = any(c.reason == UNKNOWN_THERE for c in candidates)
    if (device or method) and not possible and not there:
        reasons = "; ".join(f"{c.method} on {c.device}: {c.reason}" for c in candidates)
        raise MethodNotAvailable(
            f"{problem} cannot be done as asked: "
            + (reasons or f"there is no {problem.operation} on {', '.join(names)}")
        )
    short = {
        c.method: why
        for c in possible
        if c.implementation.falls_short is not None
        and (why := c.implementation.falls_short(problem)) is not None
    }
    if short and any(c.method not in short for c in possible):
        candidates = [
            c._replace(reason=short.get(c.method)) if c.reason is None else c for c in candidates
        ]
        possible = [c for c in candidates if c.reason is None]
    if any(c.seconds is not None for c in possible):
        # A candidate without constants is taken only where there is no other.
        candidates = [
            c._replace(reason=UNKNOWN) if c.reason is None and c.seconds is None else c
            for c in candidates
        ]
        possible = [c for c in candidates if c.reason is None]
        possible.sort(key=lambda c: (not c.leads, c.seconds))
    else:  # what computes there alone comes first
        possible.sort(key=lambda c: c.implementation.from_host)
    others = [c for c in candidates if c.reason is not None]
    candidates = (*possible, *others)
    keepable = _keepable(possible, problem)
    named = problem, candidates, constants.title
    return Plan(*named, keepable=keepable)


def _not_there(candidate: Candidate, device: str | None) -> str:
    """Why a method that leads is none for a device that is named; "" where it may be."""
    if device is None or not candidate.leads:
        return ""
    return f"begins on the CPU; name it with method={candidate.method!r} to use it"


def _keepable(possible: list[Candidate], problem: Problem) -> bool:
    """Whether uploads decide the choice, or are part of its price.

    ``possible`` are the candidates that can run, the chosen one first.
    """
    if not possible or possible[0].seconds is None:
        return False
    if all(operand.location != HOST for operand in problem.inputs):
        return False
    best = possible[0].seconds
    return any(
        c.seconds - c.terms.get("upload", 0.0) - c.terms.get("pack", 0.0) < best
        for c in possible
        if c.device != CPU and "upload" in c.terms
    )


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
