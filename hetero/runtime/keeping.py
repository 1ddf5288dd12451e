"""Operands that are used again: where copies of them are held, and when they are moved there.

Whether a copy pays depends on calls that nobody knows yet. It is the ski rental problem, solved by
Karlin's rule: an operand is moved in the call in which the time lost by its not being there reaches
the time of the move. Whatever the calls, that costs at most twice what the best decision costs,
which is known only afterwards; with n devices of different speed at most n + 1 times. Where it is
said how often an operand is going to be used, the first call decides.

References
----------
A. R. Karlin, M. S. Manasse, L. Rudolph, D. D. Sleator, "Competitive snoopy caching", Algorithmica 3
(1988), 79-119. A. R. Karlin, M. S. Manasse, L. A. McGeoch, S. Owicki, "Competitive randomized
algorithms for nonuniform problems", Algorithmica 11 (1994), 542-571.
"""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hetero.arrays import HOST, Operand, as_array, is_device_array, kept
from hetero.arrays.kept import Kept
from hetero.devices.base import Device
from hetero.devices.copies import Copy
from hetero.devices.workspace import Workspace
from hetero.errors import KeptOperandChanged
from hetero.runtime.plan import CPU, Candidate, KeptOperand, Plan
from hetero.runtime.problem import Problem

PURPOSE = "kept operands"  # what `hetero.memory` counts the copies as
SHARE = 0.8  # of a device's memory that copies take at most
CHECK = "HETERO_CHECK_KEPT"
Priced = Callable[[Problem], Plan]


def keep(A: Any, uses: int | None = None) -> Any:
    """An array that does not change, so that devices may hold copies of it for later calls.

    Calls with a NumPy array move it to a device each time. One that does not change is moved once,
    as soon as that pays: in the call in which the time that was lost by its not being there reaches
    the time of the move. So whatever the calls, they take at most twice as long as they would
    had it been known beforehand which calls would come, as far as the predictions are right.

    Parameters
    ----------
    A : array_like
        float32 or float64; of other dtypes, and of arrays below 4096 bytes, no copies are made.
        An array on a device is given back as it is.
    uses : int, optional
        How many calls will use it. Then the first call decides.

    Returns
    -------
    numpy.ndarray
        A itself where it is read-only, else a read-only view of it. Until it dies, A's values must
        not change: it cannot be written to, but A can, and nothing but the check (see Notes)
        notices. Use what is returned; views of it, such as its transpose, are kept too.

    Raises
    ------
    ValueError
        If uses is less than 1.
    TypeError
        For sparse matrices.

    Notes
    -----
    An array whose memory nobody can write to needs no `keep`: one that owns its memory and has
    ``writeable`` set to False, its views, and those of bytes objects. Where it is made writeable
    again, changed, and set back between two calls, the same holds as for A above.

    `hetero.plan` of a call with such an array shows where copies are, and what was lost by now.
    `hetero.memory` counts copies as "kept operands". They are dropped when the array dies, and the
    least valuable first where a device runs short of memory; `hetero.clear_memory` drops them all.
    They never take more than 0.8 of a device's memory.

    With ``HETERO_CHECK_KEPT=1`` in the environment the operand's checksum is compared at each use
    of a copy, which takes as long as reading it; where it was written to all the same, the call
    raises `hetero.errors.KeptOperandChanged`, which names it.

    Of `solve_cg` only a dense matrix is kept. Work that is cut into blocks, and work of several
    devices together, moves its operands as ever.

    See Also
    --------
    hetero.plan, hetero.memory, hetero.clear_memory

    Examples
    --------
    >>> import numpy as np, hetero
    >>> A = hetero.keep(np.eye(64))
    >>> A.flags.writeable
    False
    >>> float(sum(hetero.matvec(A, np.ones(64))[0] for _ in range(3)))
    3.0
    """
    if uses is not None and not (isinstance(uses, (int, np.integer)) and uses >= 1):
        raise ValueError(f"uses must be a whole number from 1 on, got {uses!r}")
    if hasattr(A, "tocsr"):
        raise TypeError(f"keep takes dense arrays, got {type(A).__name__}")
    if not isinstance(A, np.ndarray):
        A = as_array(A)
        if is_device_array(A):
            return A
    return kept.keep(A, int(uses or 0), _caller() if os.environ.get(CHECK) else "")


