"""A call on host arrays shared by all devices of a kind: the range of each, and the price.

Each device moves its own range over its own bus while the others do the same, so the call takes as
long as the slowest of them, with links as fast as they are when all copy at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import HOST
from hetero.devices import at_once
from hetero.moving import passing
from hetero.pricing import pricing
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
    for kind, members in _together(devices, device).items() if problem.device is None else ():
        cut = line(problem, len(members))
        if cut is not None:
            asked = device is not None, not (device is method is None)
            group = _Group(kind, members, devices, constants, *asked)
            candidates += [
                group.candidate(problem, cut, row)
                for row in registry.lookup(problem.operation)
                if row.kind == kind and method in (None, row.method)
            ]
    # The upload that the next call pays for a result on the host.
    return [_with(c, pricing.upload_next(problem, constants)) for c in candidates]


def _together(devices: Devices, device: str | None) -> dict[str, list[str]]:
    """Kind -> its devices in use, for kinds with at least two; ``device`` may name one kind."""
    groups: dict[str, list[str]] = {}
    if len(devices) < 3 or not (device is None or device.endswith(":*")):
        return groups
    for name, info in devices.items():
        kind = info["kind"]
        wanted = kind != CPU and not info.get("is_host_cpu")
        if device is not None:
            wanted = f"{kind}:*" == device
        if wanted and not info.get("set_aside"):
            groups.setdefault(kind, []).append(name)
    return {kind: names for kind, names in groups.items() if len(names) > 1}


class _Group(NamedTuple):
    """Devices of a kind that share a call.

    Attributes
    ----------
    kind : str
    members : list of str
    devices : dict
        Device name -> description.
    constants : Profile
    asked, named : bool
        Whether the caller names them, and whether one or the other, them or the method.
    """

    kind: str
    members: list[str]
    devices: Devices
    constants: Profile
    asked: bool
    named: bool

    def candidate(self, problem: Problem, cut: Line, row: Implementation) -> Candidate:
        """All devices, each with its range, by one method; balanced where they differ.

        It takes as long as the slowest, or as all of them where they run one after another. To
        begin on all of them takes some time more than on one.
        """
        members = self.members[: cut.extent]
        way = Candidate(f"{self.kind}:*", row.method, None, {}, _TOO_LITTLE, row)
        little = moved(problem) < at_once.LEAST * len(members)
        if (little and not self.asked) or len(members) < 2:
            return way
        equal = len({self.devices[name].get("same_as", name) for name in members}) == 1
        shares = self._shares(cut, row, members, [1.0] * len(members))
        for _ in range(0 if equal else _ROUNDS - 1):
            lengths = [share.end - share.begin for share in shares]
            times = [share.plan.candidates[0].seconds for share in shares]
            if not all(times):
                break
            weights = [n / seconds for n, seconds in zip(lengths, times, strict=True)]
            shares = self._shares(cut, row, members, weights)
        chosen = [share.plan.candidates[0] for share in shares]
        reason = next((c.reason for c in chosen if c.reason is not None), None)
        if any(c.seconds is None for c in chosen):
            reason = reason if reason or self.asked else pricing.UNKNOWN
        if reason is not None:
            return way._replace(reason=reason)
        way = way._replace(reason=None, shares=shares)
        if any(c.seconds is None for c in chosen):
            return way
        way = way._replace(seconds=0.0)
        if min(moved(share.plan.problem) for share in shares) < at_once.LEAST:
            return _with(way, *(c.terms for c in chosen))
        begin = self.constants.dispatch(f"{self.kind}*{len(self.members)}", "host")
        way = _with(way, max(chosen, key=lambda c: c.seconds).terms, {"overhead": begin})
        return way._replace(links=pricing.ALL_AT_ONCE)

    def _shares(
        self, cut: Line, row: Implementation, members: list[str], weights: list[float]
    ) -> tuple[Share, ...]:
        """A share for each device, in proportion to the weights; equal devices are priced once."""
        known: dict[tuple[str, Problem], Candidate] = {}
        cuts = bounds(cut.extent, weights)
        problems = [cut.problem(*ends) for ends in cuts]
        at_the_same_time = min(map(moved, problems)) >= at_once.LEAST
        shares = []
        for name, ends, part in zip(members, cuts, problems, strict=True):
            key = self.devices[name].get("same_as", name), part
            if key not in known:
                passed = cut.read_whole if at_the_same_time else ()
                known[key] = self._priced(part, row, name, at_the_same_time, passed)
            plan = Plan(part, (known[key]._replace(device=name),), self.constants.title)
            shares.append(Share(cut.along, *ends, plan))
        return tuple(shares)

    def _priced(
        self,
        part: Problem,
        row: Implementation,
        name: str,
        at_the_same_time: bool,
        passed: Sequence[int],
    ) -> Candidate:
        """A range on one device, with what it loses to the others' copies, of arrays of which some,
        by number, may be passed on by the devices."""
        rows = registry.lookup(part.operation)  # as a single row may be another's
        same = next((i for i in rows if (i.kind, i.method) == (row.kind, row.method)), None)
        if same is None:
            reason = f"{part.operation} has no such method"
            return Candidate(name, row.method, None, {}, reason, row)
        constants = self.constants
        if at_the_same_time:
            constants = constants.at_once(f"{self.kind}*{len(self.members)}")
        # It is priced as itself, whether or not it equals another one.
        info = {key: value for key, value in self.devices[name].items() if key != "same_as"}
        given = part.inputs, passed, name, len(self.members), constants
        info["passed"] = passing.shares_of_uploads(*given)
        asked = self.asked, self.named
        candidate = pricing.candidate(part, same, name, info, constants, *asked)
        if row.blocks == registry.ALWAYS and at_the_same_time:
            candidate = _contended(candidate, part, name, info, constants)
        if part.output.is_c_contiguous():
            return candidate
        # The copy from a dense range to a result of the whole that has gaps.
        return _with(candidate, {"pack": constants.pack(part.output.nbytes)})


def _contended(
    candidate: Candidate, part: Problem, name: str, info: dict[str, Any], constants: Profile
) -> Candidate:
    """The price of a method that moves ranges both ways while it computes, on all devices at once.

    Staged copies of all devices share the host's threads: their times add up over both directions.
    Pinned memory needs no threads and moves both ways at once. A range is at most half an operand,
    so half of the shorter of copying and computing overlaps with the longer.
    """
    if candidate.seconds is None:
        return candidate
    compute = candidate.terms.get("compute", 0.0)
    staged, by_way = 0.0, {"upload": 0.0, "download": 0.0}
    try:
        moves = [*((o, "upload") for o in part.inputs), (part.output, "download")]
        for number, (operand, way) in enumerate(moves):
            seconds = 2 * constants.link(name, way, operand.memory)(operand.nbytes // 2)
            seconds *= info["passed"].get(number, (1, 1.0))[1]
            by_way[way] += seconds
            staged += 0.0 if operand.pinned else seconds
    except KeyError:
        return candidate
    copies = max(staged, *by_way.values())
    more = max(copies, compute) + min(copies, compute) / 2 - candidate.seconds
    return _with(candidate, {"upload": max(more, 0.0)})


def _with(candidate: Candidate, *more: dict[str, float]) -> Candidate:
    """A candidate with additional terms; unchanged where it has no price."""
    if candidate.seconds is None:
        return candidate
    terms = reduce(pricing.total, more, candidate.terms)
    return candidate._replace(terms=terms, seconds=sum(terms.values()))


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
