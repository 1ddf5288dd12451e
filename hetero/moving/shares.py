"""A call on host arrays shared by all devices of a kind: the range of each, and the price.

Each device moves its own range over its own bus while the others do the same, so the call takes as
long as the slowest of them, with links as fast as they are when all copy at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import HOST
from hetero.devices import at_once
from hetero.pricing import movement, pricing
from hetero.pricing.plan import CPU, Candidate, Plan, Share
from hetero.profile import Profile
from hetero.registry import Cut, Implementation
from hetero.registry.problem import Problem

Devices = dict[str, dict[str, Any]]
_ROUNDS = 3  # of balancing ranges between devices of different speed
_STEPS = (64, 16, 4)  # ranges begin at multiples of one of these, for tiles and wide loads
_LEAST_STEPS = 16  # of each range
_HOME = "leaves its result on the host"
_TOO_LITTLE = f"each device would move less than {at_once.LEAST >> 20} MiB"


class Line(NamedTuple):
    """Ranges along one axis of a cut.

    Attributes
    ----------
    cut : Cut
    axis : int
    """

    cut: Cut
    axis: int

    @property
    def along(self) -> str:
        """What the ranges consist of, such as "rows"."""
        return self.cut.axes[self.axis][0]

    @property
    def extent(self) -> int:
        """The number of these in the result."""
        return self.cut.axes[self.axis][1]

    @property
    def read_whole(self) -> list[int]:
        """Numbers of the arrays that every range reads whole."""
        return [i for i, axes in enumerate(self.cut.needs) if self.axis not in axes]

    def problem(self, begin: int, end: int) -> Problem:
        """The problem of a range of host arrays."""
        return self.cut.problem(self._box(begin, end), HOST)

    def arrays(self, begin: int, end: int, whole: tuple[Any, ...]) -> tuple[np.ndarray, ...]:
        """The arrays that a range reads: views where they can be."""
        parts = self.cut.arrays(self._box(begin, end), whole)
        return tuple([x[0] if len(x) == 1 else joined(x) for x in parts])

    def output(self, begin: int, end: int, out: np.ndarray) -> np.ndarray:
        """The view of the whole's result that a range fills."""
        return self.cut.output(self._box(begin, end), out)

    def _box(self, begin: int, end: int) -> tuple[tuple[int, int], ...]:
        box = [(0, extent) for _, extent in self.cut.axes]
        box[self.axis] = begin, end
        return tuple(box)


def joined(views: list[np.ndarray]) -> np.ndarray:
    """Rows one after the other, C-contiguous."""
    return np.ascontiguousarray(np.concatenate(views, axis=-2))


