"""What a call takes when it is made again and again, and its large operands stay on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from hetero import registry
from hetero.arrays import HOST
from hetero.arrays.kept import FLOATS, LEAST_WATCHED, Kept
from hetero.moving import keeping
from hetero.pricing.plan import Plan
from hetero.registry.problem import Problem
from hetero.times import readable


class Step(NamedTuple):
    """Calls in a row that run alike.

    Attributes
    ----------
    first, last : int
        Numbers of calls, from 1.
    device, method : str
    seconds : float
        Of each call, predicted.
    moves : tuple of int
        Operands that move to the device with the call, to stay there, from 1.
    """

    first: int
    last: int
    device: str
    method: str
    seconds: float
    moves: tuple[int, ...]

    def __str__(self) -> str:
        calls, each = f"call {self.first}", ""
        if self.last > self.first:
            calls, each = f"calls {self.first} to {self.last}", " each"
        moved = f", operand {' and '.join(map(str, self.moves))} moves there" if self.moves else ""
        return f"{calls}: {self.device} {self.method}, {readable(self.seconds)}{each}{moved}"


class Course(NamedTuple):
    """The calls of a loop over the same operands.

    Attributes
    ----------
    steps : tuple of Step
    seconds, without : float
        Of all calls together, with copies that stay and without.
    """

    steps: tuple[Step, ...]
    seconds: float
    without: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        steps = [step._asdict() for step in self.steps]
        return {"steps": steps, "seconds": self.seconds, "without": self.without}

    def __str__(self) -> str:
        total, without = readable(self.seconds), readable(self.without)
        lines = [f"   {step}" for step in self.steps]
        return "\n".join([*lines, f"   in all {total}; {without} without copies that stay"])


def course(problem: Problem, calls: int, priced: Callable[[Problem], Plan]) -> Course | None:
    """The calls of a loop in which operands on the host of `LEAST_WATCHED` bytes and more stay the
    same: from the second call on they are known. None where a call has no price.

    Parameters
    ----------
    problem : Problem
    calls : int
    priced : callable
        ``priced(problem)`` gives a plan by the copies that its inputs have.
    """
    plans: dict[Any, Plan] = {}

    def remembered(asked: Problem) -> Plan:
        copies = tuple(o.copies for o in asked.inputs)
        if copies not in plans:
            plans[copies] = priced(asked)
        return plans[copies]

    known = {
        i: Kept(calls=1)
        for i, o in enumerate(problem.inputs)
        if o.location == HOST and o.nbytes >= LEAST_WATCHED and o.dtype.char in FLOATS
    }
    keeps = registry.operation(problem.operation).keeps(problem)
    if not (keeps and keeping.may_pay(remembered(problem))):
        known = {}
    plan, steps = remembered(problem), []
    for number in range(1, calls + 1):
        if number > 1 and known:
            plan = _counted(problem, known, remembered)
        chosen = plan.candidates[0] if plan.candidates else None
        if chosen is None or chosen.seconds is None:
            return None
        moves = tuple(one.position + 1 for one in plan.kept if one.moves_to)
        for position in moves:
            known[position - 1].held[object()] = chosen.device
        step = Step(number, number, chosen.device, chosen.method, chosen.seconds, moves)
        if steps and steps[-1][2:] == step[2:]:
            steps[-1] = steps[-1]._replace(last=number)
        else:
            steps.append(step)
    seconds = sum(step.seconds * (step.last - step.first + 1) for step in steps)
    return Course(tuple(steps), seconds, calls * remembered(problem).candidates[0].seconds)


def _counted(problem: Problem, known: dict[int, Kept], priced: Callable[[Problem], Plan]) -> Plan:
    """The plan of the next call, which counts as made."""
    inputs = list(problem.inputs)
    for i, block in known.items():
        inputs[i] = inputs[i]._replace(copies=block.copies)
    plan = priced(replace(problem, inputs=tuple(inputs)))
    for i, block in known.items():
        inputs[i] = inputs[i]._replace(kept=block)
    asked = replace(problem, inputs=tuple(inputs))
    plan = keeping.placed(plan, asked)
    keeping.count(plan)
    return plan
