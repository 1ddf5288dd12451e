"""The price of each way to do a problem, by the constants of one profile; the smallest one wins.

A way is a method on a device, or on several of a kind together, of which each has a range of the
call (`shares`) or a part in a method of its own. Its price is a sum; this is White's listing 4.18
for any number of ways:

    moving operands there + what the host does to begin + compute + moving the result back

A result that stays is priced by where it is expected to be used next (`hetero.moving.results`).

A way is out where its method, or the device, has a reason against it. A reason that is `Unasked`
counts until the caller names the method, and only while something else can do the problem. One of
these is that there are no constants: such a way has no price. Methods of the plain library on the
CPU, for which nothing of ours is compiled, have conservative constants then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from hetero import registry
from hetero.arrays import HOST, Operand
from hetero.devices import at_once
from hetero.host.copying import staging
from hetero.pricing import places, shares
from hetero.pricing.places import UNKNOWN_THERE, Devices, groups
from hetero.pricing.plan import (
    ALL_AT_ONCE,
    CPU,
    Candidate,
    Plan,
    Terms,
    is_last,
    possible,
    rank,
    total,
    with_terms,
)
from hetero.profile import PAGEABLE, STAGED, Profile
from hetero.registry import Implementation, Unasked
from hetero.registry.problem import Problem

_LEAST_SAVED = 1e-4  # seconds; to look for copies, and to plan with them, takes as long
UPLOAD_NEXT = "upload next"  # of a result on the host that a device is expected to use next
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
    rows = every if method is None else [row for row in every if row.method == method]
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
    keepable = any(savings(able, problem.inputs, known=False))
    return Plan(problem, (*able, *others), constants.title, keepable=keepable)


def _ways(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str | None,
    rows: Sequence[Implementation],
    named: bool,
) -> list[Candidate]:
    """Candidates of methods, ``named`` by the caller or not, on each device and on all of a kind.

    Of a kind that the caller names, the first device does what they cannot do together.
    """
    asked = device is not None

    def on(there: Devices, rows: Sequence[Implementation]) -> list[Candidate]:
        found: list[Candidate] = []
        for name, info in there.items():
            of_kind = [row for row in rows if row.kind == info["kind"]]
            found += candidates(problem, of_kind, name, info, constants, asked, named)
        return found

    each = partial(candidates, asked=asked, named=asked or named)
    cut = _in_shares(problem, rows, devices, device, constants, each)
    if asked and possible(cut):
        return cut
    names = list(devices) if device is None else places.matching_devices(device, devices)
    kinds = {name: info for name, info in groups(devices).items() if device in (None, name)}
    shared = [row for row in rows if row.shared and row.shared(problem)] if kinds else []
    together = on(kinds, shared)
    if device is not None and together:
        names = kinds[device]["members"][:1]
        of_group = f"{kinds[device]['constants']}|{problem.operation}|"
        known = any(key.startswith(of_group) for key in constants.data["models"])
        done = {c.method for c in together if c.seconds is not None or not known or named}
        rows = [row for row in rows if row.method not in done]
    return on({name: devices[name] for name in names}, rows) + together + cut


def _in_shares(
    problem: Problem,
    rows: Sequence[Implementation],
    devices: Devices,
    device: str | None,
    constants: Profile,
    each: Callable[..., list[Candidate]],
) -> list[Candidate]:
    """All devices of each kind together, by each of the methods, where the call can be cut."""
    if problem.device is not None:
        return []
    found: list[Candidate] = []
    for kind, members in places.together(devices, device).items():
        group = shares.Group(kind, members, devices, constants, device is not None, each)
        found += group.candidates(problem, [row for row in rows if row.kind == kind])
    after = upload_next(problem, constants)  # which the next call pays
    return [with_terms(c, after) for c in found]


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
    unasked = reason if isinstance(reason, Unasked) else ""
    if candidate.seconds is None or reason in (registry.NOT_COMPILED, _HOME):
        return candidate._replace(unasked=unasked) if unasked else candidate
    return candidate._replace(unasked=unasked, seconds=None, terms={})


def candidates(
    problem: Problem,
    rows: Iterable[Implementation],
    name: str,
    info: dict[str, Any],
    constants: Profile,
    asked: bool,
    named: bool,
) -> list[Candidate]:
    """Ways to do a problem on one device, or on several together, with their prices: ``name`` and
    ``info`` are the device's, which the caller ``asked`` for, or not, as the methods were
    ``named``."""
    if asked:
        info = {**info, "asked": True}  # for methods that would leave it idle
    here = places.of_device(problem, name, info, asked)
    around: _Around | KeyError | None = None
    unknown = UNKNOWN_THERE if info.get("elsewhere") else UNKNOWN
    found = []
    for row in rows:
        reason = places.obstacle(problem, row, info, here)
        way = Candidate(name, row.method, None, {}, _unless(named, reason), row)
        found.append(way)
        is_out = way.reason is not None and way.reason is not registry.NOT_COMPILED
        if is_out or (name == CPU and problem.device_obstacle):
            continue
        if around is None:
            around = _around(problem, name, info, constants)
        why: str = unknown
        try:
            way = _priced(way, problem, info, constants, around)
        except (KeyError, ValueError) as error:  # a link, or other dimensions
            why = f"the profile's constants do not cover it: {error}"
            why = Unasked(why) if name == CPU and unknown is UNKNOWN else why
        if way.seconds is None and way.reason is None:
            way = way._replace(reason=_unless(named and (asked or name == CPU), why))
        if named and way.reason is not None and way.seconds is not None:
            way = way._replace(reason=_unless(named, way.reason))
        found[-1] = way
    return found


def _unless(named: bool, reason: str | None) -> str | None:
    """A reason, or what is left of it where the caller names the method."""
    return reason.otherwise if named and isinstance(reason, Unasked) else reason


class _Around(NamedTuple):
    """What a call on a device takes besides the method's own time, whichever that is."""

    before: Terms  # seconds of moves
    after: Terms
    begin: float  # seconds of the host, of a call on one device
    is_staged: bool


