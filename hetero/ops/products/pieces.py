"""Matrix products of host arrays cut into ranges of the batch, of rows or of columns."""

from __future__ import annotations

import numpy as np

from hetero.arrays import Operand
from hetero.ops.products.operands import build
from hetero.registry import Cut
from hetero.registry.problem import Problem


def cut(problem: Problem, parts: int) -> Cut:
    """How a product is cut."""
    a, b = problem.inputs
    along, axis, *axes = _axes(a, b, problem.output.shape, parts)

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
    a: Operand, b: Operand, shape: tuple[int, ...], parts: int
) -> tuple[str, int, int | None, int | None]:
    """(what is cut, axis of the result, of A, of B), axes counted from the end; None: not that one.

    The longest batch axis where there is one, else rows of A or columns of B: of those that are
    enough for all parts the ones of the larger operand, because the other one goes to every part.
    """
    batch = [(n, i - len(shape)) for i, n in enumerate(shape[:-2]) if n > 1]
    if batch:
        _, axis = max(batch)
        cuts = [axis if -axis <= len(o.shape) and o.shape[axis] > 1 else None for o in (a, b)]
        return "batch", axis, *cuts
    rows = min(shape[-2], parts), a.nbytes
    columns = min(shape[-1], parts), b.nbytes
    return ("rows", -2, -2, None) if rows >= columns else ("columns", -1, None, -1)


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
