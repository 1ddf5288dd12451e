"""Every candidate of a problem priced by the constants of one profile, this machine's or another's.

The rule is White's listing 4.18, for any number of candidates: compute plus the movement that the
candidate needs, smallest sum wins.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from hetero.arrays import HOST
from hetero.errors import DeviceNotAvailable, MethodNotAvailable
from hetero.kernels.cpu import limits
from hetero.runtime import compiling, memory_limit, movement, registry, thread_counts
from hetero.runtime.blas_use import BESIDE_BLAS
from hetero.runtime.plan import CPU, Candidate, Plan
from hetero.runtime.problem import Problem
from hetero.runtime.profile import STAGED, Profile
from hetero.runtime.registry import Implementation

ALL_AT_ONCE = "all at once"
UNKNOWN = "no constants in this profile; hetero.calibrate() measures them"
UNKNOWN_THERE = "no constants in this profile"


def price(
    problem: Problem,
    constants: Profile,
    devices: dict[str, dict[str, Any]],
    device: str | None = None,
    method: str | None = None,
    beside: str = "",
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
    beside : str, optional
        What else goes on, as for `Profile.link`.
    """
    names = matching_devices(device, devices) if device is not None else list(devices)
    look = registry.considered if method is None else registry.lookup
    implementations = look(problem.operation)
    check_method(method, implementations)
    of_kind: dict[str, list[Implementation]] = {}
    for implementation in implementations:
        of_kind.setdefault(implementation.kind, []).append(implementation)
    blas = _blas_state(of_kind.get(CPU, ()), devices)
    shared = {name: info for name, info in groups(devices).items() if device in (None, name)}
    if device in shared and any(i.shared and i.shared(problem) for i in implementations):
        names = []
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
                and (name in devices or (implementation.shared and implementation.shared(problem)))
            ):
                row = problem, implementation, name, info, constants, device is not None
                if method is None and implementation.stands_in is not None:
                    serving.append(row)
                else:
                    candidates.append(candidate(*row, blas, beside))
    for row in serving:
        reason = row[3].get("set_aside")
        if reason is None and not serves_limit(row[1], row[3]):
            reason = compiling.not_needed(row[1], problem, candidates)
        candidates.append(
            candidate(*row, blas, beside)
            if reason is None
            else Candidate(row[2], row[1].method, None, {}, reason, row[1])
        )
    if method is not None and not candidates:
        kinds = {devices[name]["kind"] for name in names}
        raise MethodNotAvailable(
            f"method must be one of {_methods(i for i in implementations if i.kind in kinds)} "
            f"on {', '.join(names)}, got {method!r}"
        )
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
            candidate(problem, implementation, CPU, devices[CPU], constants, True, blas, beside)
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
    turns = False
    if any(c.seconds is not None for c in possible):
        # A candidate without constants is taken only where there is no other.
        candidates = [
            c._replace(reason=UNKNOWN) if c.reason is None and c.seconds is None else c
            for c in candidates
        ]
        possible = [c for c in candidates if c.reason is None]
        possible.sort(key=lambda c: c.seconds)
        turns = possible[0] is not min(possible, key=lambda c: c.otherwise or c.seconds)
    others = [c for c in candidates if c.reason is not None]
    candidates = (*possible, *others)
    keepable = _keepable(possible, problem)
    named = problem, candidates, constants.name
    return Plan(*named, blas=blas, beside=beside, turns=turns, keepable=keepable)


def _keepable(possible: list[Candidate], problem: Problem) -> bool:
    """Whether what must be moved from the host decides what is chosen, or costs that time.

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


def _blas_state(
    implementations: Iterable[Implementation], devices: dict[str, dict[str, Any]]
) -> limits.State | None:
    """What decides on the number of BLAS's threads, where one of these would run on them here."""
    if CPU not in devices or devices[CPU].get("elsewhere"):
        return None
    if all(thread_counts.pool(i) != limits.BLAS for i in implementations):
        return None
    return limits.state()


def check_method(method: str | None, implementations: Iterable[Implementation]) -> None:
    """Raise `MethodNotAvailable` for a method that none of these implementations has."""
    if method is not None and method not in {i.method for i in implementations}:
        raise MethodNotAvailable(
            f"method must be one of {_methods(implementations)}, got {method!r}"
        )