def _around(
    problem: Problem, name: str, info: dict[str, Any], constants: Profile
) -> _Around | KeyError:
    """An error where the links are not known."""
    try:
        if "constants" in info:  # several devices share the call: it is priced from the host
            return _Around(*moves(problem, CPU, constants), 0.0, False)
        before, after = moves(problem, name, constants)
        staged = bool(before or after) and is_staged(problem, name, constants)
        return _Around(before, after, dispatch(problem, name, constants), staged)
    except KeyError as error:
        return error


def _priced(
    way: Candidate,
    problem: Problem,
    info: dict[str, Any],
    constants: Profile,
    around: _Around | KeyError,
) -> Candidate:
    """A candidate with its price, if there are constants for it; KeyError and ValueError if they
    do not cover the problem."""
    name, row, group = way.device, way.implementation, info.get("constants")
    assert row is not None
    if row.price is not None:  # by those of other methods
        terms, made_of, reason = row.price(problem, name, info, constants)
        if terms is None:
            return way._replace(reason=reason or way.reason, made_of=made_of)
        if row.from_host:
            terms = {**terms, **upload_next(problem, constants)}
        way = way._replace(reason=reason or way.reason, made_of=made_of)
        return way._replace(seconds=sum(terms.values()), terms=terms)
    of_row = problem.operation, row.method, problem.dtype, problem.layout
    key = (group or name, "" if group else row.kind, *of_row)
    cost = constants.cost(*key)
    if cost is None and name == CPU and row.loops is None and not info.get("elsewhere"):
        cost = Profile.conservative().cost(CPU, CPU, *of_row)
    if cost is None:
        return way
    work = row.work(problem, info)
    overhead, compute = cost(work)
    if isinstance(around, KeyError):
        raise around
    before, after, begin, staged = around
    overhead = overhead * work.calls + begin
    links = STAGED if staged else ""
    if group and constants.moves_apart(*key):
        up, down = to_all(problem, info, constants)
        before, after, links = total(before, up), total(down, after), ALL_AT_ONCE
    terms = total({**before, "overhead": overhead, "compute": compute}, after)
    return way._replace(
        seconds=sum(terms.values()),
        terms=terms,
        threads=row.threads(info),
        links=links,
        doubtful=constants.is_doubtful(*key),
    )


# -- Moving operands to the device that computes, and the result from it ---------------------------


def moves(problem: Problem, name: str, constants: Profile) -> tuple[Terms, Terms]:
    """Seconds of moves for computing on a device: terms before and after computing."""
    here = HOST if name == CPU else name
    before: Terms = {}
    after: Terms = upload_next(problem, constants) if here == HOST else {}
    if here == HOST and problem.device is None:
        return before, after
    staged: list[tuple[int, float]] = []  # bytes, and seconds alone

    def move(terms: dict[str, float], operand: Operand, source: str, target: str) -> None:
        if source == target or target in operand.copies:
            return
        if source != HOST:  # device to device goes through the host
            memory = operand.memory if target == HOST else PAGEABLE
            term = constants.link(source, "download", memory)(operand.nbytes)
            terms["download"] = terms.get("download", 0.0) + term
        if target != HOST:
            is_packed = source == HOST and terms is before and not operand.is_dense()
            memory = PAGEABLE if is_packed or source != HOST else operand.memory
            term = constants.link(target, "upload", memory)(operand.nbytes)
            is_staged = operand.nbytes >= constants.least_staged(target, "upload")
            if is_staged and memory == PAGEABLE and terms is before:
                staged.append((operand.nbytes, term))
            if is_packed:
                packing = constants.pack(operand.nbytes)
                if is_staged:  # packed by the threads that copy
                    packing = max(packing / staging.usual_threads() - term, 0.0)
                terms["pack"] = terms.get("pack", 0.0) + packing
            terms["upload"] = terms.get("upload", 0.0) + term

    for operand in problem.inputs:
        move(before, operand, operand.location, here)
    if len(staged) > 1:  # at once: between one after the other and one copy of them all
        together = constants.link(here, "upload", PAGEABLE)(sum(n for n, _ in staged))
        before["upload"] += 0.5 * min(together - sum(seconds for _, seconds in staged), 0.0)
    if problem.next_device is None:
        move(after, problem.output, here, problem.output.location)
    return before, after


