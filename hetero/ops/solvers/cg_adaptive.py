"""Method "adaptive" of conjugate gradients: it begins on the CPU and moves to a device in time.

It goes on there from the same x and r, in the direction that is conjugate to those before. On the
CPU an iteration takes c seconds, on the device g, and the move there M: the operands, and what the
device needs to begin. So it pays from k = M / (c - g) iterations on. How many there are depends on
the spectrum of A, which nobody knows beforehand: this is the ski rental problem, with a forecast by
the residuals of the iterations done. c is measured while the solve runs, for BLAS is slower where
others use the CPU; g and M are predicted.

- From the `_FIRST` iteration on, the rate at which the residual fell over the second half of the
  iterations gives the number R that are still to come. The solve moves where R (c - g) is well
  above M, and stays where even twice R would not pay.
- Else it moves when the iterations done on the CPU would have paid for the move. That takes no more
  than twice the best decision, which is Karlin's bound.

References
----------
R. Kumar, M. Purohit, Z. Svitkina, "Improving online algorithms via ML predictions", NeurIPS 2018:
ski rental with a forecast. A. R. Karlin et al., Algorithmica 11 (1994), 542-571.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetero import profile
from hetero.devices.base import Device
from hetero.imports import load
from hetero.ops.solvers import cg_loop
from hetero.ops.solvers.cg_problem import NAME, least_iterations, work
from hetero.ops.solvers.systems import Outcome
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, Terms, total
from hetero.profile import Profile
from hetero.registry import Arguments, Price, Problem, Unasked

_FIRST = 4  # iterations before a forecast is believed
_MARGIN = 1.5  # times the move that the iterations still to come must save
_MANY = 2.0  # times the iterations to expect


class Schedule(NamedTuple):
    """What decides about a move: seconds of an iteration, as predicted, and of the move."""

    cpu: float
    device: float
    move: float
    moves: Terms = {}  # noqa: RUF012  of the move
    begin: float = 0.0  # seconds of the CPU before the first iteration

    @property
    def pays_from(self) -> float:
        """The number of iterations from which on the device is faster from the beginning."""
        saved = self.cpu - self.device
        return self.move / saved if saved > 0.0 else math.inf

    def is_due(
        self, norms: Sequence[float], seconds: Sequence[float], bound: float, left: int
    ) -> bool:
        """Whether a solve moves now.

        ``norms`` and ``seconds``: the residual's norm after each iteration that was done on the
        CPU, and its time; ``bound``: the norm at which the solve ends; ``left``: iterations that
        may still be done.
        """
        done = len(norms)
        saved = min(seconds[done // 2 :]) - self.device  # others disturb some of them
        if saved <= 0.0:
            return False
        if done >= _FIRST:
            rest = min(_still_to_come(norms, bound), left)
            if rest * saved > _MARGIN * self.move:
                return True
            if 2.0 * rest * saved < self.move:
                return False
        return (done + 1) * saved > self.move


def _still_to_come(norms: Sequence[float], bound: float) -> float:
    """Iterations until the norm meets the bound, at the rate of the second half of them."""
    half = len(norms) // 2
    before, now = norms[half - 1], min(norms[half - 1 :])
    if not bound > 0.0 or not 0.0 < now < before:
        return math.inf
    rate = math.log(before / now) / (len(norms) - half)
    return max(math.log(norms[-1] / bound), 0.0) / rate


def schedule_of(problem: Problem, name: str, kind: str, constants: Profile) -> Schedule | None:
    """For a device of this kind; None where constants are not known, KeyError or ValueError where
    they do not cover it."""
    inputs = tuple([o._replace(kept=None) for o in problem.inputs])  # what is remembered holds none
    return _schedule(replace(problem, inputs=inputs), name, kind, constants)


@functools.lru_cache(maxsize=64)  # it takes as long as some iterations
def _schedule(problem: Problem, name: str, kind: str, constants: Profile) -> Schedule | None:
    options = [problem.options._replace(iterations=count) for count in (1, 2)]
    one, two = (work(replace(problem, options=each), {}) for each in options)
    seconds = []
    for key in ((CPU, CPU, NAME, "blas"), (name, kind, NAME, "fused")):
        cost = constants.cost(*key, problem.dtype, problem.layout)
        if cost is None:
            return None
        begin, step = sum(cost(one)), sum(cost(two))
        seconds.append((max(2.0 * begin - step, 0.0), step - begin))
    before, after, _ = pricing.moves(problem, name, constants)
    (cpu_begin, c), (begin, g) = seconds
    moves = total(total(before, after), {"overhead": begin})
    return Schedule(c, g, sum(moves.values()), moves, cpu_begin)


def price(problem: Problem, name: str, info: dict[str, Any], constants: Profile) -> Price:
    """The terms of a solve that moves in time; None where constants are not known.

    They are the mean of two solves that are foreseen right: one of the fewest iterations that any
    takes, which stays on the CPU, and one of twice those to expect, which moves. Their weights are
    such that the mean number is the expected one, by which the other methods are priced. So this is
    the least price where the device pays from a number in between, and nowhere else.
    """
    schedule = schedule_of(problem, name, info["kind"], constants)
    if schedule is None:
        return Price(None)
    count, pays_from = problem.options.iterations, schedule.pays_from
    few = min(least_iterations(problem.options.rtol, np.dtype(problem.dtype)), count)
    many = _MANY * count
    often = (count - few) / (many - few)  # how often there are many
    terms = {"overhead": schedule.begin, "compute": 0.0}
    for share, number in ((1.0 - often, few), (often, many)):
        if pays_from < number:
            moved = {term: share * seconds for term, seconds in schedule.moves.items()}
            terms = total(terms, {**moved, "compute": share * number * schedule.device})
        else:
            terms["compute"] += share * number * schedule.cpu
    pays = f"pays from {pays_from:.0f} iterations on" if pays_from < math.inf else "is slower"
    reason = None
    if not few < pays_from < many:
        reason = Unasked(f"{name} {pays}, and {few:.0f} to {many:.0f} are to be expected")
    return Price(terms, f"begins on the CPU; {name} {pays}", reason)


class _Moves(Exception):
    """Ends the iterations on the CPU; with the residual and the next direction."""


def solve(devices: tuple[Device], problem: Problem, arguments: Arguments) -> Outcome:
    """Solve A x = b for a dense A; where constants are not known, on the CPU."""
    (b,), x, asked = arguments
    (device,), (A, M) = devices, asked.system(())
    schedule = schedule_of(problem, device.name, device.kind, profile.current())
    norms: list[float] = []
    seconds: list[float] = []
    last = time.perf_counter()

    def after_step(r_r: float, floor: float, r: Any, p: Any) -> None:
        """Called after each iteration on the CPU but the last."""
        nonlocal last
        now = time.perf_counter()
        norms.append(r_r**0.5)
        seconds.append(now - last)
        last = now
        done = len(norms)
        left = asked.maxiter - done
        if not done % (done // 32 + 1) and schedule.is_due(norms, seconds, floor, left):
            raise _Moves(r, p)

    try:
        watch = None if schedule is None else after_step
        return cg_loop.solve(A, b, x, asked, M, after_step=watch)
    except _Moves as move:
        going_on, done = move.args, len(norms)
    rest = asked._replace(maxiter=asked.maxiter - done)
    with device.active():
        cg_device = load("hetero.ops.solvers.cg_device")
        outcome = cg_device.solve(devices, Arguments((b,), x, rest), b.dtype, going_on)
    return outcome._replace(iterations=outcome.iterations + done)
