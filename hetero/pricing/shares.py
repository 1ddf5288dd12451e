"""A call on host arrays that all devices of a kind share: the range of each, and the price.

Each device moves its own range over its own bus while the others do the same, so the call takes as
long as the slowest of them, with links as fast as they are when all copy at once. A range is a
problem, and is priced as any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from itertools import accumulate
from typing import Any, NamedTuple

from hetero import registry
from hetero.arrays import HOST, Operand
from hetero.devices import at_once
from hetero.pricing.plan import ALL_AT_ONCE, Candidate, Plan, Share, with_terms
from hetero.profile import Profile
from hetero.registry import Cut, Implementation
from hetero.registry.problem import Problem

_ROUNDS = 3  # of balancing ranges between devices of different speed
# Ranges begin at multiples of one of these, for tiles and wide loads; the least number of them.
_STEPS, _LEAST_STEPS = (64, 16, 4), 16
_TOO_LITTLE = f"each device would move less than {at_once.LEAST >> 20} MiB"


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


class Group(NamedTuple):
    """Devices of a kind that may share a call."""

    kind: str
    members: list[str]
    devices: dict[str, dict[str, Any]]  # name -> description, also of others
    constants: Profile
    asked: bool  # whether the caller names them
    price: Callable[..., list[Candidate]]  # of a problem by methods on a device, as `candidates`

    def candidates(self, problem: Problem, rows: Iterable[Implementation]) -> list[Candidate]:
        """All devices together by each of the methods, if the call can be cut."""
        found = cut(problem, len(self.members))
        return [self._candidate(problem, row, *found) for row in rows if found]

    def _candidate(self, problem: Problem, row: Implementation, cut: Cut, axis: int) -> Candidate:
        """All devices, each with its range, by one method; balanced where they differ.

        It takes as long as the slowest, or as all of them where they run one after another. To
        begin on all of them takes some time more than on one.
        """
        members = self.members[: cut.axes[axis][1]]
        way = Candidate(f"{self.kind}:*", row.method, None, {}, _TOO_LITTLE, row)
        if moved(problem) < at_once.LEAST * len(members) and not self.asked:
            return way
        equal = len({self.devices[name].get("same_as", name) for name in members}) == 1
        weights = [1.0] * len(members)
        for _ in range(1 if equal else _ROUNDS):
            shares = self._shares(row, cut, axis, members, weights)
            chosen = [share.plan.candidates[0] for share in shares]
            if all(c.seconds for c in chosen):
                pairs = zip(shares, chosen, strict=True)
                weights = [(share.end - share.begin) / c.seconds for share, c in pairs]
        reason = next((c.reason for c in chosen if c.reason), None)
        way = way._replace(reason=reason, shares=() if reason else shares, seconds=0.0)
        if reason or any(c.seconds is None for c in chosen):
            return way._replace(seconds=None)
        if min(moved(share.plan.problem) for share in shares) < at_once.LEAST:
            return with_terms(way, *(c.terms for c in chosen))
        begin = self.constants.dispatch(f"{self.kind}*{len(self.members)}", "host")
        way = with_terms(way, max(chosen, key=lambda c: c.seconds).terms, {"overhead": begin})
        return way._replace(links=ALL_AT_ONCE)

    def _shares(
        self, row: Implementation, cut: Cut, axis: int, members: list[str], weights: list[float]
    ) -> tuple[Share, ...]:
        """A share for each device, in proportion to the weights; equal devices are priced once."""
        along, extent = cut.axes[axis]
        ranges = bounds(extent, weights)
        problems = [cut.problem(cut.box(axis, *ends), HOST) for ends in ranges]
        constants, passed = self.constants, []
        if min(map(moved, problems)) >= at_once.LEAST:
            constants = constants.at_once(f"{self.kind}*{len(self.members)}")
            passed = cut.read_whole(axis)
        known: dict[tuple[str, Problem], Candidate] = {}
        shares = []
        for name, ends, part in zip(members, ranges, problems, strict=True):
            key = self.devices[name].get("same_as", name), part
            if key not in known:
                known[key] = self._priced(part, row, name, constants, passed)
            plan = Plan(part, (known[key]._replace(device=name),), self.constants.title)
            shares.append(Share(along, *ends, plan))
        return tuple(shares)

    def _priced(
        self, part: Problem, row: Implementation, name: str, constants: Profile, passed: list[int]
    ) -> Candidate:
        """A range on one device beside the others, which pass on arrays of these numbers."""
        rows = registry.lookup(part.operation)  # as a single row may be another's
        same = next((i for i in rows if (i.kind, i.method) == (row.kind, row.method)), None)
        if same is None:
            return Candidate(name, row.method, None, {}, f"no {part.operation} has it", row)
        # It is priced as itself, whether or not it equals another one.
        info = {key: value for key, value in self.devices[name].items() if key != "same_as"}
        info["passed"] = passed_on(part.inputs, passed, name, len(self.members), constants)
        (candidate,) = self.price(part, [same], name, info, constants)
        if row.blocks == registry.ALWAYS and constants is not self.constants:  # all at once
            candidate = _contended(candidate, part, info, constants)
        # The copy from a dense range to a result of the whole that has gaps.
        gaps = not part.output.is_c_contiguous()
        return with_terms(candidate, {"pack": constants.pack(part.output.nbytes)} if gaps else {})


def _contended(
    candidate: Candidate, part: Problem, info: dict[str, Any], constants: Profile
) -> Candidate:
    """The price of a method that moves ranges both ways while it computes, on all devices at once.

    Staged copies of all devices share the host's threads: both directions add up. Pinned memory
    moves both ways at once. A range is at most half an operand, so half of the shorter of copying
    and computing overlaps with the longer.
    """
    moves = [*((o, "upload") for o in part.inputs), (part.output, "download")]
    staged, by_way = 0.0, {"upload": 0.0, "download": 0.0}
    with suppress(KeyError):  # links that are not known
        for number, (operand, way) in enumerate(moves):
            seconds = 2 * constants.link(candidate.device, way, operand.memory)(operand.nbytes // 2)
            seconds *= info["passed"].get(number, (1, 1.0))[1]
            by_way[way] += seconds
            staged += 0.0 if operand.pinned else seconds
        both = max(staged, *by_way.values()), candidate.terms.get("compute", 0.0)
        more = max(both) + min(both) / 2 - (candidate.seconds or 0.0)
        return with_terms(candidate, {"upload": max(more, 0.0)})
    return candidate


def passed_on(
    arrays: Sequence[Operand], numbers: Iterable[int], name: str, devices: int, constants: Profile
) -> dict[int, tuple[int, float]]:
    """Number of an array that several devices read whole -> how many devices, and what one takes
    that uploads a part and has the rest from the others, as a share of the time of the whole
    upload; without arrays for which that is not known to be less."""
    found: dict[int, tuple[int, float]] = {}
    with suppress(KeyError):
        peer = constants.link(name, "peer", "device")
        for i in numbers:
            nbytes = arrays[i].nbytes
            alone = constants.link(name, "upload", arrays[i].memory)(nbytes)
            share = (1.0 + (devices - 1) * peer(nbytes) / alone) / devices
            if share < 1.0:
                found[i] = devices, share
    return found


def bounds(extent: int, weights: list[float]) -> list[tuple[int, int]]:
    """Ranges of 0 to ``extent``, which is no less than their number, in proportion to the weights;
    none is empty.

    >>> bounds(10, [1.0, 1.0, 1.0]), bounds(4096, [1.0, 3.0])
    ([(0, 3), (3, 7), (7, 10)], [(0, 1024), (1024, 4096)])
    """
    number, total = len(weights), sum(weights)
    step = next((s for s in _STEPS if extent >= s * _LEAST_STEPS * number), 1)
    cuts = [0]
    for index, reached in enumerate(accumulate(weights[:-1]), 1):
        at = round(extent * reached / total / step) * step
        cuts.append(min(max(at, cuts[-1] + 1), extent - number + index))
    return list(zip(cuts, [*cuts[1:], extent], strict=True))
