"""Copies of operands that do not change: promised by `keep`, when they pay, made, checked, lost."""

from __future__ import annotations

import hashlib
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
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

    It is moved once, as soon as that pays: in the call in which the time that was lost by its not
    being there reaches the time of the move. So whatever the calls, they take at most twice as long
    as had it been known beforehand which would come, as far as the predictions are right.

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
    To be read-only alone promises nothing, because the owner may set it back. Where `matvec` or
    `matmul` writes into A by ``out=``, the copies of A are dropped.

    `hetero.plan` shows where copies are, and what was lost by now; `hetero.memory` counts them as
    "kept operands". They go when the array dies, the least recently used first where a device runs
    short of memory, and all by `hetero.clear_memory`. They take at most 0.8 of a device's memory,
    and with a call under a memory limit (`hetero.use`) no more than that.

    With ``HETERO_CHECK_KEPT=1`` in the environment the operand's checksum is compared at each use
    of a copy, which takes about a second for a gigabyte; `hetero.errors.KeptOperandChanged` names
    an operand that was written to all the same.

    Of `solve_cg` only a dense matrix is kept. Work in blocks, and of several devices together,
    moves its operands as ever.

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
    if A.flags.writeable:
        A = A.view()
        A.flags.writeable = False
    kept.promise(A)
    if (known := kept.find(A)) is not None:
        caller = sys._getframe(1)
        known.line = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        known.coming = int(uses or 0)
    return A


# -- When a copy pays ------------------------------------------------------------------------------


def placed(plan: Plan, problem: Problem) -> Plan:
    """A plan by which operands that do not change are moved to a device where that is due.

    ``plan`` is priced by the copies that are there. They move in the call in which what it would
    save if they were there, times the calls so far or those to come, reaches the time of the move:
    in the second one if one call saves half of it. Whatever number of such calls there are, they
    take at most twice the time of the best decision (A. Karlin et al., Algorithmica 11 (1994),
    542-571: ski rental). Operands that a device lacks move together. Where the fastest one has them
    all, no other one is looked at.
    """
    inputs, moving = problem.inputs, ()
    chosen = plan.candidates[0] if plan.candidates else None
    lost: dict[int, Any] = {i: {} for i, o in enumerate(inputs) if o.kept is not None}
    is_there = chosen and all([chosen.device in inputs[i].copies for i in lost])  # noqa: C419
    for c in () if is_there else _on_devices(plan):
        away = {i: o for i, o in enumerate(inputs) if c.device not in (o.location, *o.copies)}
        each = _move(c) / max(sum([o.nbytes for o in away.values()]), 1)
        moves = {i: each * o.nbytes for i, o in away.items() if i in lost}
        move, reached = sum(moves.values()), 0.0
        saved = plan.candidates[0].seconds - (c.seconds - move)
        for i, its in moves.items() if move and saved > 0.0 else ():
            known, part = inputs[i].kept, saved * its / move
            lost[i][c.device] = part, part * (known.calls + 1), its
            reached += part * (known.coming or known.calls + 1)
        if reached >= move * (1 - 1e-9) > 0.0 and (not moving or c.seconds < chosen.seconds):
            chosen, moving = c, tuple(moves)
    others = [c for c in plan.candidates if c is not chosen]
    operands = [KeptOperand(i, inputs[i], chosen.device * (i in moving), lost[i]) for i in lost]
    candidates = (chosen, *others) if moving else plan.candidates
    return replace(plan, problem=problem, candidates=candidates, kept=tuple(operands))


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
    for c in plan.candidates:
        whole = c.implementation is None or c.implementation.blocks != registry.ALWAYS
        if whole and c.reason is None and c.seconds is not None:
            found.setdefault(c.device, c)
    return [c for name, c in found.items() if name != CPU and not name.endswith("*")]


def count(plan: Plan) -> None:
    """Count a call that is run by a plan: operands that were kept from it, or move with it."""
    for _, operand, moves_to, lost in plan.kept:
        known = operand.kept
        known.coming = max(known.coming - 1, 0)
        if moves_to:
            known.due.add(moves_to)
        known.calls = 0 if moves_to else known.calls + bool(lost)


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
    watch = known.watch
    unseen = not known.promised and (watch is None or device.is_pinned(array))
    if unseen or array.nbytes > room or (over > 0 and not shed):
        return None
    if over > 0:
        copies.shed(int(over) + 1)
    buffer, owner = move()
    space = Workspace(device, PURPOSE)
    space.hold(owner, getattr(owner, "size", array.nbytes))
    copy = Copy(buffer, space, array.nbytes)
    with kept.lock:
        if known.watch is watch and known.is_intact():  # else this call alone uses it
            copies.put(known, copy, device.name)
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
        for copies in [copies for copies, where in list(known.held.items()) if where == name]:
            copies.remove(known)


def _check(array: np.ndarray, known: Kept, device: str) -> None:
    """Raise `KeptOperandChanged` if an operand is not what it was when it was copied."""
    found = hashlib.blake2b(np.ascontiguousarray(array if array.flags.c_contiguous else array.T))
    before, known.checksum = known.checksum, found.digest()
    if before not in (None, known.checksum):
        known.drop()
        where = f", kept at {known.line}" * bool(known.line)
        raise KeptOperandChanged(
            f"an operand of shape {array.shape}, {array.dtype.name}{where}, was written to after "
            f"it was copied to {device}; hetero.keep promises that it does not change"
        )
