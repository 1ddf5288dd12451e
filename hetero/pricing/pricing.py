"""The price of each way to do a problem, by the constants of one profile; the smallest one wins.

A way is a method on a device, or on several of a kind together. Its price is a sum; this is White's
listing 4.18 for any number of ways:

    moving operands there + what the host does to begin + compute + moving the result back

A way is out where its method, or the device, has a reason against it. A reason that is `Unasked`
counts until the caller names the method, and only while something else can do the problem. One of
these is that there are no constants: such a way has no price. Methods of the plain library on the
CPU, for which nothing of ours is compiled, have conservative constants then.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

from hetero import registry, removed
from hetero.arrays import HOST
from hetero.errors import DeviceNotAvailable, MethodNotAvailable, one_of
from hetero.pricing import memory_limit, movement
from hetero.pricing.plan import AGAIN, CPU, Candidate, Plan
from hetero.profile import STAGED, Profile
from hetero.registry import BLAS, LOOPS, Implementation, Unasked
from hetero.registry.problem import Problem

ALL_AT_ONCE = "all at once"
UNKNOWN = Unasked("no constants in this profile; hetero.calibrate() measures them")
UNKNOWN_THERE = "no constants in this profile"
_THREADS = {BLAS: "blas_threads", LOOPS: "cores"}  # where a CPU's description has their number

Devices = dict[str, dict[str, Any]]


def price(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str | None = None,
    method: str | None = None,
) -> Plan:
    """Price every method of the problem's operation on every device.

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
    names = devices if device is None else matching_devices(device, devices)
    every = registry.lookup(problem.operation)
    check_method(method, every)
    rows = [row for row in every if method in (None, row.method)]
    ways = partial(_ways, problem, constants, asked=device is not None, named=method is not None)
    shared = {name: info for name, info in groups(devices).items() if device in (None, name)}
    by_several = [row for row in rows if row.shared and row.shared(problem)]
    together = ways(shared, by_several)
    if device is not None and together:  # the first of them does what they cannot do together
        names = shared[device]["members"][:1]
        of_group = f"{shared[device]['constants']}|{problem.operation}|"
        known = method is None and any(key.startswith(of_group) for key in constants.data["models"])
        done = {c.method for c in together if not known or c.seconds is not None}
        rows = [row for row in rows if row.method not in done]
    found = ways({name: devices[name] for name in names}, rows) + together
    if method is not None and not found:
        kinds, where = {devices[name]["kind"] for name in names}, ", ".join(names)
        check_method(method, [i for i in every if i.kind in kinds], f"method on {where}")
    if not _possible(found):  # what is out unless nothing else can
        ways = partial(ways, named=True)
        found = ways({name: devices[name] for name in names}, rows) + ways(shared, by_several)
    if not _possible(found) and CPU in devices and _is_rescued(problem, method, names, devices):
        on_cpu = [row for row in every if all(c.implementation is not row for c in found)]
        # A right result, if not where it was asked for.
        found += [unless(c, True) for c in ways({CPU: devices[CPU]}, on_cpu)]
    possible = _possible(found)
    if (device or method) and not possible and all(c.reason != UNKNOWN_THERE for c in found):
        reasons = "; ".join(f"{c.method} on {c.device}: {c.reason}" for c in found)
        raise MethodNotAvailable(f"{problem} cannot be done as asked: {reasons}")
    possible.sort(key=_rank)
    others = sorted((_without_price(c) for c in found if c.reason), key=_is_last)
    keepable = _keepable(possible, problem)
    return Plan(problem, (*possible, *others), constants.title, keepable=keepable)


def _ways(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    rows: Iterable[Implementation],
    asked: bool,
    named: bool,
) -> list[Candidate]:
    """Candidates of methods on the devices of their kind; ``asked``: the caller names a device;
    ``named``: the method."""
    found = [
        candidate(problem, row, name, info, constants, asked, named)
        for name, info in devices.items()
        for row in rows
        if row.kind == info["kind"]
    ]
    return [unless(c, asked) for c in found] if named else found


def _possible(found: Iterable[Candidate]) -> list[Candidate]:
    return [c for c in found if c.reason is None]


def unless(candidate: Candidate, asked: bool) -> Candidate:
    """A candidate without its reason, if that is `Unasked`."""
    without_price = candidate.seconds is None and not asked and candidate.device != CPU
    if without_price or not isinstance(candidate.reason, Unasked):
        return candidate
    return candidate._replace(reason=candidate.reason.otherwise)


def _is_rescued(
    problem: Problem, method: str | None, names: Iterable[str], devices: Devices
) -> bool:
    """Whether the CPU does what the devices that were asked for cannot do."""
    no_method = method is None or problem.device_obstacle is not None
    return no_method or all(devices[name].get("set_aside") for name in names)


def _rank(candidate: Candidate) -> tuple[bool, bool, float]:
    """The least is chosen; of ways without a price, what computes there alone comes first."""
    if candidate.seconds is None:
        row = candidate.implementation
        return True, row is not None and row.from_host, not candidate.device.endswith("*")
    return False, not candidate.leads, candidate.seconds


