"""Ranges of a call on host arrays, each computed by one device: their bounds and prices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hetero import registry
from hetero.arrays import HOST
from hetero.pricing import candidate_pricing
from hetero.pricing.plan import Candidate
from hetero.profile import Profile
from hetero.registry import Implementation
from hetero.registry.problem import Problem

_STEPS = (64, 16, 4)  # ranges begin at multiples of one of these, for tiles and wide loads
_LEAST_STEPS = 16  # of each range


def priced(
    part: Problem,
    implementation: Implementation,
    member: str,
    info: dict[str, Any],
    constants: Profile,
    asked_for: bool,
) -> Candidate:
    """A range by one method on a device."""
    if part.operation != implementation.operation:  # as a single row may be another's
        named = implementation.kind, implementation.method
        rows = registry.lookup(part.operation)
        same = next((i for i in rows if (i.kind, i.method) == named), None)
        if same is None:
            reason = f"{part.operation} has no such method"
            return Candidate(member, implementation.method, None, {}, reason, implementation)
        implementation = same
    row = part, implementation, member, info, constants, asked_for
    return candidate_pricing.candidate(*row)


def fetched(candidate: Candidate, part: Problem, constants: Profile) -> Candidate:
    """Add the copy from a dense range to a result of the whole that has gaps."""
    out = part.output
    if candidate.seconds is None or out.is_c_contiguous():
        return candidate
    return with_terms(candidate, {"pack": constants.pack(out.nbytes)})


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