def _caller() -> str:
    """Where in the program `keep` was called."""
    frame = sys._getframe(2)
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"


def placed(plan: Plan, inputs: Sequence[Operand], priced: Priced) -> Plan:
    """A plan by which operands that do not change are moved where that is due.

    Parameters
    ----------
    plan : Plan
        Priced by the copies that are there.
    inputs : sequence of Operand
        The problem's, with what is known of those that do not change.
    priced : callable
        ``priced(problem)`` gives the plan of the same call with other copies.
    """
    known = [i for i, o in enumerate(inputs) if o.kept is not None and o.location == HOST]
    seconds = plan.candidates[0].seconds if plan.candidates else None
    if not known or seconds is None:
        return plan
    problem = replace(plan.problem, inputs=tuple(inputs))
    loses: dict[int, dict[str, float]] = {i: {} for i in known}
    lost: dict[int, dict[str, tuple[float, float]]] = {i: {} for i in known}
    best: tuple[float, Candidate, list[int]] | None = None
    for name in dict.fromkeys(c.device for c in plan.candidates if _can_hold(c)):
        missing = [i for i in known if name not in inputs[i].copies]
        there = _there(plan.problem, name, missing, priced)
        if there is None or there.seconds >= seconds:
            continue
        now = next(c for c in plan.candidates if c.device == name and _can_hold(c))
        each = (
            [there]
            if len(missing) == 1
            else [_there(plan.problem, name, [i], priced) or now for i in missing]
        )
        shares = [max(seconds - alone.seconds, 0.0) for alone in each]
        rest = max(seconds - there.seconds - sum(shares), 0.0)  # what only all together save
        nbytes = sum(inputs[i].nbytes for i in missing)
        due = []
        for i, share, alone in zip(missing, shares, each, strict=True):
            before, calls = inputs[i].kept.lost.get(name, (0.0, 0))
            share += rest * inputs[i].nbytes / nbytes
            move = now.seconds - alone.seconds
            loses[i][name], lost[i][name] = share, (before + share, move)
            if _is_due(inputs[i].kept, before + share, calls + 1, move):
                due.append(i)
        if due and len(due) < len(missing):
            alone = _there(plan.problem, name, due, priced)
            if alone is None or alone.seconds >= seconds:  # which is worth nothing without others
                total = [sum(lost[i][name][part] for i in missing) for part in (0, 1)]
                due = missing if total[0] >= total[1] else []
        if due and (best is None or there.seconds < best[0]):
            best = there.seconds, now, due
    moving = []
    if best is not None:
        _, chosen, moving = best
        others = tuple(c for c in plan.candidates if c is not chosen)
        plan = replace(plan, candidates=(chosen, *others))
    device = plan.candidates[0].device
    found = []
    for i in known:
        saves = 0.0
        if device in inputs[i].copies:
            without = priced(_copied(plan.problem, device, [i], False)).candidates[0].seconds
            saves = max((without or 0.0) - seconds, 0.0)
        to = device if i in moving else ""
        found.append(KeptOperand(i, inputs[i], to, saves, loses[i], lost[i]))
    return replace(plan, problem=problem, kept=tuple(found))


def _is_priced(candidate: Candidate) -> bool:
    return candidate.reason is None and candidate.seconds is not None


def _can_hold(candidate: Candidate) -> bool:
    """Whether it moves operands to one device before it computes."""
    device = candidate.device
    alone = device != CPU and not device.endswith("*")
    return alone and _is_priced(candidate) and "upload" in candidate.terms


