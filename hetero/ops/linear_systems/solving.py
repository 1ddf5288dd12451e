"""What the solves of linear systems share: vectors checked, a plan run."""

from __future__ import annotations

import math
import operator
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, Spec, as_array, describe, element_strides
from hetero.runtime import planner


class Solve(NamedTuple):
    """What a solver's ``run`` gets as options, beside the right-hand side and x.

    Attributes
    ----------
    system : Stencil, Csr, Dense or LinearOperator
        See `hetero.ops.linear_systems.types`.
    rtol, atol : float
        Done when norm(b - A x) <= max(rtol norm(b), atol).
    maxiter : int
        Most iterations.
    preconditioner : object or None
    callback : callable or None
        Called with x after each iteration.
    exactly : bool
        Make ``maxiter`` iterations whatever the residual is; for methods that can.
    """

    system: Any
    rtol: float
    atol: float
    maxiter: int
    preconditioner: Any = None
    callback: Callable[[Any], object] | None = None
    exactly: bool = False


class Solved(NamedTuple):
    """A solve's result: x of the caller's array type, how it ended, and where it ran."""

    x: Any
    outcome: Any
    device: str
    method: str


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


def real_dtype(**dtypes: Any) -> np.dtype:
    """float32 if all dtypes fit in it, else float64; ValueError for what is not real."""
    for name, dtype in dtypes.items():
        if np.dtype(dtype).kind not in "fiub":
            raise ValueError(f"{name} must be real, got dtype {np.dtype(dtype)}")
    return number_dtype(**dtypes)


def number_dtype(**dtypes: Any) -> np.dtype:
    """`real_dtype`, or complex64 or complex128 where one of them is complex."""
    small, kind = True, "f"
    for name, dtype in dtypes.items():
        dtype = np.dtype(dtype)
        if dtype.kind not in "fiubc":
            raise ValueError(f"{name} must be real or complex, got dtype {dtype}")
        if dtype.kind == "c":
            kind = "c"
        small = small and dtype.char in "efF"
    return _DTYPES[kind, small]


_DTYPES = {
    ("f", True): np.dtype(np.float32),
    ("f", False): np.dtype(np.float64),
    ("c", True): np.dtype(np.complex64),
    ("c", False): np.dtype(np.complex128),
}


def array_like(value: Any) -> Any:
    """Device arrays and specs as they are, everything else as NumPy array."""
    return value if isinstance(value, Spec) else as_array(value)


def on_host(array: Any, operand: Operand, dtype: np.dtype) -> np.ndarray:
    """Values of an array on the host, C-contiguous and of the solve's dtype."""
    if operand.location != HOST:
        from hetero.runtime import transfer

        array = transfer.to_host(array, operand)
    return np.ascontiguousarray(array, dtype)


def like(array: Any, values: np.ndarray) -> Any:
    """Host values as a new array of the kind of a device array, on its device."""
    from hetero.runtime import transfer

    made, _ = transfer.empty_like(array, describe(array), values.shape, values.dtype)
    transfer.from_host(values, made, describe(made))
    return made


def result_operand(shape: tuple[int, ...], dtype: np.dtype, location: str) -> Operand:
    """A C-contiguous operand without data."""
    strides = tuple(stride * dtype.itemsize for stride in element_strides(shape))
    return Operand(shape, strides, dtype, location)


def execute(
    plan: planner.Plan,
    solve: Solve,
    b: Any,
    x0: Any,
    system_on: Callable[[tuple[Any, ...]], tuple[Any, Any]],
) -> Solved:
    """Run a solve's plan, for a result beside b.

    Parameters
    ----------
    plan : Plan
    solve : Solve
        System and preconditioner are not set yet.
    b : array
        The caller's right-hand side.
    x0 : array or None
        The caller's start.
    system_on : callable
        ``system_on(used)`` gives system and preconditioner as those devices want them; none: the
        CPU.
    """
    from hetero.runtime import execution

    def options_on(used: tuple[Any, ...], done: int) -> Solve:
        system, preconditioner = system_on(used)
        limit = max(solve.maxiter - done, 0)
        return solve._replace(system=system, preconditioner=preconditioner, maxiter=limit)

    problem, dtype = plan.problem, np.dtype(plan.problem.dtype)
    rhs, operand = b, describe(b)
    if operand.location == HOST or operand.dtype != dtype or not operand.is_c_contiguous():
        rhs = on_host(b, operand, dtype)
    moved = describe(rhs)
    if moved.location != problem.output.location:
        output = problem.output._replace(location=moved.location)
        plan = replace(plan, problem=replace(problem, output=output))
    start: Any = 0.0
    if x0 is not None:
        start = on_host(x0, describe(x0), dtype).reshape(moved.shape)
    # A plan that is remembered for all sizes does not tell how long the result is.
    out = np.empty(moved.shape, dtype) if moved.location == HOST else None
    call = execution.Call((rhs,), (moved,), out, options_on=options_on, start=start)
    done = execution.run(plan, call)
    outcome = done.outcome
    if done.earlier:
        outcome = outcome._replace(iterations=outcome.iterations + done.earlier)
    x = done.value if moved.location == operand.location else like(b, done.value)
    return Solved(x, outcome, done.device, done.method)


def warn(what: str, outcome: Any, residual: str) -> None:
    """A RuntimeWarning, of the public function's caller, that tells why a solve ended."""
    warnings.warn(
        f"{what} stopped after {outcome.iterations} iterations: {outcome.status}; {residual}",
        RuntimeWarning,
        stacklevel=3,
    )


def digits(rtol: float, dtype: np.dtype) -> float:
    """ln of the factor a residual must shrink by, no further than rounding lets it."""
    return -math.log(min(max(rtol, float(np.finfo(dtype).eps)), 1.0))
