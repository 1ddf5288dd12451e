"""Copies of operands that do not change: promised by `keep`, when they pay, what holds them.

`course` tells what calls take that are made again and again on the same operands.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import HOST, Array, as_array, is_device_array, kept
from hetero.arrays.kept import FLOATS, Kept
from hetero.devices.base import Device
from hetero.devices.storage import Copy
from hetero.errors import readable
from hetero.pricing import places, pricing
from hetero.pricing.plan import KeptOperand, Plan
from hetero.registry import Problem

SHARE = 0.8  # of a device's memory that copies take at most


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
    A = A if isinstance(A, np.ndarray) else as_array(A)
    if is_device_array(A):
        return A
    if A.flags.writeable:
        A = A.view()
        A.flags.writeable = False
    kept.promise(A)
    if (known := kept.find(A)) is not None:
        caller = sys._getframe(1)
        known.line = f", kept at {caller.f_code.co_filename}:{caller.f_lineno}"
        known.coming = int(uses or 0)
    return A


def placed(plan: Plan, problem: Problem) -> Plan:
    """A plan by which operands that do not change are moved to a device where that is due.

    ``plan`` is priced by the copies that are there. Those that a device lacks are made in the call
    in which what one saves by them, times the calls since the last write, reaches the time of the
    move: in the second call where one saves half of it.
    """
    known = [(i, o) for i, o in enumerate(problem.inputs) if o.kept is not None]
    candidates, moves_to, lost = plan.candidates, "", {}
    chosen = candidates[0] if candidates else None
    is_there = chosen and all([chosen.device in o.copies for _, o in known])  # noqa: C419
    for c, saved, move in () if is_there else pricing.savings(candidates, problem.inputs):
        away = [o.kept for _, o in known if c.device not in o.copies]
        lost[c.device] = saved * max([one.coming or one.uses + 1 for one in away]), move
        is_due = lost[c.device][0] >= move * (1 - 1e-9)
        if is_due and (not moves_to or c.seconds < chosen.seconds):
            chosen, moves_to = c, c.device
    if moves_to:
        candidates = (chosen, *[c for c in candidates if c is not chosen])
    operands = [KeptOperand(i, o, moves_to * (moves_to not in o.copies), lost) for i, o in known]
    return replace(plan, problem=problem, candidates=candidates, kept=tuple(operands))


def count(plan: Plan) -> None:
    """Count a call that is run by a plan."""
    for _, operand, moves_to, _ in plan.kept:
        block = operand.kept
        block.coming = max(block.coming - 1, 0)
        block.uses = 0 if moves_to else block.uses + 1


def hold(
    device: Device, array: np.ndarray, known: Kept, watch: Any, copy: Copy, shed: bool = True
) -> None:
    """Let a device hold an array's copy from now on: where there is room, with ``shed`` that of
    other copies, and where nobody wrote to the array since ``watch`` was its watch."""
    storage = device.storage()
    room = SHARE * device.describe().get("memory_bytes", float("inf"))
    over = storage.copied() + array.nbytes - room
    unseen = not known.promised and device.is_pinned(array)  # a device may write there
    if unseen or array.nbytes > room or (over > 0 and not shed):
        return
    storage.shed(over)
    copy.nbytes = getattr(copy.owner, "size", copy.nbytes)  # a pool's are rounded up
    with kept.lock:
        if known.watch is watch and known.is_intact():  # else this call alone uses it
            known.held[storage] = copy


def held_result(device: Device, values: np.ndarray, copy: Copy, source: Any) -> np.ndarray:
    """A new result, or a view of it. Its buffer becomes a copy that the device holds, where earlier
    results of the same ``source``, hashable, were operands of later calls."""
    limited = places.memory_limit() is not None
    if limited or (known := kept.find(values, source=source)) is None:
        return values
    hold(device, values, known, known.watch, copy, shed=False)
    memory = values if values.base is None else values.base
    weakref.finalize(memory, known.release).atexit = False
    return values.view()  # `memory` dies with the last view of it


# -- Calls in a loop -------------------------------------------------------------------------------


class Step(NamedTuple):
    """Calls in a row that run alike."""

    first: int  # number of a call, from 1
    last: int
    device: str
    method: str
    seconds: float  # of each call, predicted
    moves: tuple[int, ...]  # operands that move to the device, to stay there, from 1


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
        lines = []
        for first, last, device, method, seconds, moves in self.steps:
            calls, each = (
                (f"call {first}", "") if first == last else (f"calls {first} to {last}", " each")
            )
            moved = f", operand {' and '.join(map(str, moves))} moves there" if moves else ""
            lines.append(f"   {calls}: {device} {method}, {readable(seconds)}{each}{moved}")
        total, without = readable(self.seconds), readable(self.without)
        return "\n".join([*lines, f"   in all {total}; {without} without copies that stay"])


def course(problem: Problem, calls: int, priced: Callable[[Problem], Plan]) -> Course | None:
    """The calls of a loop in which operands on the host of `LEAST_WATCHED` bytes and more stay the
    same: from the second call on they are known. None where a call has no price.

    ``priced(problem)`` gives a plan by the copies that its inputs have.
    """

    @cache
    def plan_with(copies: tuple[tuple[str, ...], ...]) -> Plan:
        pairs = zip(problem.inputs, copies, strict=True)
        inputs = tuple([o._replace(copies=c, kept=None) for o, c in pairs])
        return priced(replace(problem, inputs=inputs))

    known: dict[int, Kept] = {}
    each: list[Step] = []
    for number in range(1, calls + 1):
        inputs = list(problem.inputs)
        for i, one in known.items():
            inputs[i] = inputs[i]._replace(copies=one.copies, kept=one)
        plan = plan_with(tuple([o.copies for o in inputs]))
        plan = placed(plan, replace(problem, inputs=tuple(inputs)))
        chosen = plan.candidates[0] if plan.candidates else None
        if chosen is None or chosen.seconds is None:
            return None
        count(plan)
        moves = tuple([one.position + 1 for one in plan.kept if one.moves_to])
        for i in moves:
            known[i - 1].held[chosen.device] = Copy(chosen.device, None, None, 0)
        step = Step(number, number, chosen.device, chosen.method, chosen.seconds, moves)
        if each and each[-1][2:] == step[2:]:
            step = step._replace(first=each.pop().first)
        each.append(step)
        keeps = registry.operation(problem.operation).keeps(problem)
        if number == 1 and keeps and pricing.copies_pay(plan):
            for i, o in enumerate(problem.inputs):
                if o.location == HOST and o.nbytes >= kept.LEAST_WATCHED and o.dtype.char in FLOATS:
                    known[i] = Kept()
                    known[i].uses = 1
    seconds = sum(step.seconds * (step.last - step.first + 1) for step in each)
    return Course(tuple(each), seconds, calls * each[0].seconds)