def is_staged(problem: Problem, name: str, constants: Profile) -> bool:
    """Whether some operand or the result goes through pinned buffers (`host.copying.staging`)."""
    here = HOST if name == CPU else name
    moves = [(operand, operand.location, here) for operand in problem.inputs]
    if problem.next_device is None:
        moves.append((problem.output, here, problem.output.location))
    return any(
        operand.nbytes >= constants.least_staged(*link)
        for operand, source, target in moves
        if source != target and target not in operand.copies and not operand.pinned
        for link in ((source, "download"), (target, "upload"))
        if link[0] != HOST
    )


def upload_next(problem: Problem, constants: Profile) -> Terms:
    """Seconds to upload a result on the host to the device that is expected to use it next; empty
    where that, or its link, is not known."""
    if problem.next_device is None:
        return {}
    try:
        link = constants.link(problem.next_device, "upload")
    except KeyError:
        return {}
    return {UPLOAD_NEXT: link(problem.output.nbytes)}


def to_all(problem: Problem, info: dict[str, Any], constants: Profile) -> tuple[Terms, Terms]:
    """Seconds to move shares of the operands from the host to several devices, which ``info``
    describes as `groups` does, and the result back; KeyError if the links are not known."""
    members = info["members"]

    def seconds(direction: str, operand: Operand) -> float:
        nbytes = operand.nbytes // len(members)
        if nbytes < at_once.LEAST:  # one after the other
            return len(members) * constants.link(members[0], direction)(nbytes)
        return constants.at_once(info["constants"]).link(members[0], direction)(nbytes)

    before = sum(seconds("upload", operand) for operand in problem.inputs)
    return {"upload": before}, {"download": seconds("download", problem.output)}


def by_way_of_host(problem: Problem, constants: Profile) -> dict[str, float]:
    """Seconds of "download" and "upload" around a computation of device operands from host copies;
    empty where nothing is moved, and where the links are not known."""
    if problem.device is None:
        return {}
    try:
        before, after = moves(problem, CPU, constants)
    except KeyError:
        return {}
    return {**before, **after}


def dispatch(problem: Problem, name: str, constants: Profile) -> float:
    """Seconds of the host's own work: staging for a device, or the way back from one."""
    if name != CPU:
        return constants.dispatch(name, "device" if problem.device else "host")
    there = problem.device
    return constants.dispatch(there, "detour") if there else 0.0


def savings(
    candidates: Sequence[Candidate], inputs: Sequence[Operand], known: bool = True
) -> Iterator[tuple[Candidate, float, float]]:
    """Of devices that compute alone, with operands moved as a whole, the fastest candidates that
    would save time if the inputs on the host were there, or those that are known not to change:
    the seconds saved, and those of the move. The first of ``candidates`` is the chosen one."""
    found = {CPU}
    for c in candidates:
        in_blocks = c.implementation is not None and c.implementation.blocks == registry.ALWAYS
        is_out = c.seconds is None or c.reason is not None or c.device[-1] == "*"
        if in_blocks or is_out or c.device in found:
            continue
        found.add(c.device)
        away = [o for o in inputs if c.device not in (o.location, *o.copies)]
        moved = [o.nbytes for o in away if (o.kept is not None if known else o.location == HOST)]
        part = sum(moved) / max(sum([o.nbytes for o in away]), 1)
        move = part * (c.terms.get("upload", 0.0) + c.terms.get("pack", 0.0))
        saved = candidates[0].seconds - (c.seconds - move)
        if move > 0.0 and saved > 0.0:
            yield c, saved, move


def copies_pay(plan: Plan) -> bool:
    """Whether copies of all inputs on one device would save more than looking for them takes."""
    found = savings(plan.candidates, plan.problem.inputs, known=False)
    return any(saved > _LEAST_SAVED for _, saved, _ in found)
