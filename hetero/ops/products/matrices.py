"""A product of two or more axes, seen as one of stacks of matrices."""

from __future__ import annotations

from typing import NamedTuple

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


def matrices_of(problem: Problem) -> Matrices:
    """The matrices that a product's operands and result are."""
    nothing = np.empty(1, problem.dtype)
    laid = [as_strided(nothing, o.shape, o.strides) for o in (*problem.inputs, problem.output)]
    a, b, c = laid
    batch = c.shape[:-2]
    has = [tuple(n > 1 for n in ((1,) * (c.ndim - x.ndim) + x.shape)[: len(batch)]) for x in (a, b)]
    by_columns = tuple(
        min(x.shape[-2:]) > 1 and abs(x.strides[-1]) > abs(x.strides[-2]) for x in laid
    )
    return Matrices(batch, (a.shape[-2], b.shape[-1], a.shape[-1]), *has, by_columns)
