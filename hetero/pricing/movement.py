"""Prices of moving operands to the device that computes, and the result from it.

A result that stays is priced by where it is expected to be used next; see `hetero.moving.results`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hetero.arrays import HOST, Operand
from hetero.devices import at_once
from hetero.host.copying import staging
from hetero.pricing.plan import CPU, Candidate, Plan
from hetero.profile import PAGEABLE, Profile
from hetero.registry import ALWAYS
from hetero.registry.problem import Problem

Terms = dict[str, float]
ALL_AT_ONCE = "all at once"  # links of several devices
_LEAST_SAVED = 1e-4  # seconds; to look for copies, and to plan with them, takes as long
UPLOAD_NEXT = "upload next"  # of a result on the host that a device is expected to use next


def of(problem: Problem, name: str, constants: Profile) -> tuple[Terms, Terms]:
    """Seconds of moves for computing on a device: terms before and after computing."""
    here = HOST if name == CPU else name
    before: Terms = {}
    after: Terms = upload_next(problem, constants) if here == HOST else {}
    if here == HOST and problem.device is None:
        return before, after
    staged: list[tuple[int, float]] = []  # bytes, and seconds alone

    def move(terms: dict[str, float], operand: Operand, source: str, target: str) -> None:
        if source == target or target in operand.copies:
            return
        if source != HOST:  # device to device goes through the host
            memory = operand.memory if target == HOST else PAGEABLE
            term = constants.link(source, "download", memory)(operand.nbytes)
            terms["download"] = terms.get("download", 0.0) + term
        if target != HOST:
            is_packed = source == HOST and terms is before and not operand.is_dense()
            memory = PAGEABLE if is_packed or source != HOST else operand.memory
            term = constants.link(target, "upload", memory)(operand.nbytes)
            is_staged = operand.nbytes >= constants.least_staged(target, "upload")
            if is_staged and memory == PAGEABLE and terms is before:
                staged.append((operand.nbytes, term))
            if is_packed:
                packing = constants.pack(operand.nbytes)
                if is_staged:  # packed by the threads that copy
                    packing = max(packing / staging.usual_threads() - term, 0.0)
                terms["pack"] = terms.get("pack", 0.0) + packing
            terms["upload"] = terms.get("upload", 0.0) + term

    for operand in problem.inputs:
        move(before, operand, operand.location, here)
    if len(staged) > 1:  # at once: between one after the other and one copy of them all
        together = constants.link(here, "upload", PAGEABLE)(sum(n for n, _ in staged))
        before["upload"] += 0.5 * min(together - sum(seconds for _, seconds in staged), 0.0)
    if problem.next_device is None:
        move(after, problem.output, here, problem.output.location)
    return before, after


def is_staged(problem: Problem, name: str, constants: Profile) -> bool:
    """Whether some operand or the result goes through pinned buffers (`host.copying.staging`)."""
    here = HOST if name == CPU else name
    moves = [(operand, operand.location, here) for operand in problem.inputs]
    if problem.next_device is None:
        moves.append((problem.output, here, problem.output.location))
    return any(
        operand.nbytes >= constants.least_staged(*link)
        for operand, source, target in moves
        if source != target and target not in operand.copies and not operand.pinned
        for link in ((source, "download"), (target, "upload"))
        if link[0] != HOST
    )


def upload_next(problem: Problem, constants: Profile) -> Terms:
    """Seconds to upload a result on the host to the device that is expected to use it next; empty
    where that, or its link, is not known."""
    if problem.next_device is None:
        return {}
    try:
        link = constants.link(problem.next_device, "upload")
    except KeyError:
        return {}
    return {UPLOAD_NEXT: link(problem.output.nbytes)}


def to_all(problem: Problem, info: dict[str, Any], constants: Profile) -> tuple[Terms, Terms]:
    """Seconds to move shares of the operands from the host to several devices, which ``info``
    describes as `groups` does, and the result back; KeyError if the links are not known."""
    members = info["members"]

    def seconds(direction: str, operand: Operand) -> float:
        nbytes = operand.nbytes // len(members)
        if nbytes < at_once.LEAST:  # one after the other
            return len(members) * constants.link(members[0], direction)(nbytes)
        return constants.at_once(info["constants"]).link(members[0], direction)(nbytes)

    before = sum(seconds("upload", operand) for operand in problem.inputs)
    return {"upload": before}, {"download": seconds("download", problem.output)}


def total(one: Terms, other: Terms) -> Terms:
    """The seconds of both, term by term."""
    return one | {term: one.get(term, 0.0) + seconds for term, seconds in other.items()}


def by_way_of_host(problem: Problem, constants: Profile) -> dict[str, float]:
    """Seconds of "download" and "upload" around a computation of device operands from host copies;
    empty where nothing is moved, and where the links are not known."""
    if problem.device is None:
        return {}
    try:
        before, after = of(problem, CPU, constants)
    except KeyError:
        return {}
    return {**before, **after}


def dispatch(problem: Problem, name: str, constants: Profile) -> float:
    """Seconds of the host's own work: staging for a device, or the way back from one."""
    if name != CPU:
        return constants.dispatch(name, "device" if problem.device else "host")
    there = problem.device
    return constants.dispatch(there, "detour") if there else 0.0


def savings(
    candidates: Sequence[Candidate], inputs: Sequence[Operand], known: bool = True
) -> Iterator[tuple[Candidate, float, float]]:
    """Of devices that compute alone, with operands moved as a whole, the fastest candidates that
    would save time if the inputs on the host were there, or those that are known not to change: the
    seconds saved, and those of the move. The first of ``candidates`` is the chosen one."""
    found = {CPU}
    for c in candidates:
        in_blocks = c.implementation is not None and c.implementation.blocks == ALWAYS
        is_out = c.seconds is None or c.reason is not None or c.device[-1] == "*"
        if in_blocks or is_out or c.device in found:
            continue
        found.add(c.device)
        away = [o for o in inputs if c.device not in (o.location, *o.copies)]
        moved = [o.nbytes for o in away if (o.kept is not None if known else o.location == HOST)]
        part = sum(moved) / max(sum([o.nbytes for o in away]), 1)
        move = part * (c.terms.get("upload", 0.0) + c.terms.get("pack", 0.0))
        saved = candidates[0].seconds - (c.seconds - move)
        if move > 0.0 and saved > 0.0:
            yield c, saved, move


def copies_pay(plan: Plan) -> bool:
    """Whether copies of all inputs on one device would save more than it takes to look for them."""
    found = savings(plan.candidates, plan.problem.inputs, known=False)
    return any(saved > _LEAST_SAVED for _, saved, _ in found)
