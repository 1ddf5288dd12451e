"""What a call takes when it is made again and again, and its large operands stay on a device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple

from hetero import registry
from hetero.arrays import HOST
from hetero.arrays.kept import FLOATS, LEAST_WATCHED, Kept
from hetero.devices.storage import Copy
from hetero.moving import keeping
from hetero.pricing import pricing
from hetero.pricing.plan import Plan
from hetero.registry.problem import Problem
from hetero.times import readable


class Step(NamedTuple):
    """Calls in a row that run alike."""

    first: int  # number of a call, from 1
    last: int
    device: str
    method: str
    seconds: float  # of each call, predicted
    moves: tuple[int, ...]  # operands that move to the device, to stay there, from 1

    def __str__(self) -> str:
        calls, each = f"call {self.first}", ""
        if self.last > self.first:
            calls, each = f"calls {self.first} to {self.last}", " each"
        moved = f", operand {' and '.join(map(str, self.moves))} moves there" if self.moves else ""
        return f"{calls}: {self.device} {self.method}, {readable(self.seconds)}{each}{moved}"


class Course(NamedTuple):
    """The calls of a loop over the same operands, and the seconds of all of them together, with
    copies that stay and without."""

    steps: tuple[Step, ...]
    seconds: float
    without: float

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
        return self._asdict() | {"steps": [step._asdict() for step in self.steps]}

    def __str__(self) -> str:
        total, without = readable(self.seconds), readable(self.without)
        lines = [f"   {step}" for step in self.steps]
        return "\n".join([*lines, f"   in all {total}; {without} without copies that stay"])


def course(problem: Problem, calls: int, priced: Callable[[Problem], Plan]) -> Course | None:
    """The calls of a loop in which operands on the host of `LEAST_WATCHED` bytes and more stay the
    same: from the second call on they are known. None where a call has no price.

    ``priced(problem)`` gives a plan by the copies that its inputs have.
    """
    plans: dict[Any, Plan] = {}
    known: dict[int, Kept] = {}
    each = []
    for number in range(calls):
        inputs = [
            o._replace(copies=known[i].copies if i in known else o.copies, kept=known.get(i))
            for i, o in enumerate(problem.inputs)
        ]
        copies = tuple([o.copies for o in inputs])
        if copies not in plans:
            unkept = tuple([o._replace(kept=None) for o in inputs])
            plans[copies] = priced(replace(problem, inputs=unkept))
        plan = keeping.placed(plans[copies], replace(problem, inputs=tuple(inputs)))
        chosen = plan.candidates[0] if plan.candidates else None
        if chosen is None or chosen.seconds is None:
            return None
        keeping.count(plan)
        moves = [one.position for one in plan.kept if one.moves_to]
        for i in moves:
            known[i].held[chosen.device] = Copy(chosen.device, None, None, 0)
        each.append((chosen.device, chosen.method, chosen.seconds, tuple([i + 1 for i in moves])))
        keeps = registry.operation(problem.operation).keeps(problem)
        if number == 0 and keeps and pricing.copies_pay(plan):
            for i, o in enumerate(problem.inputs):
                if o.location == HOST and o.nbytes >= LEAST_WATCHED and o.dtype.char in FLOATS:
                    known[i] = Kept()
                    known[i].uses = 1
    steps: list[Step] = []
    for alike, group in groupby(each):
        begin = steps[-1].last if steps else 0
        steps.append(Step(begin + 1, begin + len(list(group)), *alike))
    return Course(tuple(steps), sum(one[2] for one in each), calls * each[0][2])
