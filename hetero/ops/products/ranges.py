"""Matrix products of host arrays cut into ranges of the batch, of rows and of columns.

A range of C is the product of a panel of rows of A and a panel of columns of B, each with the whole
of k: every element of C is summed as the whole product sums it.
"""

from __future__ import annotations

import numpy as np

from hetero.arrays import HOST, Operand, dense
from hetero.ops.products.operands import build
from hetero.registry import Cut
from hetero.registry.problem import Problem

Box = tuple[tuple[int, int], ...]
_MULTIPLE = 128  # rows and columns of the tiles that kernels compute


def cut(problem: Problem) -> Cut:
    """How a product of two or more axes is cut."""
    a, b, out = *problem.inputs, problem.output
    ndim = len(out.shape)
    places = [_places(a, ndim, ndim - 2), _places(b, ndim, ndim - 1)]
    every = {axis: axis for axis in range(ndim)}

    def part(box: Box, place: str) -> Problem:
        laid = _narrowed if place == HOST else _packed
        operands = [laid(o, where, box, place) for o, where in zip((a, b), places, strict=True)]
        made = build(problem.function, *operands, laid(out, every, box, place))
        assert made is not None  # as the whole
        return made

    def arrays(box: Box, whole: tuple[np.ndarray, ...]) -> tuple[np.ndarray, ...]:
        pairs = zip(whole, places, strict=True)
        return tuple(x[_index(x.ndim, where, box)] for x, where in pairs)

    names = (*["batch"] * (ndim - 2), "rows", "columns")
    return Cut(
        axes=tuple(zip(names, out.shape, strict=True)),
        needs=tuple(tuple(where) for where in places),
        problem=part,
        arrays=arrays,
        output=lambda box, out: out[_index(ndim, every, box)],
        steps=(*[1] * (ndim - 2), _MULTIPLE, _MULTIPLE),
        seconds=(4e-4, 4e-5),  # H100, 16 cores
        both=1.0,
    )


def _places(operand: Operand, ndim: int, core: int) -> dict[int, int]:
    """Axis of the result -> axis of an operand; without those along which it is used again."""
    missing = ndim - len(operand.shape)
    batch = {axis: axis - missing for axis in range(missing, ndim - 2)}
    batch = {axis: own for axis, own in batch.items() if operand.shape[own] > 1}
    return {**batch, core: core - missing}


def _shape(operand: Operand, where: dict[int, int], box: Box) -> tuple[int, ...]:
    shape = list(operand.shape)
    for axis, own in where.items():
        begin, end = box[axis]
        shape[own] = end - begin
    return tuple(shape)


def _narrowed(operand: Operand, where: dict[int, int], box: Box, place: str) -> Operand:
    """A part of an operand as it lies on the host."""
    return operand._replace(shape=_shape(operand, where, box))


def _packed(operand: Operand, where: dict[int, int], box: Box, place: str) -> Operand:
    """A part packed on a device, by columns where these are contiguous on the host."""
    part = dense(_shape(operand, where, box), operand.dtype, place)
    if min(operand.shape[-2:]) > 1 and abs(operand.strides[-1]) > abs(operand.strides[-2]):
        size = part.dtype.itemsize
        part = part._replace(strides=(*part.strides[:-2], size, size * part.shape[-2]))
    return part


def _index(ndim: int, where: dict[int, int], box: Box) -> tuple[slice, ...]:
    index = [slice(None)] * ndim
    for axis, own in where.items():
        index[own] = slice(*box[axis])
    return tuple(index)
