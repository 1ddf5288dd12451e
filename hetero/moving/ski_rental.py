"""When operands that do not change are moved to a device, to stay there.

Whether that pays depends on calls that nobody knows yet. It is the ski rental problem, solved by
Karlin's rule: an operand is moved in the call in which the time lost by its not being there reaches
the time of the move. Whatever the calls, that costs at most twice what the best decision costs,
which is known only afterwards; with n devices of different speed at most n + 1 times. Where it is
said how often an operand is going to be used, the first call decides.

What a call loses is predicted, so that a plan tells what it does. Afterwards it counts by what the
call took: one that took half as long again as predicted has lost half as much again.

References
----------
A. R. Karlin, M. S. Manasse, L. Rudolph, D. D. Sleator, "Competitive snoopy caching", Algorithmica 3
(1988), 79-119. A. R. Karlin, M. S. Manasse, L. A. McGeoch, S. Owicki, "Competitive randomized
algorithms for nonuniform problems", Algorithmica 11 (1994), 542-571.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from hetero import registry, tables
from hetero.arrays import HOST, Operand
from hetero.arrays.kept import Kept
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.registry.problem import Problem
from hetero.times import readable

Priced = Callable[[Problem], Plan]
_MOST = 2.0  # times the prediction, or less than it, that a call's time counts: others disturb it
_LEAST_SAVED = 1e-4  # seconds; to look for copies, and to plan with them, takes as long
_clock = time.perf_counter
_outlooks = tables.new_table()


class KeptOperand(NamedTuple):
    """An operand that does not change, in a plan.

    Attributes
    ----------
    position : int
        Among the problem's inputs.
    operand : Operand
    moves_to : str
        Device that it is moved to with this call, to stay there; "" where it is not.
    saves : float
        Seconds that its copy saves this call, where one is used.
    lost : dict
        Device name -> (seconds that this call loses by its not being there, seconds that this and
        all calls since it was seen first do, seconds of the move).
    """

    position: int
    operand: Operand
    moves_to: str
    saves: float
    lost: dict[str, tuple[float, float, float]]

    def to_dict(self) -> dict[str, Any]:
        """Plain data, with the position from 1."""
        return {
            "operand": self.position + 1,
            "copies": list(self.operand.copies),
            "moves_to": self.moves_to or None,
            "lost": {name: {"seconds": s, "move": m} for name, (_, s, m) in self.lost.items()},
        }

    def __str__(self) -> str:
        o = self.operand
        found = [f"copy on {name}" for name in o.copies]
        if self.moves_to:
            found.append(f"moved to {self.moves_to} with this call, to stay there")
        for name, (_, lost, move) in self.lost.items():
            if name != self.moves_to:
                lost, move = readable(lost), readable(move)
                found.append(f"{lost} of {move} lost by not moving it to {name}")
        where = ", ".join(found) or "no copy"
        return f"kept: operand {self.position + 1}, {o.shape} {o.dtype.name}: {where}"


class _Way(NamedTuple):
    """A device where copies of some operands would make a call faster.

    Attributes
    ----------
    name : str
    now : Candidate
        Moves them, and runs there.
    seconds : float
        Of the call if the copies were there.
    parts : tuple of (position, seconds lost, seconds of the move)
        For each of the operands that are not there.
    """

    name: str
    now: Candidate
    seconds: float
    parts: tuple[tuple[int, float, float], ...]


class _Outlook(NamedTuple):
    """What copies would save a call, and what those that are used do save, by position."""

    plan: Plan
    ways: tuple[_Way, ...]
    saves: dict[int, float]


def placed(plan: Plan, problem: Problem, key: Any, priced: Priced) -> Plan:
    """A plan by which operands that do not change are moved where that is due.

    Parameters
    ----------
    plan : Plan
        Priced by the copies that are there.
    problem : Problem
        Its inputs tell what is known of those that do not change.
    key
        What the plan is remembered by.
    priced : callable
        ``priced(problem)`` gives the plan of the same call with other copies.
    """
    inputs = problem.inputs
    known = tuple([i for i, o in enumerate(inputs) if o.kept is not None])
    outlook = _outlooks.get((key, known))
    if outlook is None or outlook.plan is not plan:
        now = tables.generation()
        outlook = _outlook(plan, known, priced)
        tables.remember(_outlooks, (key, known), outlook, now)
    chosen: _Way | None = None
    moving: list[int] = []
    lost: dict[int, dict[str, tuple[float, float, float]]] = {i: {} for i in known}
    for way in outlook.ways:
        due = []
        for i, seconds, move in way.parts:
            before, calls = inputs[i].kept.lost.get(way.name, (0.0, 0))
            lost[i][way.name] = seconds, before + seconds, move
            if _is_due(inputs[i].kept, before + seconds, calls + 1, move):
                due.append(i)
        if due and len(due) < len(way.parts):
            due = _worth_it(plan, way, due, lost, priced)
        if due and (chosen is None or way.now.seconds < chosen.now.seconds):
            chosen, moving = way, due
    candidates = plan.candidates
    if chosen is not None:
        candidates = (chosen.now, *[c for c in candidates if c is not chosen.now])
        _count_from(chosen, outlook, lost)
    device = candidates[0].device if candidates else CPU
    return Plan(
        problem,
        candidates,
        plan.profile_name,
        keepable=plan.keepable,
        kept=tuple(
            [
                KeptOperand(
                    i, inputs[i], device * (i in moving), outlook.saves.get(i, 0.0), lost[i]
                )
                for i in known
            ]
        ),
    )


def may_pay(problem: Problem, priced: Priced) -> bool:
    """Whether copies of all inputs on one device would save more than it takes to look for them."""
    plan, everything = priced(problem), range(len(problem.inputs))
    seconds = plan.candidates[0].seconds
    names = dict.fromkeys([c.device for c in plan.candidates if _can_hold(c)])
    ways = [_there(problem, name, everything, priced) for name in names]
    return seconds is None or any(way and way.seconds + _LEAST_SAVED < seconds for way in ways)


def _count_from(chosen: _Way, outlook: _Outlook, lost: dict[int, Any]) -> None:
    """Where one device gets copies with this call, others lose what they would save beside it."""
    seconds = outlook.plan.candidates[0].seconds or 0.0
    for way in outlook.ways:
        if way is chosen:
            continue
        share = max(chosen.seconds - way.seconds, 0.0) / (seconds - way.seconds)
        for i, part, move in way.parts:
            before = lost[i][way.name][1] - part
            lost[i][way.name] = part * share, before + part * share, move


def _outlook(plan: Plan, known: Sequence[int], priced: Priced) -> _Outlook:
    seconds = plan.candidates[0].seconds if plan.candidates else None
    if seconds is None:
        return _Outlook(plan, (), {})
    inputs, chosen = plan.problem.inputs, plan.candidates[0].device
    ways, saves = [], {}
    for name in dict.fromkeys([c.device for c in plan.candidates if _can_hold(c)]):
        missing = [i for i in known if inputs[i].location == HOST and name not in inputs[i].copies]
        way = _way(plan, seconds, name, missing, priced) if missing else None
        if way is not None:
            ways.append(way)
    for i in known:
        if chosen in inputs[i].copies:
            without = priced(_copied(plan.problem, chosen, [i], False)).candidates[0].seconds
            saves[i] = max((without or seconds) - seconds, 0.0)
    return _Outlook(plan, tuple(ways), saves)


def _way(plan: Plan, seconds: float, name: str, missing: list[int], priced: Priced) -> _Way | None:
    there = _there(plan.problem, name, missing, priced)
    if there is None or there.seconds >= seconds:
        return None
    now = next(c for c in plan.candidates if c.device == name and _can_hold(c))
    each = [there]
    if len(missing) > 1:
        each = [_there(plan.problem, name, [i], priced) or now for i in missing]
    shares = [max(seconds - alone.seconds, 0.0) for alone in each]
    # What only all of them together save is shared by size.
    rest = max(seconds - there.seconds - sum(shares), 0.0)
    sizes = [plan.problem.inputs[i].nbytes for i in missing]
    parts = [
        (i, share + rest * size / sum(sizes), now.seconds - alone.seconds)
        for i, share, size, alone in zip(missing, shares, sizes, each, strict=True)
    ]
    return _Way(name, now, there.seconds, tuple(parts))


def _worth_it(
    plan: Plan, way: _Way, due: list[int], lost: dict[int, Any], priced: Priced
) -> list[int]:
    """Which of several operands are moved where not all are due: these; none where that is worth
    nothing without the others; all where it is due for all of them together."""
    alone = _there(plan.problem, way.name, due, priced)
    if alone is not None and alone.seconds < plan.candidates[0].seconds:
        return due
    everything = [lost[i][way.name] for i, _, _ in way.parts]
    if sum(one[1] for one in everything) < sum(one[2] for one in everything):
        return []
    return [i for i, _, _ in way.parts]


def _can_hold(candidate: Candidate) -> bool:
    """Whether it computes on one device with operands that were moved there as a whole."""
    device, implementation = candidate.device, candidate.implementation
    if device == CPU or device.endswith("*") or not _is_priced(candidate):
        return False
    return implementation is None or implementation.blocks != registry.ALWAYS


def _is_priced(candidate: Candidate) -> bool:
    return candidate.reason is None and candidate.seconds is not None


def _there(
    problem: Problem, name: str, positions: Sequence[int], priced: Priced
) -> Candidate | None:
    """The fastest way on a device that holds copies of some inputs; None where there is none."""
    candidates = priced(_copied(problem, name, positions)).candidates
    return next((c for c in candidates if c.device == name and _can_hold(c)), None)


def _copied(problem: Problem, name: str, positions: Sequence[int], there: bool = True) -> Problem:
    """A problem as if a device held copies of some inputs beside others, or none of these."""
    inputs = list(problem.inputs)
    for i in positions:
        others = tuple([other for other in inputs[i].copies if other != name])
        inputs[i] = inputs[i]._replace(copies=(*others, name) if there else others)
    return replace(problem, inputs=tuple(inputs))


def _is_due(operand: Kept, lost: float, calls: int, move: float) -> bool:
    """Whether an operand is to be moved, for what it lost in its calls, the present one too."""
    left = operand.uses - operand.calls
    if left > 0:  # as many calls as these are to come, this one among them
        return lost / calls * left > move
    return lost >= move * (1 - 1e-9)


def note(plan: Plan) -> None:
    """Count a call that is run by a plan: what it saves, or loses, by where copies are."""
    for _, operand, moves_to, saves, lost in plan.kept:
        known = operand.kept
        known.calls += 1
        for name, (seconds, _, _) in lost.items():
            if name != moves_to:
                before, calls = known.lost.get(name, (0.0, 0))
                known.lost[name] = before + seconds, calls + 1
        if saves:
            for copies, name in list(known.held.items()):
                if name == plan.candidates[0].device:
                    copies.used(known, saves)
        if moves_to:
            known.due.add(moves_to)
            known.lost.pop(moves_to, None)


@contextlib.contextmanager
def counted(plan: Plan) -> Iterator[None]:
    """`note` a call, and count what it loses by what it takes; it runs inside."""
    note(plan)
    begin = _clock()
    yield
    took, predicted = _clock() - begin, plan.candidates[0].seconds
    if not took or not predicted:
        return
    more = min(max(took / predicted, 1 / _MOST), _MOST) - 1.0
    for _, operand, moves_to, _, lost in plan.kept:
        known = operand.kept
        for name, (seconds, _, _) in lost.items():
            if name != moves_to and name in known.lost:
                before, calls = known.lost[name]
                known.lost[name] = before + more * seconds, calls
