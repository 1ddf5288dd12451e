"""Random convolutions for `hetero verify`: sizes, modes, boundaries and filters of any kind."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np

from hetero.arrays import HOST, describe, spec
from hetero.ops.convolve2d.operands import BOUNDARIES, LARGEST_DOWNLOADED, MODES, described, window
from hetero.ops.convolve2d.request import Filter, Request
from hetero.runtime import execution, planner
from hetero.runtime.problem import DEVICE_DTYPES, Problem

_LARGEST_FILTER = 129


def random_problem(draw: random.Random, on: str, largest: int) -> Problem:
    """Image and filter with log-uniform extents, about as high as wide; every third of rank 1."""
    dtype = draw.choice(DEVICE_DTYPES)

    def shape(least: int, most: int) -> tuple[int, int]:
        size = least * (most / least) ** draw.random()
        skew = draw.choice((1.0, 1.0, draw.uniform(0.5, 2.0)))
        return max(round(size * skew), 1), max(round(size / skew), 1)

    image = shape(16, largest)
    filter = tuple(min(f, n) for f, n in zip(shape(1, _LARGEST_FILTER), image, strict=True))
    mode, boundary = draw.choice(MODES), draw.choice(BOUNDARIES)
    there = on if filter[0] * filter[1] > LARGEST_DOWNLOADED else HOST
    low = draw.random() < 1 / 3 and filter[0] * filter[1] > sum(filter) and there == HOST
    found = window(image, filter, mode, boundary, rank=int(low))
    first, second = spec(image, dtype, on=on).operand(), spec(filter, dtype, on=there).operand()
    return described(first, second, np.dtype(dtype), found)


def values(problem: Problem, block: np.ndarray) -> np.ndarray:
    """A filter of the problem's rank, its values from a block of random numbers."""
    operand = problem.inputs[1]
    fh, fw = operand.shape
    if problem.window.rank:
        return np.outer(0.6 + block[:fh], 0.6 + block[fh : fh + fw]).astype(operand.dtype)
    return np.resize(block, operand.shape).astype(operand.dtype)


def caller(plan: planner.Plan, image: Any, filter: Any) -> Callable[[], Any]:
    """A function that runs a plan as a call does, its filter new each time."""
    problem = plan.problem
    operand = describe(image)
    compute = plan.chosen.implementation.run

    def request() -> Request:
        if isinstance(filter, np.ndarray):
            return Request(Filter(filter), 0.0)
        return Request(Filter(None, filter, describe(filter)), 0.0)

    if operand.location == HOST and plan.chosen.device == planner.CPU:

        def run() -> Any:
            made = request()
            _ = made.filter.factors  # what a call asks for to make its plan
            return compute(None, problem, [image, made], None)

        return run

    def run_there() -> Any:
        made = request()
        _ = made.filter.factors
        return execution.execute(plan, execution.Call((image,), (operand,), also=(made,)))

    return run_there
