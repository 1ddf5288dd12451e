"""Methods with loops still to be compiled: what that adds to their price, and what runs meanwhile.

A method on the CPU names by `Implementation.loops` what must be compiled for it. Until that is done
its price has a term "compiling". A cheaper method runs meanwhile, and other processes compile the
loops; when they are ready, plans are made anew. Where waiting costs less than any other method
takes, or the caller asked for this one, the call waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from hetero.host.compiled import loop_compiler, loops
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.profile import Profile
from hetero.registry import Implementation
from hetero.registry.models import Cost
from hetero.registry.problem import Problem

TERM = "compiling"

log = logging.getLogger("hetero")


def seconds_left(implementation: Implementation, problem: Problem) -> float:
    """Seconds of compiling before a method can run on this machine's CPU."""
    if implementation.loops is None:
        return 0.0
    return sum(map(loops.seconds_left, implementation.loops(problem)))


def stand_in_cost(implementation: Implementation, problem: Problem) -> Cost | None:
    """The conservative cost of a stand-in, which is not measured."""
    if implementation.stands_in is None:
        return None
    row = problem.operation, implementation.method, problem.dtype, problem.layout
    return Profile.conservative().cost(CPU, implementation.kind, *row)


def not_needed(
    implementation: Implementation, problem: Problem, others: Iterable[Candidate]
) -> str | None:
    """Why a stand-in is put aside where no other method has to be compiled; None if it is not.

    It is not either where another one's loops can never be.
    """
    denied = loops.obstacle() or TERM
    if any(TERM in candidate.terms or candidate.reason == denied for candidate in others):
        return None
    assert implementation.stands_in is not None
    return implementation.stands_in(problem)


def see_to(plan: Plan, chosen: Candidate) -> None:
    """Before a plan runs, compile what its choice needs, or begin to compile faster candidates."""
    if TERM in chosen.terms:
        names = _names(chosen, plan.problem)
        if names:
            log.warning(
                "compiling the loops of %s, once for this machine: about %.0f s",
                " and ".join(names),
                sum(map(loops.seconds, names)),
            )
            loop_compiler.ensure(names)
        return
    for candidate in plan.candidates:
        if TERM in candidate.terms and _would_be_faster(candidate, chosen):
            for name in _names(candidate, plan.problem):
                loop_compiler.begin(name)


def _would_be_faster(candidate: Candidate, chosen: Candidate) -> bool:
    if candidate.seconds is None or chosen.seconds is None:
        return False
    return candidate.seconds - candidate.terms[TERM] < chosen.seconds


def _names(candidate: Candidate, problem: Problem) -> list[str]:
    """What is still to be compiled for a candidate."""
    implementation = candidate.implementation
    if implementation is None or implementation.loops is None:
        return []
    return [name for name in implementation.loops(problem) if not loops.is_ready(name)]
