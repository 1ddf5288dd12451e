"""Methods whose loops are not compiled on this machine: no candidates, unless the caller names one.

A method on the CPU names by `Implementation.loops` what must be compiled for it. Until that is done
NumPy's and SciPy's methods compute, and a line says once what compiling would gain.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from hetero.host import loops
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.profile import Profile
from hetero.registry import Implementation
from hetero.registry.models import Cost
from hetero.registry.problem import Problem

Devices = dict[str, dict[str, Any]]
NOT_COMPILED = "its loops are not compiled on this machine; 'hetero compile' does it"

log = logging.getLogger("hetero")
_noted: set[str] = set()  # the method that a line was about
_GAIN = 1.25  # times as fast, from which on a method is worth a line


def obstacle(implementation: Implementation, problem: Problem) -> str | None:
    """Why a method on this machine's CPU cannot run the loops that it needs, None where it can."""
    needed = implementation.loops is not None and implementation.loops(problem)
    return loops.obstacle() if needed else None


def left(implementation: Implementation | None, problem: Problem) -> list[str]:
    """What is still to be compiled for a method on the CPU."""
    if implementation is None or implementation.loops is None:
        return []
    return [name for name in implementation.loops(problem) if not loops.is_ready(name)]


def stand_in_cost(implementation: Implementation, problem: Problem) -> Cost | None:
    """The conservative cost of a plain library's method, which is not measured."""
    if implementation.stands_in is None:
        return None
    row = problem.operation, implementation.method, problem.dtype, problem.layout
    return Profile.conservative().cost(CPU, implementation.kind, *row)


def not_needed(
    implementation: Implementation, problem: Problem, others: Iterable[Candidate], devices: Devices
) -> str | None:
    """Why a plain library's method is put aside where all others are compiled; None if it is not.

    It is not either where another one's loops can never be.
    """
    denied = loops.obstacle()
    if any(c.reason in (None, denied) and _waits(c, problem, devices) for c in others):
        return None
    assert implementation.stands_in is not None
    return implementation.stands_in(problem)


def without(problem: Problem, candidates: list[Candidate], devices: Devices) -> list[Candidate]:
    """Candidates less those that have loops which are not compiled, if any other is left."""
    waiting = {id(c) for c in candidates if not c.reason and _waits(c, problem, devices)}
    if all(c.reason or id(c) in waiting for c in candidates):
        return candidates
    return [c._replace(reason=NOT_COMPILED) if id(c) in waiting else c for c in candidates]


def _waits(candidate: Candidate, problem: Problem, devices: Devices) -> bool:
    """Whether it is on this machine's CPU, and has loops that are not compiled."""
    here = candidate.device == CPU and not devices[CPU].get("elsewhere")
    return here and bool(left(candidate.implementation, problem))


def see_to(plan: Plan, chosen: Candidate) -> None:
    """Before a plan runs, compile what its choice needs; or say what compiling would gain."""
    names = left(chosen.implementation, plan.problem) if chosen.device == CPU else []
    if names:
        took = sum(map(loops.seconds, names))
        named = " and ".join(names)
        log.warning("compiling the loops of %s, once for this machine: about %.0f s", named, took)
        loops.ensure(names)
        return
    for c in plan.candidates if not _noted and chosen.seconds else ():
        if c.reason == NOT_COMPILED and c.seconds and _GAIN * c.seconds < chosen.seconds:
            _noted.add(c.method)
            log.warning(
                "'hetero compile' compiles the CPU's loops, once for this machine: then "
                "method %r is expected to take %.2g s for %.2g s of this call",
                *(c.method, c.seconds, chosen.seconds),
            )
            break
