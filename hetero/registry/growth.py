"""How seconds grow beyond the measured sizes, where they are a sum of products of dimensions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import prod

import numpy as np

Terms = tuple[tuple[int, ...], ...]
"""Products of dimensions, each by the dimensions' positions; () is what does not grow."""


def fitted(
    axes: Sequence[Sequence[float]], seconds: Sequence[float], terms: Terms
) -> Callable[[Sequence[float]], float]:
    """The sum of products that comes nearest to measured seconds, as a function of the dimensions.

    Parameters
    ----------
    axes : sequence of sequence of float
        Knots of each dimension.
    seconds : sequence of float
        Of each knot of the grid, the last dimension fastest. All are positive.
    terms : tuple of tuple of int

    Returns
    -------
    callable
        Seconds of dimensions, of positive coefficients: none less for more.

    Notes
    -----
    Least squares of relative errors; terms with negative coefficients are left out, the most
    negative one first.
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