def _without_price(candidate: Candidate) -> Candidate:
    """A way that is out; what compiling would gain is of interest."""
    if candidate.reason == registry.NOT_COMPILED:
        return candidate
    return candidate._replace(seconds=None, terms={})


def _is_last(candidate: Candidate) -> bool:
    """Whether a way that is out is printed behind others: it is hardly ever in."""
    row = candidate.implementation
    return isinstance(candidate.reason, Unasked) or (row and row.blocks) == registry.ALWAYS


def candidate(
    problem: Problem,
    row: Implementation,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked: bool,
    named: bool = True,
) -> Candidate:
    """One way to do a problem on one device, or on several together, with its price.

    Parameters
    ----------
    problem : Problem
    row : Implementation
    name : str
        The device's.
    info : dict
        Its description.
    constants : Profile
    asked : bool
        Whether the caller names the device.
    named : bool
        Whether the method is wanted: else one that is `Unasked` and priced by others has no price.
    """
    reason = _obstacle(problem, row, name, info, asked)
    way = Candidate(name, row.method, None, {}, reason, row)
    if reason is not None and (not isinstance(reason, Unasked) or reason.otherwise):
        return way
    if name == CPU and problem.device_obstacle:
        return way
    if reason is not None and reason != registry.NOT_COMPILED and row.price and not named:
        return way
    elsewhere = info.get("elsewhere", False)
    unknown: str = UNKNOWN_THERE if elsewhere else UNKNOWN
    try:
        way = _priced(way, problem, row, info, constants, asked)
    except (KeyError, ValueError) as error:  # a link, or other dimensions
        covered = f"the profile's constants do not cover it: {error}"
        unknown = Unasked(covered) if name == CPU and not elsewhere else covered
    return way if way.seconds is not None or way.reason else way._replace(reason=unknown)


def _obstacle(
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


def _priced(
    way: Candidate,
    problem: Problem,
    row: Implementation,
    info: dict[str, Any],
    constants: Profile,
    asked: bool,
) -> Candidate:
    """A candidate with its price, if there are constants for it.

    Raises
    ------
    KeyError, ValueError
        If they do not cover the problem.
    """
    name, group = way.device, info.get("constants")
    if row.price is not None:  # by those of other methods
        terms, made_of, reason, leads = row.price(problem, name, info, constants)
        if terms is None:
            return way._replace(reason=reason or way.reason, made_of=made_of)
        if row.from_host:
            terms = {**terms, **movement.upload_next(problem, constants)}
        if leads and asked:
            reason = Unasked(f"begins on the CPU; name it with method={row.method!r} to use it")
        how = {"reason": reason or way.reason, "made_of": made_of, "leads": leads}
        return way._replace(seconds=sum(terms.values()), terms=terms, **how)
    of_row = problem.operation, row.method, problem.dtype, problem.layout
    key = (group or name, "" if group else row.kind, *of_row)
    cost = constants.cost(*key)
    if cost is None and name == CPU and row.loops is None and not info.get("elsewhere"):
        cost = Profile.conservative().cost(CPU, CPU, *of_row)
    if cost is None:
        return way
    work = row.work(problem, info)
    overhead, compute = cost(work)
    overhead *= work.calls
    # Calls that several devices share go through the host, and are priced from there.
    before, after = movement.of(problem, CPU if group else name, constants)
    links = []
    if group and constants.moves_apart(*key):
        shares = movement.to_all(problem, info, constants)
        before, after = movement.total(before, shares[0]), movement.total(shares[1], after)
        links.append(ALL_AT_ONCE)
    elif not group:
        overhead += _dispatch(problem, name, constants)
        if (before or after) and movement.is_staged(problem, name, constants):
            links.append(STAGED)
    terms = movement.total({**before, "overhead": overhead, "compute": compute}, after)
    pool = row.pool
    return way._replace(
        seconds=sum(terms.values()),
        terms=terms,
        threads=info.get(_THREADS[pool]) if pool else None,
        links=", ".join(links),
        doubtful=constants.is_doubtful(*key),
    )


def _dispatch(problem: Problem, name: str, constants: Profile) -> float:
    """Seconds of the host's own work: staging for a device, or the way back from one."""
    if name != CPU:
        return constants.dispatch(name, "device" if problem.device else "host")
    there = problem.device
    return constants.dispatch(there, "detour") if there else 0.0


def _elsewhere(problem: Problem, name: str) -> str | None:
    """Why operands of another device cannot be moved: only dense blocks are."""
    for operand in (*problem.inputs, problem.output):
        if operand.location not in (HOST, name) and not operand.is_c_contiguous():
            return f"an operand on {operand.location} is not contiguous"
    return None


def too_large(problem: Problem, name: str, info: dict[str, Any]) -> str | None:
    """Why a device has no room for a problem's operands, None where it has.

    With a memory limit, copies that are on the device already count as well.
    """
    needed, limited = 0, "memory_limit" in info
    for operand in (*problem.inputs, problem.output):
        if operand.location != name and (limited or name not in operand.copies):
            needed += operand.nbytes
    return memory_limit.too_much(needed, info)


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
