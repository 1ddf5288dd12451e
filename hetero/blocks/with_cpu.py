"""A call on host arrays that the CPU and one device share: who computes which range, and the price.

White chooses for each computation whether the CPU or the GPU does it (2013, section 4.6, listing
4.18). Here one computation is cut in two, so that both end at the same time. While both work they
contend: the threads that copy for the device take cores and memory from BLAS, and BLAS from them.
How many times as long each takes then is measured (`Profile.contention`), and how many threads BLAS
had better do without; where it was not, the price is twice both. By itself a call is shared only
where no thread of ours does the device's range (`beside_cpu`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from hetero import registry
from hetero.blocks import beside_cpu, ranges
from hetero.host import limits
from hetero.pricing import candidate_pricing, pricing
from hetero.pricing.plan import CPU, Candidate, Plan, Share
from hetero.profile import ENQUEUED, PAGEABLE, PINNED, Profile
from hetero.profile.constants import UNKNOWN_CONTENTION, Contention
from hetero.registry import Cut, Implementation, thread_counts
from hetero.registry.problem import Problem

Devices = dict[str, dict[str, Any]]
TERM = "contention"
# Of what the best one alone takes. Two prices, each about 10 % wrong, and what was measured of both
# together, decide; a call that is shared for nothing keeps the device and the bus from others.
WORTH_IT = 0.85
_ALIKE = 0.02  # by which the times of both differ at most where no better ranges are looked for
_ROUNDS = 4  # of finding the range that lets both end together


def named(
    problem: Problem,
    constants: Profile,
    devices: Devices,
    device: str,
    method: str | None,
    beside: str,
) -> list[Candidate]:
    """The CPU with the device that the caller names, by each of its methods; none where the problem
    cannot be cut."""
    cut = _cut(problem)
    if cut is None or CPU not in devices:
        return []
    found = []
    for name in pricing.matching_devices(device, devices)[1:]:
        look = registry.considered if method is None else registry.lookup
        for row in look(problem.operation):
            if row.kind == devices[name]["kind"] and (
                row.method == method
                or (method is None and (row.stands_in is None or row.stands_in(problem) is None))
            ):
                pair = _Pair(problem, cut, constants, devices, name, row, beside)
                found.append(pair.candidate(asked_for=True))
    return found


def among(
    plan: Plan, constants: Profile, devices: Devices, method: str | None, beside: str
) -> Iterator[Candidate]:
    """The CPU with each device, by the best method there that is enqueued, where both together are
    clearly faster than what a plan chose.

    What threads of ours take from BLAS while they do a device's range differs too much from call to
    call for a price: such a call is made by name only.
    """
    problem = plan.problem
    if problem.device is not None or method is not None:
        return
    best: dict[str, Candidate] = {}
    for c in plan.candidates:  # the cheapest first
        if c.reason is not None or not c.seconds or c.device not in devices:
            continue
        if c.device == CPU or way(problem, c.implementation) == ENQUEUED:
            best.setdefault(c.device, c)
    cpu, cut = best.pop(CPU, None), None
    if cpu is None:
        return
    most = WORTH_IT * plan.candidates[0].seconds
    for name, other in best.items():
        lost = constants.contention(name, problem.operation, ENQUEUED)
        rates = 1.0 / (lost.cpu * cpu.seconds), 1.0 / (lost.device * other.seconds)
        # A part of a call takes at least that part of its time.
        if lost.handover + 1.0 / sum(rates) >= most:
            continue
        cut = cut or _cut(problem)
        if cut is None:
            return
        if way(cut.problem(1, cut.extent), other.implementation) != ENQUEUED:
            continue  # what is dense as a whole has gaps in ranges
        pair = _Pair(problem, cut, constants, devices, name, other.implementation, beside)
        found = pair.candidate(asked_for=False, weights=rates)
        if found.seconds is not None and found.seconds < most:
            yield found


def _cut(problem: Problem) -> Cut | None:
    if problem.device is not None or problem.device_obstacle:
        return None
    found = registry.cut(problem, 2)
    return found if found is not None and found.extent > 1 else None


def way(problem: Problem, row: Implementation) -> str:
    """How a device's range of a call is done, as `Profile.contention` has it."""
    if beside_cpu.suits(problem, row):
        return ENQUEUED
    largest = max(problem.inputs, key=lambda o: o.nbytes)  # most of what is moved
    return PINNED if largest.pinned else PAGEABLE


