"""Copies of operands that do not change: promised by `keep`, when they pay, made, checked, lost."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hetero import locks, registry
from hetero.arrays import Array, Operand, as_array, is_device_array, kept
from hetero.arrays.kept import Kept
from hetero.devices.base import Device
from hetero.devices.storage import Copy
from hetero.devices.workspace import Workspace
from hetero.errors import KeptOperandChanged
from hetero.pricing.plan import CPU, Candidate, KeptOperand, Plan
from hetero.registry.problem import Problem

PURPOSE = "kept operands"  # what `hetero.memory` counts the copies as
SHARE = 0.8  # of a device's memory that copies take at most
CHECK = "HETERO_CHECK_KEPT"
Move = Callable[[], tuple[Any, Any]]  # gives a new buffer and its owner
_LEAST_SAVED = 1e-4  # seconds; to look for copies, and to plan with them, takes as long
_making = locks.new()  # one copy at a time: they share the bus


def keep(A: Array, uses: int | None = None) -> Array:
    """An array that does not change, so that devices may hold copies of it for later calls.

    Calls with a NumPy array move it to a device each time, unless it is watched (docs/keeping.md).
    One that does not change is moved once, as soon as that pays: in the call in which the time that
    was lost by its not being there reaches the time of the move. So whatever the calls, they take
    at most twice as long as they would had it been known beforehand which calls would come, as far
    as the predictions are right.

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
        sees that. Use what is returned; views of it, such as its transpose, are kept too.

    Raises
    ------
    ValueError
        If uses is less than 1.
    TypeError
        For sparse matrices.

    Notes
    -----
    An array in the memory of a bytes object (``np.frombuffer``) needs no `keep`: nobody can write
    to it. ``writeable=False`` alone promises nothing, because the owner may set it back. Where
    `matvec` or `matmul` writes into A by ``out=``, the copies of A are dropped.

    `hetero.plan` of a call with such an array shows where copies are, and what was lost by now.
    `hetero.memory` counts copies as "kept operands". They are dropped when the array dies, and the
    least recently used first where a device runs short of memory; `hetero.clear_memory` drops them
    all. They never take more than 0.8 of a device's memory, and together with a call under a memory
    limit (`hetero.use`) no more than that.

    With ``HETERO_CHECK_KEPT=1`` in the environment the operand's checksum is compared at each use
    of a copy, which takes about a second for a gigabyte; where it was written to all the same, the
    call raises `hetero.errors.KeptOperandChanged`, which names it.

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
    caller = sys._getframe(1)
    line = f"{caller.f_code.co_filename}:{caller.f_lineno}" if os.environ.get(CHECK) else ""
    return kept.keep(A, int(uses or 0), line)


# -- When a copy pays ------------------------------------------------------------------------------


def placed(plan: Plan, problem: Problem) -> Plan:
    """A plan by which operands that do not change are moved to a device where that is due.

    That is in the call in which what it would save if they were there, times the calls so far,
    reaches the time of the move: in the second one if one call saves half of it. Whatever number of
    such calls there are, they take at most twice the time of the best decision (A. Karlin et al.,
    Algorithmica 11 (1994), 542-571: ski rental). Where it was said how many calls are to come,
    these count. Operands that a device lacks move together. Where the fastest one has them all, no
    other one is looked at.

    Parameters
    ----------
    plan : Plan
        Priced by the copies that are there.
    problem : Problem
        Its inputs tell what is known of those that do not change.
    """
    inputs, moving = problem.inputs, {}
    chosen = plan.candidates[0] if plan.candidates else None
    lost: dict[int, Any] = {i: {} for i, o in enumerate(inputs) if o.kept is not None}
    is_there = chosen and all([chosen.device in inputs[i].copies for i in lost])  # noqa: C419
    for c in () if is_there else _on_devices(plan):
        moves = [i for i, o in enumerate(inputs) if c.device not in (o.location, *o.copies)]
        each = _move(c) / max(sum([inputs[i].nbytes for i in moves]), 1)
        missing = {i: each * inputs[i].nbytes for i in moves if i in lost}
        move, reached = sum(missing.values()), 0.0
        saved = plan.candidates[0].seconds - (c.seconds - move)
        if not move or saved <= 0.0:
            continue
        for i, its in missing.items():
            part, calls = saved * its / move, inputs[i].kept.calls + 1
            lost[i][c.device] = part, part * calls, its
            reached += part * (inputs[i].kept.uses or calls)
        if reached >= move * (1 - 1e-9) and (not moving or c.seconds < chosen.seconds):
            chosen, moving = c, missing
    candidates = plan.candidates
    if moving:
        candidates = (chosen, *[c for c in candidates if c is not chosen])
    operands = [KeptOperand(i, inputs[i], chosen.device * (i in moving), lost[i]) for i in lost]
    name = plan.profile_name
    return Plan(problem, candidates, name, keepable=plan.keepable, kept=tuple(operands))


