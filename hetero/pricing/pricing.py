"""The price of each way to do a problem, by the constants of one profile; the smallest one wins.

A way is a method on a device, or on several of a kind together, of which each has a range of the
call (`shares`) or a part in a method of its own. Its price is a sum; this is White's listing 4.18
for any number of ways:

    moving operands there + what the host does to begin + compute + moving the result back

A way is out where its method, or the device, has a reason against it. A reason that is `Unasked`
counts until the caller names the method, and only while something else can do the problem. One of
these is that there are no constants: such a way has no price. Methods of the plain library on the
CPU, for which nothing of ours is compiled, have conservative constants then.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from hetero import registry
from hetero.pricing import movement, places, shares
from hetero.pricing.places import UNKNOWN_THERE, Devices, groups
from hetero.pricing.plan import CPU, Candidate, Plan, is_last, possible, rank
from hetero.profile import STAGED, Profile
from hetero.registry import Implementation, Unasked
from hetero.registry.problem import Problem

_HOME = "leaves its result on the host"
UNKNOWN = Unasked("no constants in this profile; hetero.calibrate() measures them")


def price(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str | None = None,
    method: str | None = None,
) -> Plan:
    """Price every method of the problem's operation on every device, or where ``device`` and
    ``method`` force it.

    ``constants`` are of this machine or of any other; ``devices``, name -> description, are as
    `hetero.machine()` gives them, or `Profile.machine()`.
    """
    every = registry.lookup(problem.operation)
    places.check_method(method, every)
    rows = [row for row in every if method in (None, row.method)]
    ways = partial(_ways, problem, constants, devices)
    found = ways(device, rows, named=method is not None)
    if not found:
        places.refuse(problem, devices, device, method, every)
    if not possible(found):
        found = ways(device, rows, named=True)  # with what is out unless nothing else can
    if not possible(found) and places.is_rescued(problem, devices, device, method):
        done = [c.implementation for c in found]
        found += ways(CPU, [row for row in every if row not in done], named=True)
    if problem.next_device is not None:
        problem, found = _staying(problem, found)
    able = sorted(possible(found), key=rank)
    if not able and not (device is method is None):
        places.refuse(problem, devices, device, method, every, found)
    others = sorted((_without_price(c) for c in found if c.reason), key=is_last)
    keepable = any(movement.savings(able, problem.inputs, known=False))
    return Plan(problem, (*able, *others), constants.title, keepable=keepable)


def _ways(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str | None,
    rows: Iterable[Implementation],
    named: bool,
) -> list[Candidate]:
    """Candidates of methods, ``named`` by the caller or not, on each device and on all of a kind.

    Of a kind that the caller names, the first device does what they cannot do together.
    """
    asked, rows = device is not None, list(rows)

    def on(there: Devices, rows: list[Implementation]) -> list[Candidate]:
        return [
            candidate(problem, row, name, info, constants, asked, named)
            for name, info in there.items()
            for row in rows
            if row.kind == info["kind"]
        ]

    one = partial(candidate, asked=asked, named=asked or named)
    cut = shares.candidates(problem, rows, devices, device, constants, one)
    if asked and possible(cut):
        return cut
    names = list(devices) if device is None else places.matching_devices(device, devices)
    kinds = {name: info for name, info in groups(devices).items() if device in (None, name)}
    together = on(kinds, [row for row in rows if row.shared and row.shared(problem)])
    if device is not None and together:
        names = kinds[device]["members"][:1]
        of_group = f"{kinds[device]['constants']}|{problem.operation}|"
        known = any(key.startswith(of_group) for key in constants.data["models"])
        done = {c.method for c in together if c.seconds is not None or not known or named}
        rows = [row for row in rows if row.method not in done]
    return on({name: devices[name] for name in names}, rows) + together + cut


def _staying(problem: Problem, found: list[Candidate]) -> tuple[Problem, list[Candidate]]:
    """A problem with a result that is to stay on a device, without candidates that download it.

    Each later call would upload such a result again, which the price of one call leaves out. Where
    all devices download it, and one of them is the best, its place is the host.
    """

    def comes_home(c: Candidate) -> bool:
        return bool(c.shares) or (c.implementation is not None and c.implementation.from_host)

    priced = [c for c in possible(found) if c.seconds is not None]
    if any(c.device != CPU and not comes_home(c) for c in priced):
        return problem, [
            c._replace(reason=c.reason or (_HOME if comes_home(c) else None)) for c in found
        ]
    best = min(possible(found), key=rank, default=None)
    if best is not None and comes_home(best):
        problem = replace(problem, next_device=None)
    return problem, found


def _without_price(candidate: Candidate) -> Candidate:
    """A way that is out; what compiling would gain is of interest, and what a result costs that
    does not stay."""
    reason = candidate.reason
    way = candidate._replace(unasked=reason if isinstance(reason, Unasked) else "")
    priced = reason in (registry.NOT_COMPILED, _HOME)
    return way if priced else way._replace(seconds=None, terms={})


def candidate(
    problem: Problem,
    row: Implementation,
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked: bool,
    named: bool,
) -> Candidate:
    """One way to do a problem on one device, or on several together, with its price: ``name`` and
    ``info`` are the device's, which the caller ``asked`` for, or not, as the method was ``named``.
    """
    reason = places.obstacle(problem, row, name, info, asked)
    way = Candidate(name, row.method, None, {}, _unless(named, reason), row)
    if way.reason not in (None, registry.NOT_COMPILED) or (name == CPU and problem.device_obstacle):
        return way
    unknown: str = UNKNOWN_THERE if info.get("elsewhere") else UNKNOWN
    try:
        way = _priced(way, problem, info, constants, asked)
    except (KeyError, ValueError) as error:  # a link, or other dimensions
        unknown = f"the profile's constants do not cover it: {error}"
        unknown = Unasked(unknown) if name == CPU and not info.get("elsewhere") else unknown
    if way.seconds is None and way.reason is None:
        way = way._replace(reason=_unless(named and (asked or name == CPU), unknown))
    return way._replace(reason=_unless(named, way.reason)) if way.seconds is not None else way


def _unless(named: bool, reason: str | None) -> str | None:
    """A reason, or what is left of it where the caller names the method."""
    return reason.otherwise if named and isinstance(reason, Unasked) else reason


def _priced(
    way: Candidate, problem: Problem, info: dict[str, Any], constants: Profile, asked: bool
) -> Candidate:
    """A candidate with its price, if there are constants for it; KeyError and ValueError if they
    do not cover the problem."""
    name, row, group = way.device, way.implementation, info.get("constants")
    assert row is not None
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
        up, down = movement.to_all(problem, info, constants)
        before, after = movement.total(before, up), movement.total(down, after)
        links.append(movement.ALL_AT_ONCE)
    elif not group:
        overhead += movement.dispatch(problem, name, constants)
        if (before or after) and movement.is_staged(problem, name, constants):
            links.append(STAGED)
    terms = movement.total({**before, "overhead": overhead, "compute": compute}, after)
    return way._replace(
        seconds=sum(terms.values()),
        terms=terms,
        threads=row.threads(info),
        links=", ".join(links),
        doubtful=constants.is_doubtful(*key),
    )