def _copied(problem: Problem, name: str, positions: Sequence[int], there: bool = True) -> Problem:
    """A problem as if a device held copies of some inputs beside others, or none of these."""
    inputs = list(problem.inputs)
    for i in positions:
        others = tuple([other for other in inputs[i].copies if other != name])
        inputs[i] = inputs[i]._replace(copies=(*others, name) if there else others)
    return replace(problem, inputs=tuple(inputs))


def _there(
    problem: Problem, name: str, positions: Sequence[int], priced: Priced
) -> Candidate | None:
    """The fastest way on a device that holds copies of some inputs; None where there is none."""
    candidates = priced(_copied(problem, name, positions)).candidates
    return next((c for c in candidates if c.device == name and _is_priced(c)), None)


def _is_due(operand: Kept, lost: float, calls: int, move: float) -> bool:
    """Whether an operand is to be moved, for what it lost in so many calls, the present one too."""
    left = operand.uses - operand.calls
    if left > 0:  # as many calls as these are to come, this one among them
        return lost / calls * left > move
    return lost >= move * (1 - 1e-9)


def note(plan: Plan) -> None:
    """Count a call that is run by a plan: what it saves, or loses, by where copies are."""
    for _, operand, moves_to, saves, loses, _ in plan.kept:
        known = operand.kept
        known.calls += 1
        for name, seconds in loses.items():
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


def staged(
    device: Device,
    array: np.ndarray,
    operand: Operand,
    move: Callable[[], tuple[Any, Any]],
) -> tuple[Any, Any] | None:
    """(buffer, owner) of an operand's copy on a device, made now if that is due; None where there
    is none, and it is moved for this call alone.

    ``move()`` gives a new one.
    """
    known, copies = operand.kept, device.storage().copies
    copy = copies.find(known)
    if copy is None and device.name in known.due:
        with known.lock:
            known.due.discard(device.name)  # once: with too little room the call is tried without
            copy = copies.find(known) or _made(device, array, known, move)
    if copy is None:
        return None
    if os.environ.get(CHECK):
        _check(array, known, device.name)
    return copy.buffer, copy.owner


def _made(
    device: Device, array: np.ndarray, known: Kept, move: Callable[[], tuple[Any, Any]]
) -> Copy | None:
    """A new copy, for which others make room."""
    copies = device.storage().copies
    room = SHARE * device.describe().get("memory_bytes", float("inf"))
    over = copies.nbytes() + array.nbytes - room
    if array.nbytes > room:
        return None
    if over > 0:
        copies.shed(int(over) + 1)
    space = Workspace(device, PURPOSE)
    buffer, owner = move()
    space.hold(owner, getattr(owner, "size", array.nbytes))
    copy = Copy(buffer, space, array.nbytes)
    if os.environ.get(CHECK):
        known.checksum = _checksum(array)
    copies.put(known, copy, device.name)
    return copy


def lose(name: str) -> None:
    """A device failed: what it holds copies of is not relied on any longer."""
    for known in kept.every():
        for copies, where in list(known.held.items()):
            if where == name:
                copies.remove(known)


def _checksum(array: np.ndarray) -> bytes:
    found = hashlib.blake2b(digest_size=16)
    found.update(np.ascontiguousarray(array if array.flags.c_contiguous else array.T))
    return found.digest()


def _check(array: np.ndarray, known: Kept, device: str) -> None:
    """Raise `KeptOperandChanged` if an operand is not what it was when it was copied."""
    if known.checksum is None:
        known.checksum = _checksum(array)
    elif known.checksum != _checksum(array):
        known.drop()
        known.checksum = None
        where = f", kept at {known.told}" if known.told else ""
        raise KeptOperandChanged(
            f"an operand of shape {known.shape}, {known.dtype.name}{where}, was written to after "
            f"it was copied to {device}; what does not change is promised by hetero.keep, or by "
            "writeable=False"
        )
