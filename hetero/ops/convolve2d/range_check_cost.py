"""What it costs to look at an image on the host before it is transformed, as part of a price."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from hetero.ops.convolve2d import loops, traits
from hetero.ops.convolve2d.filters import LARGEST_REMEMBERED
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.registry.problem import Problem

TERM = "look"
# Seconds: fixed; for a byte of the image on one core; for a block on one thread. 16 cores of an
# H100's host go over 8192 x 8192 numbers of float32 in 5 ms, and over a million blocks in 5.5 ms.
_CALL, _BYTE, _BLOCK = 7e-5, 2.8e-10, 5.5e-9
_TAP = 3e-8  # of an element of a filter that is not remembered
_MOST_CORES = 16  # more are not faster than the memory


def seconds(
    problem: Problem, machine: dict[str, dict[str, Any]], finite_only: bool = False
) -> float:
    """What `hetero.ops.convolve2d.value_ranges.wide` takes for the image of a problem.

    Parameters
    ----------
    problem : Problem
    machine : dict
        Device name -> description.
    finite_only : bool
        Whether it is just looked for values that are not finite, as where the method is named.
    """
    w = problem.options
    dtype, cpu = np.dtype(problem.dtype), machine.get(CPU, {})
    cores = min(cpu.get("cores") or 1, _MOST_CORES)
    if not (cpu.get("elsewhere") or loops.looks_by_loops(dtype)):
        cores = 1
    look = problem.batch * w.height * w.width * dtype.itemsize * _BYTE / cores
    if finite_only:
        return look
    rows, columns = (w.filter_height + 1) // 2, (w.filter_width + 1) // 2
    blocks = problem.batch * -(-w.height // rows) * -(-w.width // columns)
    taps = w.filter_height * w.filter_width
    return _CALL + look + blocks * _BLOCK + (taps > LARGEST_REMEMBERED) * taps * _TAP


def priced(plan: Plan, look: float, trait: str = "transforms") -> Plan:
    """A plan whose candidates with a trait take so many seconds more; the cheapest is first."""

    def looks(c: Candidate) -> bool:
        return getattr(traits.of_row(c.implementation), trait)

    known = [c for c in plan.candidates if c.reason is None and c.seconds is not None]
    if not any(map(looks, known)):
        return plan
    dearer = []
    for c in known:
        if looks(c):
            terms = {TERM: look, **c.terms}
            c = c._replace(seconds=c.seconds + look, terms=terms)
        dearer.append(c)
    dearer.sort(key=lambda c: c.seconds)
    others = [c for c in plan.candidates if c not in known]
    return replace(plan, candidates=(*dearer, *others))