def line(problem: Problem, parts: int) -> Line | None:
    """How a call is cut for several devices: along the axis that is long enough for the most of
    them, and along which they read the least; None where each would read all there is."""
    cut = registry.cut(problem)
    if cut is None:
        return None
    most = sum(o.nbytes for o in problem.inputs)
    best, key = None, (1, 0, 0)
    for axis, (_, extent) in enumerate(cut.axes):
        one = Line(cut, axis)
        number = min(extent, parts)
        if number > 1:
            read = sum(o.nbytes for o in one.problem(0, -(-extent // number)).inputs)
            if read < most and (number, -read, extent) > key:
                best, key = one, (number, -read, extent)
    return best


def price(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str | None = None,
    method: str | None = None,
) -> Plan:
    """`pricing.price`, with all devices of a kind together among the candidates.

    Where ``device`` names a group, "cuda:*", and it can do the problem, the group is the only
    candidate.
    """
    shared = _candidates(problem, constants, devices, device, method)
    if device is not None and any(c.reason is None for c in shared):
        plan = _ranked(Plan(problem, (), constants.title), shared)
    else:
        plan = pricing.price(problem, constants, devices, device, method)
        plan = _ranked(plan, shared) if shared else plan
    return plan if problem.next_device is None else _staying(plan)


def _staying(plan: Plan) -> Plan:
    """The plan of a result that is to stay on a device, without candidates that download it.

    Each later call would upload such a result again, which the price of one call leaves out. Where
    all candidates download it, the plan's problem says that the result is on the host.
    """
    possible = [c for c in plan.candidates if c.reason is None and c.seconds is not None]
    if not any(c.device != CPU and not _comes_home(c) for c in possible):
        if plan.candidates and _comes_home(plan.candidates[0]):
            plan = replace(plan, problem=replace(plan.problem, next_device=None))
        return plan
    return _ranked(
        replace(plan, candidates=()),
        [c._replace(reason=_HOME) if _comes_home(c) else c for c in plan.candidates],
    )


def _comes_home(candidate: Candidate) -> bool:
    """Whether devices compute it and download the result to the host."""
    from_host = candidate.implementation is not None and candidate.implementation.from_host
    return candidate.reason is None and (bool(candidate.shares) or from_host)


def _ranked(plan: Plan, more: list[Candidate]) -> Plan:
    """The plan with more candidates, the cheapest first; without a price only where none has."""
    every = [*plan.candidates, *more]
    possible = [c for c in every if c.reason is None]
    priced = [c for c in possible if c.seconds is not None]
    if priced:
        possible = sorted(priced, key=lambda c: c.seconds)
    kept = {id(c) for c in possible}
    rest = [
        c if c.reason else c._replace(reason=pricing.UNKNOWN) for c in every if id(c) not in kept
    ]
    return replace(plan, candidates=(*possible, *rest))


def _candidates(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str | None,
    method: str | None,
) -> list[Candidate]:
    """A candidate for each kind with several devices in use, and each method that may be taken."""
    candidates: list[Candidate] = []
    for kind, members in _together(devices, device).items():
        if problem.device is not None:
            break
        cut = line(problem, len(members))
        if cut is None:
            continue
        together = _Together(kind, members, devices, constants, device is not None)
        for implementation in registry.lookup(problem.operation):
            if implementation.kind == kind and method in (None, implementation.method):
                candidates.append(together.candidate(problem, cut, implementation))
    return _later(candidates, problem, constants)


def _later(candidates: list[Candidate], problem: Problem, constants: Profile) -> list[Candidate]:
    """Add to each price the upload that the next call pays for a result on the host."""
    later = movement.upload_next(problem, constants)
    return [with_terms(c, later) for c in candidates] if later else candidates


def _together(devices: Devices, device: str | None) -> dict[str, list[str]]:
    """Kind -> its devices in use, for kinds with at least two; ``device`` may name one kind."""
    groups: dict[str, list[str]] = {}
    if len(devices) < 3 or not (device is None or device.endswith(":*")):
        return groups
    for name, info in devices.items():
        kind = info["kind"]
        if device is None:
            wanted = kind != CPU and not info.get("is_host_cpu")
        else:
            wanted = f"{kind}:*" == device
        if wanted and not info.get("set_aside"):
            groups.setdefault(kind, []).append(name)
    return {kind: names for kind, names in groups.items() if len(names) > 1}


class _Together:
    """Prices a call that several devices of a kind share."""

    def __init__(
        self,
        kind: str,
        members: list[str],
        devices: Devices,
        constants: Profile,
        asked_for: bool,
    ) -> None:
        self._kind, self._members, self._asked_for = kind, members, asked_for
        # Each is priced as itself, whether or not it equals another one.
        self._infos = {
            name: {key: value for key, value in devices[name].items() if key != "same_as"}
            for name in members
        }
        self._twin = {name: devices[name].get("same_as", name) for name in members}
        self._alone = constants
        group = f"{kind}*{len(members)}"
        self._at_once = constants.at_once(group)
        self._begin = constants.dispatch(group, "host")

    def candidate(self, problem: Problem, cut: Line, implementation: Implementation) -> Candidate:
        """All devices, each with its range, by one method; balanced where they differ."""
        name, method = f"{self._kind}:*", implementation.method
        members = self._members[: cut.extent]
        nbytes = sum(o.nbytes for o in (*problem.inputs, problem.output))
        little = nbytes < at_once.LEAST * len(members)
        if (little and not self._asked_for) or len(members) < 2:
            return Candidate(name, method, None, {}, _TOO_LITTLE, implementation)
        equal = len({self._twin[member] for member in members}) == 1
        weights = [1.0] * len(members)
        for _ in range(1 if equal else _ROUNDS):
            shares = self._shares(cut, implementation, members, weights)
            chosen = [share.plan.candidates[0] for share in shares]
            times = [c.seconds for c in chosen]
            if not all(times):
                break
            weights = [
                (share.end - share.begin) / seconds
                for share, seconds in zip(shares, times, strict=True)
            ]
        return _all(name, implementation, chosen, shares, self._asked_for, self._begin)

    def _shares(
        self, cut: Line, implementation: Implementation, members: list[str], weights: list[float]
    ) -> tuple[Share, ...]:
        """A share for each device, in proportion to the weights; equal devices are priced once."""
        known: dict[tuple[str, Problem], Candidate] = {}
        cuts = bounds(cut.extent, weights)
        problems = [cut.problem(begin, end) for begin, end in cuts]
        least = min(moved(p) for p in problems)
        constants = self._alone if least < at_once.LEAST else self._at_once
        shares = []
        for member, (begin, end), part in zip(members, cuts, problems, strict=True):
            key = self._twin[member], part
            if key not in known:
                known[key] = self._priced(part, implementation, member, constants)
            one = known[key]._replace(device=member)
            plan = Plan(part, (one,), constants.title)
            shares.append(Share(cut.along, begin, end, plan))
        return tuple(shares)

    def _priced(
        self, part: Problem, implementation: Implementation, member: str, constants: Profile
    ) -> Candidate:
        """A range on one device, with what it loses to the others' copies."""
        info = self._infos[member]
        if part.operation != implementation.operation:  # as a single row may be another's
            named = implementation.kind, implementation.method
            rows = registry.lookup(part.operation)
            same = next((i for i in rows if (i.kind, i.method) == named), None)
            if same is None:
                reason = f"{part.operation} has no such method"
                return Candidate(member, implementation.method, None, {}, reason, implementation)
            implementation = same
        row = part, implementation, member, info, constants, self._asked_for
        candidate = pricing.candidate(*row)
        if self._asked_for and candidate.seconds is None:
            candidate = pricing.unless(candidate, True)
        if implementation.blocks == registry.ALWAYS and constants is self._at_once:
            candidate = _contended(candidate, part, member, constants)
        out = part.output
        if candidate.seconds is None or out.is_c_contiguous():
            return candidate
        # The copy from a dense range to a result of the whole that has gaps.
        return with_terms(candidate, {"pack": constants.pack(out.nbytes)})


def _contended(candidate: Candidate, part: Problem, member: str, constants: Profile) -> Candidate:
    """The price of a method that moves blocks both ways while it computes, on all devices at once.

    Staged copies of all devices share the host's threads: their times add up over both directions.
    Pinned memory needs no threads and moves both ways at once. A block is at most half an operand,
    so half of the shorter of copying and computing overlaps with the longer.
    """
    moves = [(o, "upload") for o in part.inputs] + [(part.output, "download")]
    compute = candidate.terms.get("compute", 0.0)
    staged, by_way = 0.0, {"upload": 0.0, "download": 0.0}
    try:
        for operand, way in moves:
            link = constants.link(member, way, operand.memory)
            seconds = 2 * link(operand.nbytes // 2)
            by_way[way] += seconds
            staged += 0.0 if operand.pinned else seconds
    except KeyError:
        return candidate
    if candidate.seconds is None:
        return candidate
    copies = max(staged, *by_way.values())
    more = max(copies, compute) + min(copies, compute) / 2 - candidate.seconds
    return candidate if more <= 0 else with_terms(candidate, {"upload": more})


def _all(
    name: str,
    implementation: Implementation,
    chosen: list[Candidate],
    shares: tuple[Share, ...],
    asked_for: bool,
    begin: float,
) -> Candidate:
    """One candidate for all devices: the slowest, or the sum where they run one after another.

    Starting on all of them takes ``begin`` seconds longer than on one.
    """
    method = implementation.method
    reason = next((c.reason for c in chosen if c.reason is not None), None)
    unpriced = any(c.seconds is None for c in chosen)
    if reason is None and unpriced and not asked_for:
        reason = pricing.UNKNOWN
    if reason is not None or unpriced:
        candidate = Candidate(name, method, None, {}, reason, implementation)
        return candidate if reason is not None else candidate._replace(shares=shares)
    if min(moved(share.plan.problem) for share in shares) < at_once.LEAST:
        terms, links = {}, ""
        for one in chosen:
            terms = {k: terms.get(k, 0.0) + one.terms.get(k, 0.0) for k in terms | one.terms}
    else:
        links = pricing.ALL_AT_ONCE
        terms = max(chosen, key=lambda c: c.seconds).terms
    seconds = sum(terms.values())
    candidate = Candidate(name, method, seconds, terms, None, implementation, None, links, shares)
    return with_terms(candidate, {"overhead": begin}) if links and begin else candidate


def with_terms(candidate: Candidate, later: Mapping[str, float]) -> Candidate:
    """A candidate with additional terms; unchanged where it has no price."""
    if candidate.seconds is None:
        return candidate
    terms = dict(candidate.terms)
    for name, seconds in later.items():
        terms[name] = terms.get(name, 0.0) + seconds
    return candidate._replace(terms=terms, seconds=candidate.seconds + sum(later.values()))


def moved(problem: Problem) -> int:
    """Bytes that go to a device and back, of a problem of host arrays."""
    return sum(o.nbytes for o in (*problem.inputs, problem.output) if o.location == HOST)


def bounds(extent: int, weights: list[float]) -> list[tuple[int, int]]:
    """Ranges of 0 to ``extent`` in proportion to the weights; none is empty.

    Parameters
    ----------
    extent : int
        At least as many as there are weights.
    weights : list of float
        Greater than 0.

    Examples
    --------
    >>> bounds(10, [1.0, 1.0, 1.0])
    [(0, 3), (3, 7), (7, 10)]
    >>> bounds(4096, [1.0, 3.0])
    [(0, 1024), (1024, 4096)]
    """
    number, total = len(weights), sum(weights)
    step = next((s for s in _STEPS if extent >= s * _LEAST_STEPS * number), 1)
    cuts, reached = [0], 0.0
    for index, weight in enumerate(weights[:-1], 1):
        reached += weight
        cut = round(extent * reached / total / step) * step
        cuts.append(min(max(cut, cuts[-1] + 1), extent - number + index))
    return list(zip(cuts, [*cuts[1:], extent], strict=True))
