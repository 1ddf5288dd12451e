"""Products of host arrays cut into ranges of the batch, of rows or of columns."""

from __future__ import annotations

import numpy as np

from hetero.arrays import Operand
from hetero.ops.products.operands import build
from hetero.registry import Cut
from hetero.registry.problem import Problem


def cut(problem: Problem, parts: int) -> Cut | None:
    """How a product is cut; None where it has nothing to cut."""
    a, b = problem.inputs
    where = _axes(problem.function, a, b, problem.output.shape, parts)
    if where is None:
        return None
    along, axis, *axes = where

    def part(begin: int, end: int) -> Problem:
        operands = [_narrowed(o, i, end - begin) for o, i in zip((a, b), axes, strict=True)]
        made = build(problem.function, *operands, _narrowed(problem.output, axis, end - begin))
        assert made is not None  # as the whole
        return made

    def arrays(
        begin: int, end: int, whole: tuple[np.ndarray, ...], options: None
    ) -> tuple[np.ndarray, ...]:
        return tuple(_range(x, i, begin, end) for x, i in zip(whole, axes, strict=True))

    def output(begin: int, end: int, out: np.ndarray) -> np.ndarray:
        return _range(out, axis, begin, end)

    return Cut(along, problem.output.shape[axis], part, arrays, output)


def _axes(
    function: str, a: Operand, b: Operand, shape: tuple[int, ...], parts: int
) -> tuple[str, int, int | None, int | None] | None:
    """(what is cut, axis of the result, of A, of B), axes counted from the end; None: not that one.

    The longest batch axis where there is one, else rows of A or columns of B: of those that are
    enough for all parts the ones of the larger operand, because the other one goes to every part.
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
        return "batch", axis, *cuts
    choices = []
    if rows and shape[-core] > 1:
        choices.append((min(shape[-core], parts), a.nbytes, ("rows", -core, -2, None)))
    if columns and shape[-1] > 1:
        choices.append((min(shape[-1], parts), b.nbytes, ("columns", -1, None, -1)))
    return max(choices, key=lambda choice: choice[:2])[2] if choices else None


def _narrowed(operand: Operand, axis: int | None, extent: int) -> Operand:
    """A range of an operand along one axis."""
    if axis is None:
        return operand
    shape = list(operand.shape)
    shape[axis] = extent
    return operand._replace(shape=tuple(shape))


def _range(x: np.ndarray, axis: int | None, begin: int, end: int) -> np.ndarray:
    if axis is None:
        return x
    index = [slice(None)] * x.ndim
    index[axis] = slice(begin, end)
    return x[tuple(index)]
