"""The price of each way to do a problem, by the constants of one profile; the smallest one wins.

A way is a method on a device, or on several of a kind together, of which each has a range of the
call or a part in a method of its own. Its price is a sum; this is White's listing 4.18
for any number of ways:

    moving operands there + what the host does to begin + compute + moving the result back

A result that stays is priced by where it is expected to be used next (`hetero.use`).

A way is out where its method, or the device, has a reason against it. A reason that is `Unasked`
counts until the caller names the method, and only while something else can do the problem. One of
these is that there are no constants: such a way has no price. Methods of the plain library on the
CPU, for which nothing of ours is compiled, have conservative constants then.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from hetero import registry
from hetero.arrays import HOST, Operand
from hetero.devices import peers
from hetero.pricing import places
from hetero.pricing.places import UNKNOWN_THERE, Devices, Info, groups, moves, upload_next
from hetero.pricing.plan import (
    ALL_AT_ONCE,
    CPU,
    Candidate,
    Plan,
    Share,
    Terms,
    is_last,
    possible,
    rank,
    total,
    with_terms,
)
from hetero.profile import STAGED, Profile
from hetero.registry import Cut, Implementation, Problem, Unasked

_LEAST_SAVED = 1e-4  # seconds; to look for copies, and to plan with them, takes as long
_HOME = "leaves its result on the host"
UNKNOWN = Unasked("no constants in this profile; hetero.calibrate() measures them")
_TOO_LITTLE = f"each device would move less than {peers.LEAST >> 20} MiB"


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
    ways = Ways(problem, constants, devices, device, method is not None)
    found = ways.by(rows)
    if not found:
        places.refuse(problem, devices, device, method, every)
    if not possible(found):
        ways = ways._replace(named=True)  # with what is out unless nothing else can
        found = ways.by(rows)
    if not possible(found) and places.is_rescued(problem, devices, device, method):
        done = [c.implementation for c in found]
        found += ways._replace(device=CPU).by([row for row in every if row not in done])
    if problem.next_device is not None:
        problem, found = _staying(problem, found)
    able = sorted(possible(found), key=rank)
    if not able and not (device is method is None):
        places.refuse(problem, devices, device, method, every, found)
    others = [
        c._replace(unasked=c.reason) if isinstance(c.reason, Unasked) else c
        for c in found
        if c.reason
    ]
    keepable = any(savings(able, problem.inputs, known=False))
    return Plan(problem, (*able, *sorted(others, key=is_last)), constants.title, keepable=keepable)


def _staying(problem: Problem, found: list[Candidate]) -> tuple[Problem, list[Candidate]]:
    """A problem with a result that is to stay on a device, without candidates that download it.

    Each later call would upload such a result again, which the price of one call leaves out. Where
    all devices download it, and one of them is the best, its place is the host.
    """

    def comes_home(c: Candidate) -> bool:
        return bool(c.shares) or (c.implementation is not None and c.implementation.from_host)

    able = possible(found)
    if any(c.seconds is not None and c.device != CPU and not comes_home(c) for c in able):
        out = [c for c in able if comes_home(c)]
        return problem, [c._replace(reason=_HOME) if c in out else c for c in found]
    if able and comes_home(min(able, key=rank)):
        problem = replace(problem, next_device=None)
    return problem, found


_Around = tuple[Terms, Terms, float, str]


class Ways(NamedTuple):
    """What is priced: ways to do a problem by one machine's constants.

    ``device`` is the one that the caller asked for, or None; ``named`` says whether methods that
    are not taken unasked are taken.
    """

    problem: Problem
    constants: Profile
    devices: Devices
    device: str | None
    named: bool

    def by(self, rows: Sequence[Implementation]) -> list[Candidate]:
        """Candidates of methods, on each device and on all of a kind.

        Of a kind that the caller names, the first device does what they cannot do together.
        """
        problem, devices, device = self.problem, self.devices, self.device
        ranged: list[Candidate] = []
        if problem.device is None:
            for kind, members in places.together(devices, device).items():
                if (found := places.cut(problem, len(members))) is not None:
                    own = [row for row in rows if row.kind == kind]
                    ranged += [_in_ranges(self, kind, members, row, *found) for row in own]
            after = upload_next(problem, self.constants)  # which the next call pays
            ranged = [with_terms(c, after) for c in ranged]
            if device is not None and possible(ranged):
                return ranged
        names = list(devices) if device is None else places.matching_devices(device, devices)
        kinds = {name: info for name, info in groups(devices).items() if device in (None, name)}
        shared = [row for row in rows if row.shared and row.shared(problem)] if kinds else []
        together = self._on_each(kinds, shared)
        if device is not None and together:
            names = kinds[device]["members"][:1]
            done = [c for c in together if c.seconds is not None] or together
            rows = [row for row in rows if row.method not in {c.method for c in done}]
        return self._on_each({name: devices[name] for name in names}, rows) + together + ranged

    def _on_each(self, there: Devices, rows: Sequence[Implementation]) -> list[Candidate]:
        found: list[Candidate] = []
        for name, info in there.items():
            found += self.on(name, info, [row for row in rows if row.kind == info["kind"]])
        return found

    def on(self, name: str, info: Info, rows: Iterable[Implementation]) -> list[Candidate]:
        """Candidates of methods on one device, or on several together, with their prices."""
        problem, asked = self.problem, self.device is not None
        if asked:
            info = {**info, "asked": True}  # for methods that would leave it idle
        here = places.of_device(problem, name, info, asked)
        around: list[_Around] = []  # once it is needed, the same for all methods
        unknown: str = UNKNOWN_THERE if info.get("elsewhere") else UNKNOWN
        found = []
        for row in rows:
            reason = _unless(self.named, places.obstacle(problem, row, info, here))
            way, why = Candidate(name, row.method, None, {}, reason, row), unknown
            is_out = reason is not None and reason is not registry.NOT_COMPILED
            if not is_out and not (name == CPU and problem.device_obstacle):
                try:
                    way = self._priced(way, info, around)
                except (KeyError, ValueError) as error:  # a link, or other dimensions
                    why = f"the profile's constants do not cover it: {error}"
                    why = Unasked(why) if name == CPU and unknown is UNKNOWN else why
                if way.seconds is None and way.reason is None:
                    lifted = self.named and (asked or name == CPU)
                    way = way._replace(reason=_unless(lifted, why))
            found.append(way)
        return found

    def _around(self, name: str, info: Info) -> _Around:
        """What a call on a device takes besides the method's own time, whichever that is: seconds
        of moves before and after, those of the host, and the kind of the links. KeyError where
        links are not known."""
        problem, constants, there = self.problem, self.constants, self.problem.device
        if "constants" in info:  # several devices share the call: it is priced from the host
            return *moves(problem, CPU, constants)[:2], 0.0, ""
        before, after, is_staged = moves(problem, name, constants)
        if name != CPU:
            begin = constants.dispatch(name, "device" if there else "host")
        else:
            begin = constants.dispatch(there, "detour") if there else 0.0
        return before, after, begin, STAGED if is_staged else ""

    def _priced(self, way: Candidate, info: Info, around: list[_Around]) -> Candidate:
        """A candidate with its price, if there are constants for it; KeyError and ValueError if
        they do not cover the problem."""
        problem, constants, row = self.problem, self.constants, way.implementation
        name, group = way.device, info.get("constants")
        if row.price is not None:  # by those of other methods
            terms, made_of, reason = row.price(problem, name, info, constants)
            reason = _unless(self.named, reason or way.reason)
            if terms is None or (reason is not None and reason is not registry.NOT_COMPILED):
                return way._replace(reason=reason, made_of=made_of)
            if row.from_host:
                terms = {**terms, **upload_next(problem, constants)}
            seconds = sum(terms.values())
            return way._replace(reason=reason, made_of=made_of, seconds=seconds, terms=terms)
        of_row = problem.operation, row.method, problem.dtype, problem.layout
        key = (group or name, "" if group else row.kind, *of_row)
        cost = constants.cost(*key)
        if cost is None and name == CPU and row.loops is None and not info.get("elsewhere"):
            cost = Profile.conservative().cost(CPU, CPU, *of_row)
        if cost is None:
            return way
        work = row.work(problem, info)
        overhead, compute = cost(work)
        if not around:
            around.append(self._around(name, info))
        before, after, begin, links = around[0]
        overhead = overhead * work.calls + begin
        if group and constants.moves_apart(*key):
            up, down = places.to_all(problem, info, constants)
            before, after, links = total(before, up), total(down, after), ALL_AT_ONCE
        terms = total({**before, "overhead": overhead, "compute": compute}, after)
        doubtful, threads = constants.is_doubtful(*key), row.threads(info)
        made = name, row.method, sum(terms.values()), terms, way.reason, row, threads, links
        return Candidate(*made, doubtful=doubtful)


def _unless(named: bool, reason: str | None) -> str | None:
    """A reason, or what is left of it where the caller names the method."""
    return reason.otherwise if named and isinstance(reason, Unasked) else reason


# -- All devices of a kind, each with a range ------------------------------------------------------


def _in_ranges(
    ways: Ways, kind: str, members: list[str], row: Implementation, whole: Cut, axis: int
) -> Candidate:
    """All devices of a kind, each with an equal range, by one method.

    It takes as long as the slowest. To begin on all of them takes some time more than on one.
    """
    group, constants, devices = f"{kind}*{len(members)}", ways.constants, ways.devices
    along, extent = whole.axes[axis]
    names = members[:extent]
    way = Candidate(f"{kind}:*", row.method, None, {}, _TOO_LITTLE, row)
    if places.moved(ways.problem) < peers.LEAST * len(names) and ways.device is None:
        return way
    known: dict[tuple[str, Problem], Candidate] = {}  # equal devices are priced once
    shares = []
    for name, ends in zip(names, places.bounds(extent, len(names)), strict=True):
        part = whole.problem(whole.box(axis, *ends), HOST)
        key = devices[name].get("same_as", name), part
        if key not in known:
            beside = ways._replace(problem=part, constants=constants.at_once(group))
            known[key] = _beside(beside, row, name)
        plan = Plan(part, (known[key]._replace(device=name),), constants.title)
        shares.append(Share(along, *ends, plan))
    chosen = [share.plan.candidates[0] for share in shares]
    reason = next((c.reason for c in chosen if c.reason), None)
    if reason is not None or any(c.seconds is None for c in chosen):
        return way._replace(reason=reason, shares=() if reason else tuple(shares))
    way = way._replace(reason=None, shares=tuple(shares), seconds=0.0, links=ALL_AT_ONCE)
    begin = {"overhead": constants.dispatch(group, "host")}
    return with_terms(way, max(chosen, key=lambda c: c.seconds).terms, begin)


def _beside(ways: Ways, row: Implementation, name: str) -> Candidate:
    """A range on one of several devices, which do theirs at the same time."""
    part, constants, rows = ways.problem, ways.constants, registry.lookup(ways.problem.operation)
    same = [i for i in rows if (i.kind, i.method) == (row.kind, row.method)]
    if not same:  # a single row may be another operation's
        return Candidate(name, row.method, None, {}, f"no {part.operation} has it", row)
    # It is priced as itself, whether or not it equals another one.
    info = {key: value for key, value in ways.devices[name].items() if key != "same_as"}
    named = ways.named or ways.device is not None
    (candidate,) = ways._replace(named=named).on(name, info, same)
    if row.blocks == registry.ALWAYS:
        candidate = places.contended(candidate, part, constants)
    # The copy from a dense range to a result of the whole that has gaps.
    gaps = not part.output.is_c_contiguous()
    return with_terms(candidate, {"pack": constants.pack(part.output.nbytes)} if gaps else {})


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
