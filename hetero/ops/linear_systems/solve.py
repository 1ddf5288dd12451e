"""A solve: what its method gets, its plan run for the caller's arrays, what it gives."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, describe
from hetero.errors import outside
from hetero.host import pages
from hetero.imports import load
from hetero.pricing.plan import Plan


class Solve(NamedTuple):
    """What a solver's ``run`` gets; done when norm(b - A x) <= max(rtol norm(b), atol)."""

    # A Stencil, or ``system(devices)``: system and preconditioner there, of none for the CPU.
    system: Any
    rtol: float
    atol: float
    maxiter: int
    callback: Callable[[Any], object] | None = None  # called with x after each iteration
    exactly: bool = False  # makes maxiter iterations whatever the residual is, if it can
    from_zero: bool = False  # starts from zero, which x of several devices need not hold
    lenient: bool = False  # a residual that rounding x leaves will do
    measured: bool = True  # the residual is asked for, also of a direct solve, which needs none

    def limits(self) -> dict[str, Any]:
        """When the solve ends, and what it calls, by the names that conjugate gradients take."""
        return {name: getattr(self, name) for name in ("rtol", "atol", "maxiter", "callback")}


class Solved(NamedTuple):
    """A solve's result: x of the caller's array type, how it ended, and where it ran."""

    x: Any
    outcome: Any
    device: str
    method: str


def execute(plan: Plan, solve: Solve, b: Any, x0: Any, read: tuple[Operand, ...] = ()) -> Solved:
    """Run a solve's plan from the caller's x0, for a result where b lies.

    ``read`` describes device arrays that the system holds.
    """
    execution = load("hetero.calling.execution")
    solve = solve._replace(from_zero=x0 is None)
    problem, dtype = plan.problem, np.dtype(plan.problem.dtype)
    rhs, operand = b, describe(b)
    if operand.location == HOST or operand.dtype != dtype or not operand.is_c_contiguous():
        rhs = on_host(b, operand, dtype)
    moved = (operand if rhs is b else describe(rhs)).unkept()
    if moved.location != problem.output.location:
        output = problem.output._replace(location=moved.location)
        plan = replace(plan, problem=replace(problem, output=output))
    start: Any = 0.0
    if x0 is not None:
        start = on_host(x0, describe(x0), dtype).reshape(moved.shape)
    # A plan that is remembered for all sizes does not tell how long the result is.
    stays = problem.next_device is not None
    out = pages.empty(moved.shape, dtype) if moved.location == HOST and not stays else None
    call = execution.Call((rhs,), (moved,), out, options=solve, start=start, read=read)
    done = execution.run(plan, call)
    x = done.value if moved.location == operand.location else like(b, done.value)
    return Solved(x, done.outcome, done.device, done.method)


def warn(what: str, outcome: Any, residual: str) -> None:
    """A RuntimeWarning, of the public function's caller, that tells why a solve ended."""
    warnings.warn(
        f"{what} stopped after {outcome.iterations} iterations: {outcome.status}; {residual}",
        RuntimeWarning,
        stacklevel=outside(),
    )


def checked_tolerance(name: str, value: Any) -> float:
    """A tolerance as float; ValueError where it is no number, negative or NaN."""
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise ValueError(f"{name} must be a number of at least 0, got {value!r}") from None
    if not number >= 0.0:
        raise ValueError(f"{name} must be at least 0, got {value!r}")
    return number


def checked_limit(maxiter: Any, default: int) -> int:
    """``maxiter`` as int; ValueError where it is no whole number, or negative."""
    if maxiter is None:
        return default
    try:
        number = operator.index(maxiter)
    except TypeError:
        raise ValueError(f"maxiter must be a whole number, got {maxiter!r}") from None
    if number < 0:
        raise ValueError(f"maxiter must be at least 0, got {maxiter!r}")
    return number


def digits(rtol: float, dtype: np.dtype) -> float:
    """ln of the factor a residual must shrink by, no further than rounding lets it."""
    return -math.log(min(max(rtol, float(np.finfo(dtype).eps)), 1.0))


def on_host(array: Any, operand: Operand, dtype: np.dtype) -> np.ndarray:
    """Values of an array on the host, C-contiguous and of the solve's dtype."""
    if operand.location != HOST:
        transfer = load("hetero.moving.transfer")
        array = transfer.to_host(array, operand)
    return np.ascontiguousarray(array, dtype)


def like(array: Any, values: np.ndarray) -> Any:
    """Host values as a new array of the kind of a device array, on its device."""
    transfer = load("hetero.moving.transfer")
    made, _ = transfer.empty_like(array, describe(array), values.shape, values.dtype)
    transfer.from_host(values, made, describe(made))
    return made
