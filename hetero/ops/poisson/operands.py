"""What solve_poisson is asked: operands checked, and made a problem."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import Spec, array_or_spec, dense, describe, name_of
from hetero.ops.linear_systems.solve import checked_limit, checked_tolerance
from hetero.ops.linear_systems.systems import checked_spacing, real_dtype
from hetero.registry.problem import Problem, check_dims

NAME, JACOBI = "poisson", "jacobi"  # the method that makes as many sweeps as are asked for
DIMS = ("NY NX", "NZ NY NX")
UNLIMITED = 10**9  # iterations, where the caller sets no limit
RTOL = {"float32": float(np.finfo(np.float32).eps), "float64": 1e-8}


class PoissonOptions(NamedTuple):
    """What a price depends on besides f."""

    rtol: float  # how much smaller the residual must get
    limit: int  # most iterations
    exactly: bool = False  # as many sweeps as the limit are wanted, whatever the residual is


def problem(
    f: Any,
    *,
    spacing: Any = 1.0,
    boundary: Any = 0.0,
    x0: Any = None,
    rtol: float | None = None,
    maxiter: int | None = None,
    method: str | None = None,
) -> Problem:
    """The problem of ``solve_poisson(f, ...)``, for an array or a `hetero.spec` stand-in."""
    f = array_or_spec(f)
    if len(f.shape) not in (2, 3):
        raise ValueError(f"f must have 2 or 3 dimensions, got shape {tuple(f.shape)}")
    distances = checked_spacing(spacing, len(f.shape))
    limit = checked_limit(maxiter, UNLIMITED)
    inputs = {"f": describe(f).unkept()._replace(pointer=0)}
    if x0 is not None:
        x0 = array_or_spec(x0)
        if tuple(x0.shape) != tuple(f.shape):
            raise ValueError(f"x0 must have f's shape {tuple(f.shape)}, got {tuple(x0.shape)}")
        inputs["x0"] = describe(x0).unkept()._replace(pointer=0)
        real_dtype(x0=inputs["x0"].dtype)
    dtype = real_dtype(f=inputs["f"].dtype)
    rtol = RTOL[name_of(dtype)] if rtol is None else checked_tolerance("rtol", rtol)
    exactly = method == JACOBI and rtol == 0.0 and maxiter is not None
    even = max(distances) <= 1.0001 * min(distances)
    return Problem(
        NAME,
        tuple(f.shape),
        name_of(dtype),
        tuple(inputs.values()),
        dense(tuple(f.shape), dtype, inputs["f"].location),
        layout=f"{len(f.shape)}d" if even else f"{len(f.shape)}d uneven",
        function="solve_poisson",
        device_obstacle=None if 0 not in f.shape else "nothing to solve",
        options=PoissonOptions(rtol, limit, exactly),
    )


def from_dims(dims: tuple[int, ...], dtype: str, on: str) -> Problem:
    """The problem with NY NX or NZ NY NX points, as ``hetero explain poisson`` asks for it."""
    check_dims(NAME, dims, *DIMS)
    return problem(Spec(dims, dtype, on=on))
