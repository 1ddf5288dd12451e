"""Products that a device has no room for, done there in pieces of batch, rows or columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import HOST, describe
from hetero.errors import MethodNotAvailable
from hetero.ops.products.operands import build
from hetero.runtime import planner

_SMALLEST = 1 << 20  # bytes of operands and result; a device without room for them has none


def halves(plan: planner.Plan, call: Any) -> Any:
    """The result of a host call in two halves, each as a whole or in halves again.

    Parameters
    ----------
    plan : Plan
        Of the whole; its device does the halves.
    call : hetero.runtime.execution.Call

    Returns
    -------
    array or None
        None where the call is small, has nothing to cut, or uses arrays on devices, and where the
        device is no longer used.

    Raises
    ------
    DeviceError
        If a half fails too. ``out`` may be half written then, unless it overlaps an operand.
    """
    problem = plan.problem
    function, result = problem.function, problem.output
    operands = (*call.operands, result)
    if any(o.location != HOST for o in operands) or sum(o.nbytes for o in operands) < _SMALLEST:
        return None
    cut = _cut(function, *call.operands, result.shape)
    if cut is None:
        return None
    from hetero.runtime import execution

    made = call.out
    if made is None or any(np.may_share_memory(made, x) for x in call.arrays):
        made = np.empty(result.shape, result.dtype)
    axis, *axes = cut
    middle = result.shape[axis] // 2
    for part in (slice(None, middle), slice(middle, None)):
        arrays = tuple(
            x if along is None else x[_along(x.ndim, along, part)]
            for x, along in zip(call.arrays, axes, strict=True)
        )
        out = made[_along(made.ndim, axis, part)]
        inputs, target = tuple(map(describe, arrays)), describe(out)
        half = build(function, *inputs, target)
        assert half is not None
        try:
            chosen = planner.plan(half, plan.chosen.device, plan.chosen.method)
        except MethodNotAvailable:
            return None
        if chosen.chosen.device != plan.chosen.device:  # which was set aside meanwhile
            return None
        execution.attempt(chosen, execution.Call(arrays, inputs, out, target, pieces=halves))
    if call.out is None or made is call.out:
        return made
    call.out[...] = made
    return call.out


def _cut(
    function: str, a: Any, b: Any, shape: tuple[int, ...]
) -> tuple[int, int | None, int | None] | None:
    """(axis of the result, of A, of B) to cut along, counted from the end; None: not that operand.

    The longest batch axis where there is one, else rows of A or columns of B, whichever operand is
    the larger.
    """
    a_core = min(len(a.shape), 2)
    b_core = 1 if function == "matvec" else min(len(b.shape), 2)
    rows = a_core == 2
    columns = function == "matmul" and b_core == 2
    core = rows + columns
    batch = [(n, i - len(shape)) for i, n in enumerate(shape[: len(shape) - core]) if n > 1]
    if batch:
        _, axis = max(batch)
        cuts = []
        for operand, own in ((a, a_core), (b, b_core)):
            along = axis + core - own
            there = -along <= len(operand.shape) and operand.shape[along] > 1
            cuts.append(along if there else None)
        return axis, *cuts
    choices = []
    if rows and shape[-core] > 1:
        choices.append((a.nbytes, (-core, -2, None)))
    if columns and shape[-1] > 1:
        choices.append((b.nbytes, (-1, None, -1)))
    return max(choices, key=lambda choice: choice[0])[1] if choices else None


def _along(ndim: int, axis: int, part: slice) -> tuple[slice, ...]:
    """The index that takes a part along one axis, counted from the end."""
    index = [slice(None)] * ndim
    index[axis] = part
    return tuple(index)