def _methods(implementations: Iterable[Implementation]) -> str:
    return ", ".join(map(repr, sorted({i.method for i in implementations})))


def matching_devices(device: str, devices: dict[str, dict[str, Any]]) -> list[str]:
    """The devices that a name such as "cuda" or "cuda:0" stands for, or `DeviceNotAvailable`."""
    if device in devices:
        return [device]
    kind = str(device).removesuffix(":*")
    matching = [name for name, info in devices.items() if info["kind"] == kind != CPU]
    if not matching:
        raise DeviceNotAvailable(
            f"device must be one of {', '.join(map(repr, devices))}, got {device!r} "
            "('hetero info' tells what is missing for others)"
        )
    return matching


def groups(devices: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """All equal devices of a kind together, "cuda:*", where there are several.

    A group's constants are kept under its kind and number, "cuda*2".
    """
    found: dict[str, dict[str, Any]] = {}
    if not any(["same_as" in info for info in devices.values()]):  # noqa: C419  of every new plan
        return found
    for name, info in devices.items():
        members = [n for n, i in devices.items() if n == name or i.get("same_as") == name]
        members = [n for n in members if not devices[n].get("set_aside")]
        if len(members) > 1 and f"{info['kind']}:*" not in found:
            found[f"{info['kind']}:*"] = {
                **info,
                "members": tuple(members),
                "constants": f"{info['kind']}*{len(members)}",
                "memory_bytes": sum(devices[n]["memory_bytes"] for n in members),
            }
            if (limit := info.get("memory_limit")) is not None:  # of each of them
                found[f"{info['kind']}:*"]["memory_limit"] = limit * len(members)
    return found


def candidate(
    problem: Problem,
    implementation: Implementation,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked_for: bool,
    blas: limits.State | None,
    beside: str,
) -> Candidate:
    """One way to do a problem on one device, or on several together, with its price.

    Parameters
    ----------
    problem, implementation
    name : str
        The device's.
    info : dict
        Its description.
    constants : Profile
    asked_for : bool
        Whether the caller names the device.
    blas : limits.State or None
        What decides on the number of BLAS's threads.
    beside : str
        As for `price`.
    """
    method = implementation.method
    reason = info.get("set_aside")
    if reason is None and not asked_for:
        if info.get("is_host_cpu"):
            reason = f"{name} is this machine's CPU again; name it with device= to use it"
        elif info.get("same_as") and problem.device != name:
            reason = f"the same as {info['same_as']}"
    if reason is None and name != CPU:
        reason = problem.device_obstacle or _elsewhere(problem, name)
        if reason is None and implementation.blocks != registry.ALWAYS:
            short = too_large(problem, name, info)
            reason = None if implementation.blocks and asked_for else short
    if reason is None:
        reason = implementation.excludes(problem, info)
    if reason is not None:
        return Candidate(name, method, None, {}, reason, implementation)
    if name == CPU and problem.device_obstacle:
        return Candidate(name, method, None, {}, None, implementation)
    if implementation.price is not None:
        return _of_others(problem, implementation, name, info, constants, asked_for, beside)
    group = info.get("constants")
    key = (
        group or name,
        "" if group else implementation.kind,
        problem.operation,
        method,
        problem.dtype,
        problem.layout,
    )
    cost = constants.cost(*key)
    terms: dict[str, float] | None = None
    elsewhere = info.get("elsewhere", False)
    unknown: str | None = UNKNOWN_THERE if elsewhere else UNKNOWN
    here = name == CPU and not elsewhere
    threads = thread_counts.all_of(implementation, info) if name == CPU else None
    if cost is None and here:
        cost = compiling.stand_in_cost(implementation, problem)
    if cost is not None:
        try:
            work = implementation.work(problem, info)
            overhead, compute = cost(work)
            overhead *= work.calls
            if threads is not None:
                threads = constants.threads(*key[2:], work) or threads
                if here and thread_counts.pool(implementation) == limits.BLAS:
                    threads = thread_counts.now(threads, blas)
                overhead, compute = overhead * threads.ratio, compute * threads.ratio
            # What several devices share goes by way of the host, and is priced from there on.
            before, after = movement.of(problem, CPU if group else name, constants, beside)
            if group and constants.moves_apart(*key):
                shares = movement.to_all(problem, info, constants)
                before, after = movement.total(before, shares[0]), movement.total(shares[1], after)
        except (KeyError, ValueError) as error:  # of other dimensions: ValueError
            unknown = f"the profile's constants do not cover it: {error}"
            asked_for = False
        else:
            overhead += 0.0 if group else _dispatch(problem, name, constants)
            terms = {**before, "overhead": overhead, "compute": compute}
            if here and (left := compiling.seconds_left(implementation, problem)):
                terms[compiling.TERM] = left
            terms = movement.total(terms, after) if after else terms
    if terms is None:
        asked_for |= implementation.rung is not None  # by its name
        reason = None if (name == CPU or asked_for) and not elsewhere else unknown
        return Candidate(name, method, None, {}, reason, implementation)
    seconds, otherwise = sum(terms.values()), None
    links = ALL_AT_ONCE if group and constants.moves_apart(*key) else ""
    if (before or after) and not group and constants.has_links(BESIDE_BLAS):
        moved = movement.of(problem, name, constants, "" if beside else BESIDE_BLAS)
        more = sum(sum(part.values()) for part in moved) - sum(
            sum(part.values()) for part in (before, after)
        )
        otherwise = seconds + more
        links = beside if more else ""
    if (before or after) and not group and movement.is_staged(problem, name, constants):
        links = ", ".join(filter(None, (links, STAGED)))
    return Candidate(name, method, seconds, terms, None, implementation, threads, links, otherwise)


def _of_others(
    problem: Problem,
    implementation: Implementation,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked_for: bool,
    beside: str,
) -> Candidate:
    """A candidate whose price follows from those of others."""
    assert implementation.price is not None

    def priced(beside: str) -> tuple[movement.Terms | None, str, str | None]:
        terms, made_of, reason = implementation.price(problem, name, info, constants, beside)
        if terms is not None and implementation.blocks == registry.ALWAYS:
            # Which leaves its result on the host.
            terms = {**terms, **movement.upload_next(problem, constants, beside)}
        return terms, made_of, reason

    terms, made_of, reason = priced(beside)
    seconds, otherwise, links, elsewhere = None, None, "", info.get("elsewhere", False)
    if terms is not None:
        seconds = sum(terms.values())
        if constants.has_links(BESIDE_BLAS):
            other, *_ = priced("" if beside else BESIDE_BLAS)
            otherwise = seconds if other is None else sum(other.values())
            links = beside if otherwise != seconds else ""
    elif reason is None and (elsewhere or not asked_for):
        reason = UNKNOWN_THERE if elsewhere else UNKNOWN
    return Candidate(
        name,
        implementation.method,
        seconds,
        terms or {},
        reason,
        implementation,
        links=links,
        otherwise=otherwise,
        made_of=made_of,
    )


def _dispatch(problem: Problem, name: str, constants: Profile) -> float:
    """Seconds of the host's own work: staging for a device, or the way back from one."""
    if name != CPU:
        return constants.dispatch(name, "device" if problem.device else "host")
    there = problem.device
    return constants.dispatch(there, "detour") if there else 0.0


def _elsewhere(problem: Problem, name: str) -> str | None:
    """Operands of another device are moved as dense blocks."""
    for operand in (*problem.inputs, problem.output):
        if operand.location not in (HOST, name) and not operand.is_c_contiguous():
            return f"an operand on {operand.location} is not contiguous"
    return None


def serves_limit(implementation: Implementation, info: dict[str, Any]) -> bool:
    """Whether a method does what others have no room for, on a device of which a call may take only
    so much: then it is considered, however little there is to do."""
    return implementation.blocks == registry.ALWAYS and "memory_limit" in info


def too_large(problem: Problem, name: str, info: dict[str, Any]) -> str | None:
    """Why a device has no room for a problem's operands, None where it has.

    Copies that are there already count by a limit of what a call may take.
    """
    needed, limited = 0, "memory_limit" in info
    for operand in (*problem.inputs, problem.output):
        if operand.location != name and (limited or name not in operand.copies):
            needed += operand.nbytes
    return memory_limit.too_much(needed, info)
