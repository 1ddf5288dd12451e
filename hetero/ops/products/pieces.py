"""Products that a device has no room for, cut into halves of batch, rows or columns."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import describe
from hetero.ops.products.operands import build
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Piece


def halves(
    problem: Problem, arrays: tuple[np.ndarray, ...], options: None, out: np.ndarray
) -> list[Piece] | None:
    """A product of host arrays as two; None where there is nothing to cut."""
    cut = _cut(problem.function, *problem.inputs, out.shape)
    if cut is None:
        return None
    axis, *axes = cut
    middle = out.shape[axis] // 2
    found = []
    for part in (slice(None, middle), slice(middle, None)):
        operands = tuple(
            x if along is None else x[_along(x.ndim, along, part)]
            for x, along in zip(arrays, axes, strict=True)
        )
        result = out[_along(out.ndim, axis, part)]
        half = build(problem.function, *map(describe, operands), describe(result))
        assert half is not None
        found.append(Piece(half, operands, result))
    return found


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