def may_pay(plan: Plan) -> bool:
    """Whether copies of all inputs on one device would save more than it takes to look for them."""
    least = plan.candidates[0].seconds
    return least is None or any(
        c.seconds - _move(c) + _LEAST_SAVED < least for c in _on_devices(plan)
    )


def _move(candidate: Candidate) -> float:
    """Seconds until the operands are on the device."""
    return candidate.terms.get("upload", 0.0) + candidate.terms.get("pack", 0.0)


def _on_devices(plan: Plan) -> list[Candidate]:
    """The fastest candidate of each device that computes alone, with operands moved as a whole."""
    found: dict[str, Candidate] = {}
    for c in plan.candidates if plan.candidates and plan.candidates[0].seconds is not None else ():
        if c.device in found or c.device == CPU or c.device.endswith("*"):
            continue
        whole = c.implementation is None or c.implementation.blocks != registry.ALWAYS
        if whole and c.reason is None and c.seconds is not None:
            found[c.device] = c
    return list(found.values())


def count(plan: Plan) -> None:
    """Count a call that is run by a plan: operands that were kept from it, or move with it."""
    for _, operand, moves_to, lost in plan.kept:
        known = operand.kept
        known.uses = max(known.uses - 1, 0)
        if moves_to:
            known.due.add(moves_to)
            known.calls = 0
        elif lost:
            known.calls += 1


# -- Copies ----------------------------------------------------------------------------------------


def staged(
    device: Device, array: np.ndarray, operand: Operand, move: Move
) -> tuple[Any, Any] | None:
    """(buffer, owner) of an operand's copy on a device, made now if that is due; None where there
    is none, and it is moved for this call alone."""
    known, copies = operand.kept, device.storage().copies
    copy = copies.find(known)
    # The plan counts on a copy that another context of the device holds: this one gets its own.
    if copy is None and (device.name in known.due or device.name in known.copies):
        with _making:
            known.due.discard(device.name)  # once: with too little room the call is tried without
            copy = copies.find(known) or hold(device, array, known, move)
    if copy is None:
        return None
    copy.use()
    if os.environ.get(CHECK):
        _check(array, known, device.name)
    return copy.buffer, copy.owner


def hold(
    device: Device, array: np.ndarray, known: Kept, move: Move, shed: bool = True
) -> Copy | None:
    """What ``move()`` gives, as the array's copy from now on; None where there is no room.

    With ``shed`` other copies make room. Writes to pinned memory are not seen: there is a copy
    only of what was promised.
    """
    copies, room = device.storage().copies, SHARE * device.describe().get("memory_bytes", math.inf)
    over = copies.nbytes() + array.nbytes - room
    if array.nbytes > room or (over > 0 and not shed):
        return None
    if known.watch is not None and device.is_pinned(array):
        return None
    if over > 0:
        copies.shed(int(over) + 1)
    buffer, owner = move()
    space = Workspace(device, PURPOSE)
    space.hold(owner, getattr(owner, "size", array.nbytes))
    copy = Copy(buffer, space, array.nbytes)
    if os.environ.get(CHECK):
        known.checksum = _checksum(array)
    copies.put(known, copy, device.name)
    if not known.is_intact():  # since the call began: this call alone uses it
        known.drop()
    return copy


def shed_beyond(device: Device, limit: int, operands: Sequence[Operand]) -> None:
    """Let go of copies for which a call with a limit of bytes leaves no room."""
    with device.active():
        copies = device.storage().copies
        needed = sum(o.nbytes for o in operands if o.location != device.name)
        own = sum(copy.nbytes for o in operands if (copy := copies.find(o.kept)) is not None)
        over = copies.nbytes() - own + min(needed, limit) - limit
        if over > 0 and copies.nbytes():
            device.shed(over)


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
        where = f", kept at {known.line}" if known.line else ""
        raise KeptOperandChanged(
            f"an operand of shape {known.shape}, {known.dtype.name}{where}, was written to after "
            f"it was copied to {device}; hetero.keep promises that it does not change"
        )
