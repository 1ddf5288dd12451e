"""How seconds grow with work: bounds for measured ones, and a sum of products beyond them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

_SLACK = 3.0  # caches, threads and lengths that suit an algorithm bend true curves by less

Terms = tuple[tuple[int, ...], ...]
"""Products of dimensions, each by the dimensions' positions; () is what does not grow."""


def bounded(
    axes: Sequence[Sequence[float]],
    seconds: Any,
    powers: Sequence[int],
    slack: float = _SLACK,
) -> np.ndarray:
    """Seconds of all knots of a grid, those shortened that the other knots rule out.

    More work takes no less time, and n times the work at most n times as long. Both hold within a
    factor: a knot beyond it was measured while other load took the processors.

    Parameters
    ----------
    axes : sequence of sequence of float
        Knots of each dimension, increasing.
    seconds : array_like
        Of each knot, the last dimension fastest; infinite where it is not known.
    powers : sequence of int
        Of each dimension in the work: 2 of a dense matrix's rows, 0 where seconds do not grow.
    slack : float
        The factor.
    """
    table = np.reshape(np.asarray(seconds), [len(axis) for axis in axes])
    if min(table.min(), *map(min, axes)) <= 0.0:
        raise ValueError("a grid's knots and seconds must be positive")
    by_less = by_more = table  # the most by what knots of less work take, and of more
    for number, (axis, power) in enumerate(zip(axes, powers, strict=True)):
        along = [-1 if n == number else 1 for n in range(len(axes))]
        work = np.reshape(np.asarray(axis, float) ** power, along)
        by_less = np.minimum.accumulate(by_less / work, number) * work
        by_more = np.flip(np.minimum.accumulate(np.flip(by_more, number), number), number)
    return np.minimum(table, slack * np.minimum(by_less, by_more)).ravel()


def fitted(
    axes: Sequence[Sequence[float]], seconds: Sequence[float], terms: Terms
) -> Callable[[Sequence[float]], float]:
    """The sum of products that comes nearest to measured seconds, as a function of the dimensions:
    none less for more.

    ``axes`` are the knots of each dimension, ``seconds`` those of each knot of the grid, the last
    dimension fastest; all are positive. Least squares of relative errors; terms with negative
    coefficients are left out, the most negative one first.
    """
    grid = np.array([_products(dims, terms) for dims in product(*axes)])
    rows = grid / np.array(seconds)[:, None]
    largest = rows.max(axis=0)  # of a column: then a solver's tolerance is the same for each
    left = list(range(len(terms)))
    while True:
        solution = np.linalg.lstsq(rows[:, left] / largest[left], np.ones(len(rows)), rcond=None)[0]
        if solution.min() >= 0.0:
            break
        left.pop(int(solution.argmin()))
    kept, coefficients = tuple(terms[i] for i in left), solution / largest[left]

    def predicted(dims: Sequence[float]) -> float:
        return float(np.dot(coefficients, _products(dims, kept)))

    return predicted


def _products(dims: Sequence[float], terms: Terms) -> list[float]:
    return [float(prod([dims[axis] for axis in term])) for term in terms]
