"""A product of operands of any number of axes, seen as one of stacks of matrices."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from hetero.ops.products.tiling import Index
from hetero.registry.problem import Problem


class Matrices(NamedTuple):
    """A product as one of stacks of matrices.

    Attributes
    ----------
    batch : tuple of int
    shape : (m, n, k)
    a_batch, b_batch : tuple of bool
        Which batch axes A and B have.
    by_columns : tuple of bool
        Of A, B and C: whether columns are contiguous, and not rows.
    """

    batch: Index
    shape: tuple[int, int, int]
    a_batch: tuple[bool, ...]
    b_batch: tuple[bool, ...]
    by_columns: tuple[bool, ...]


def missing_axes(problem: Problem) -> tuple[Index, Index, Index]:
    """The axes of a matrix, from the end, that A, B and the result lack."""
    if problem.function == "matvec":
        return (), (-1,), (-1,)
    a, b = (len(o.shape) for o in problem.inputs)
    rows, columns = (-2,) * (a == 1), (-1,) * (b == 1)
    return rows, columns, (*rows, *columns)


def stacked(array: np.ndarray, missing: Index, ndim: int = 0) -> np.ndarray:
    """A view with the missing axes, and in front with as many more as ``ndim`` asks for."""
    index: list[Any] = [slice(None)] * array.ndim
    for axis in missing:
        index.insert(len(index) + 1 + axis, None)
    return array[(None,) * (ndim - len(index)) + tuple(index)]


def matrices_of(problem: Problem) -> Matrices:
    """The matrices that a product's operands and result are."""
    nothing = np.empty(1, problem.dtype)
    laid = [
        stacked(as_strided(nothing, o.shape, o.strides), missing)
        for o, missing in zip((*problem.inputs, problem.output), missing_axes(problem), strict=True)
    ]
    a, b, c = laid
    batch = c.shape[:-2]
    has = [tuple(n > 1 for n in ((1,) * (c.ndim - x.ndim) + x.shape)[: len(batch)]) for x in (a, b)]
    by_columns = tuple(
        min(x.shape[-2:]) > 1 and abs(x.strides[-1]) > abs(x.strides[-2]) for x in laid
    )
    return Matrices(batch, (a.shape[-2], b.shape[-1], a.shape[-1]), *has, by_columns)
