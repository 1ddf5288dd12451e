"""A call on host arrays that the CPU and one device share, by the name "cpu+cuda:0".

White chooses for each computation whether the CPU or the GPU does it (2013, section 4.6, listing
4.18). Here one computation is cut in two ranges of equal predicted time. The price leaves out the
contention of the device's copies and BLAS for cores and memory, so a call is shared only where the
caller asks for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from hetero import registry
from hetero.blocks import partition
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, Candidate, Plan, Share
from hetero.profile import Profile
from hetero.registry import Cut, Implementation
from hetero.registry.problem import Problem

Devices = dict[str, dict[str, Any]]
_ROUNDS = 4  # of balancing the two ranges
_ALIKE = 0.02  # relative difference of their times that is good enough


def named(
    problem: Problem, constants: Profile, devices: Devices, device: str, method: str | None
) -> list[Candidate]:
    """Candidates of the CPU with the named device, for each method; none for what cannot be cut."""
    placed = problem.device is not None or problem.device_obstacle
    cut = None if placed or CPU not in devices else registry.cut(problem, 2)
    if cut is None or cut.extent < 2:
        return []
    look = registry.considered if method is None else registry.lookup
    return [
        _candidate(cut, constants, devices, name, row)
        for name in pricing.matching_devices(device, devices)[1:]
        for row in look(problem.operation)
        if row.kind == devices[name]["kind"]
        and method in (None, row.method)
        and (method or row.stands_in is None or row.stands_in(problem) is None)
    ]


def _candidate(
    cut: Cut, constants: Profile, devices: Devices, name: str, row: Implementation
) -> Candidate:
    """Both with their ranges, balanced over a few rounds; the fastest of these counts."""
    best = Candidate(pricing.WITH_CPU + name, row.method, None, {}, None, row)
    weights: Sequence[float] = (1.0, 1.0)
    for _ in range(_ROUNDS):
        shares = _shares(cut, constants, devices, name, row, weights)
        both = [share.plan.candidates[0] for share in shares]
        reason = next((one.reason for one in both if one.reason is not None), None)
        if reason is not None:
            return best._replace(reason=reason)
        if not all(one.seconds for one in both):
            return best if best.shares else best._replace(shares=shares)
        slowest = max(both, key=lambda one: one.seconds)
        if best.seconds is None or slowest.seconds < best.seconds:
            best = best._replace(
                seconds=slowest.seconds, terms=slowest.terms, links=both[1].links, shares=shares
            )
        if slowest.seconds - min(one.seconds for one in both) < _ALIKE * slowest.seconds:
            break
        weights = [(s.end - s.begin) / c.seconds for s, c in zip(shares, both, strict=True)]
    return best


def _shares(
    cut: Cut,
    constants: Profile,
    devices: Devices,
    name: str,
    row: Implementation,
    weights: Sequence[float],
) -> tuple[Share, ...]:
    """The CPU's range, by its best method, and the device's."""
    (_, middle), (_, end) = partition.bounds(cut.extent, list(weights))
    first, rest = cut.problem(0, middle), cut.problem(middle, end)
    own = pricing.price(first, constants, devices, CPU)
    # Priced as itself, whether or not it equals another one.
    info = {key: value for key, value in devices[name].items() if key != "same_as"}
    one = partition.fetched(
        partition.priced(rest, row, name, info, constants, True), rest, constants
    )
    others = Plan(rest, (one,), constants.title)
    return Share(cut.along, 0, middle, own), Share(cut.along, middle, end, others)