def spared(plan: Plan, number: int) -> Plan:
    """A plan by which the CPU does its range on so many of BLAS's threads fewer."""
    first = plan.chosen
    own, other = first.shares
    shares = own._replace(plan=_spared(own.plan, number)), other
    return replace(plan, candidates=(first._replace(shares=shares), *plan.candidates[1:]))


def _spared(own: Plan, number: int) -> Plan:
    """The CPU's range on so many of BLAS's threads fewer, where they can be limited now."""
    first = own.candidates[0]
    if not number or first.threads is None or own.blas is None or not own.blas.alone:
        return own
    if thread_counts.pool(first.implementation) != limits.BLAS:
        return own
    left = max(min(first.threads.number, first.threads.of - number), 1)
    threads = first.threads._replace(number=left, wanted=left)
    return replace(own, candidates=(first._replace(threads=threads), *own.candidates[1:]))


class _Pair:
    """The CPU and one device, by one of its methods."""

    def __init__(
        self,
        problem: Problem,
        cut: Cut,
        constants: Profile,
        devices: Devices,
        name: str,
        implementation: Implementation,
        beside: str,
    ) -> None:
        self._cut, self._constants, self._devices, self._beside = cut, constants, devices, beside
        self._name, self._row = name, implementation
        # Priced as itself, whether or not it equals another one.
        self._info = {key: value for key, value in devices[name].items() if key != "same_as"}

    def candidate(self, asked_for: bool, weights: Sequence[float] = (1.0, 1.0)) -> Candidate:
        """Both, each with its range; of some ranges those that end soonest."""
        best: tuple[float, tuple[Share, ...]] | None = None
        for _ in range(_ROUNDS):
            shares = self._shares(weights, asked_for)
            seconds = self._seconds(shares)
            if not all(seconds):
                return self._without_price(shares, asked_for)
            if best is None or max(seconds) < best[0]:
                best = max(seconds), shares
            if max(seconds) - min(seconds) < _ALIKE * max(seconds):
                break
            weights = [(s.end - s.begin) / t for s, t in zip(shares, seconds, strict=True)]
        assert best is not None
        slowest, shares = best
        both = [share.plan.candidates[0] for share in shares]
        one = both[self._seconds(shares).index(slowest)]
        terms = dict(one.terms)
        handover = self._lost(shares).handover
        terms["overhead"] = terms.get("overhead", 0.0) + handover
        terms[TERM] = slowest - one.seconds
        total = sum(terms.values())
        return self._found(seconds=total, terms=terms, links=both[1].links, shares=shares)

    def _seconds(self, shares: Sequence[Share]) -> list[float]:
        """Of each range while the other one is computed; 0 where it has no price."""
        own, other = (share.plan.candidates[0] for share in shares)
        lost = self._lost(shares)
        return [lost.cpu * (own.seconds or 0.0), lost.device * (other.seconds or 0.0)]

    def _lost(self, shares: Sequence[Share]) -> Contention:
        """What they lose to one another; not known where threads cannot be spared as measured."""
        threads = shares[0].plan.candidates[0].threads
        lost = self._contention(shares[1].plan.problem)
        without = threads is None or not threads.wanted
        return UNKNOWN_CONTENTION if lost.spared and without else lost

    def _contention(self, rest: Problem) -> Contention:
        return self._constants.contention(self._name, rest.operation, way(rest, self._row))

    def _without_price(self, shares: tuple[Share, ...], asked_for: bool) -> Candidate:
        reasons = (share.plan.candidates[0].reason for share in shares)
        reason = next((r for r in reasons if r is not None), None)
        if reason is None and not asked_for:
            reason = candidate_pricing.UNKNOWN
        return self._found(reason=reason, shares=() if reason else shares)

    def _found(self, **more: Any) -> Candidate:
        name = pricing.WITH_CPU + self._name
        return Candidate(name, self._row.method, None, {}, None, self._row)._replace(**more)

    def _shares(self, weights: Sequence[float], asked_for: bool) -> tuple[Share, ...]:
        """The CPU's range, by its best method, and the device's."""
        (_, middle), (_, end) = ranges.bounds(self._cut.extent, list(weights))
        constants, beside = self._constants, self._beside
        first, rest = self._cut.problem(0, middle), self._cut.problem(middle, end)
        own = pricing.price(first, constants, self._devices, CPU, None, beside)
        own = _spared(own, self._contention(rest).spared)
        row = rest, self._row, self._name, self._info, constants, asked_for, beside
        one = ranges.fetched(ranges.priced(*row), rest, constants)
        others = Plan(rest, (one,), constants.title, beside=beside)
        along = self._cut.along
        return Share(along, 0, middle, own), Share(along, middle, end, others)
