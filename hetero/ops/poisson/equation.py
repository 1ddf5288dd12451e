"""The equation of one call: f with the boundary's share, in its own units or in others.

Where the spacing, f or the boundary's values are so large or small that squares or quotients of
them overflow or vanish, the equation is solved in other units, powers of two, which change no
digit: A' v = g with spacing' = spacing / 2^e, g = f 2^(2 e - k) and u = v 2^k.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, describe
from hetero.imports import load
from hetero.moving.results import on_host as with_host_result
from hetero.ops.linear_systems.systems import (
    CONVERGED,
    ROUNDING,
    Outcome,
    Solve,
    Stencil,
    execute,
    judged,
    like,
    on_host,
)
from hetero.pricing.plan import Plan

# Exponents of two between which spacings and right-hand sides are taken as they are. Sums of
# squares are in double; solutions and sine transforms are at most 2^70 times as large as f h^2.
_SPACING = {"float32": 16, "float64": 100}
_VALUES = {"float32": 32, "float64": 300}
_FARTHEST = 100  # a spacing 2^100 times the least decouples its axis whatever the extents
_START = 40  # an initial guess 2^40 times as large as f h^2 is farther from u than zero
_ROUNDINGS = 4.0  # how often that of u may be in what a method leaves
# Residuals below are those of numbers whose squares may have vanished.
_LEAST_RESIDUAL = {"float32": 1e-30, "float64": 1e-150}
_DOUBLE = np.dtype(np.float64)
_NONE = -math.inf  # the exponent of zero


class Face(NamedTuple):
    """Boundary values on one side: a number or an array of f's shape without the axis."""

    axis: int
    layer: int  # of the points next to it: 0 or -1
    value: np.ndarray


def checked_faces(shape: tuple[int, ...], boundary: Any) -> list[Face]:
    """The sides with values other than zero; ValueError for what are no boundary values."""
    if isinstance(boundary, float) and boundary == 0.0:
        return []
    ndim = len(shape)
    try:
        if not isinstance(boundary, (tuple, list)) and np.ndim(boundary) == 0:
            sides = [(boundary, boundary)] * ndim
        else:
            sides = [tuple(pair) for pair in boundary]
    except TypeError:  # a number in a pair's place
        sides = []
    if len(sides) != ndim or any(len(pair) != 2 for pair in sides):
        raise ValueError(f"boundary must be a number or {ndim} pairs, got {boundary!r}")
    faces = []
    for axis, pair in enumerate(sides):
        across = tuple(shape[:axis]) + tuple(shape[axis + 1 :])
        for layer, value in zip((0, -1), pair, strict=True):
            value = np.asarray(value)
            if value.dtype.kind not in "fiub":
                raise ValueError(f"boundary must be real, got dtype {value.dtype}")
            if value.shape not in ((), across):
                raise ValueError(
                    f"boundary of axis {axis} must be a number or of shape {across}, "
                    f"got shape {value.shape}"
                )
            if np.any(value):
                faces.append(Face(axis, layer, value))
    return faces


def is_ordinary(spacing: tuple[float, ...], dtype: str) -> bool:
    """Whether an equation with these spacings is solved in its own units."""
    most = 2.0 ** _SPACING[dtype]
    return 1.0 / most <= min(spacing) and max(spacing) <= most


def solve(
    plan: Plan, asked: Solve, f: Any, x0: Any, faces: list[Face], done: Any = None
) -> tuple[Any, dict[str, Any]]:
    """Run a plan, unless ``done`` is its `execution.Done`; in other units where the values turn out
    to need it.

    Returns
    -------
    done : execution.Done
        Its value is u, its outcome in the units of the solve.
    info : dict
        How it was done, in f's units; see `hetero.solve_poisson`.
    """
    stencil, dtype, exponent = asked.system, np.dtype(plan.problem.dtype), 0
    if 0 in stencil.shape:
        nothing, chosen = Outcome(CONVERGED, 0, 0.0, 0.0), plan.chosen
        Done = load("hetero.calling.execution").Done
        done = Done(np.zeros(stencil.shape, dtype), nothing, chosen.device, chosen.method)
    else:
        if done is None and is_ordinary(stencil.spacing, dtype.name):
            done = execute(plan, asked, _right_side(f, faces, stencil.spacing, dtype), x0)
        if done is None or _is_out_of_range(done.outcome, stencil, dtype, f, x0, faces):
            done, stencil, exponent = _in_other_units(plan, asked, f, x0, faces)
    status, iterations, residual, whole = done.outcome
    if status == ROUNDING and (asked.lenient or plan.problem.options.rtol == 0.0):
        # Rounding u alone leaves up to eps norm(A) norm(u) <= eps cond(A) norm(f).
        low, high = stencil.eigenvalue_bounds()
        if residual <= _ROUNDINGS * float(np.finfo(dtype).eps) * high / low * whole:
            status = CONVERGED
    relative = residual / whole if whole and whole > 0.0 else math.inf if residual else 0.0
    if exponent:
        with np.errstate(all="ignore"):
            residual = float(np.ldexp(residual, exponent))
    return done, {
        "device": done.device,
        "method": done.method,
        "iterations": iterations,
        "residual": residual,
        "relative_residual": relative,
        "converged": status == CONVERGED,
        "status": status,
        "plan": plan,
    }


def _right_side(f: Any, faces: list[Face], spacing: tuple[float, ...], dtype: np.dtype) -> Any:
    """f plus value / spacing**2 next to each side; an array of f's kind, or f itself."""
    if not faces:
        return f
    operand = describe(f)
    total = np.array(on_host(f, dtype, operand))
    with np.errstate(all="ignore"):  # `_is_out_of_range` sees to what is not finite
        _add_boundary(total, faces, spacing, 0)
    return total if operand.location == HOST else like(f, total)


def _add_boundary(
    total: np.ndarray, faces: list[Face], spacing: tuple[float, ...], exponent: int
) -> None:
    for axis, layer, value in faces:
        index: list[Any] = [slice(None)] * total.ndim
        index[axis] = layer
        total[tuple(index)] += np.ldexp(value.astype(np.float64), exponent) / spacing[axis] ** 2


def _is_out_of_range(
    outcome: Outcome, stencil: Stencil, dtype: np.dtype, f: Any, x0: Any, faces: list[Face]
) -> bool:
    """Whether a solve did not end well because right-hand side or initial guess are too large or
    too small for their squares.

    The norm of the whole right-hand side, if a solver computed it, mostly answers alone, and
    nothing is fetched from a device.
    """
    status, _, residual, whole = outcome
    if status == CONVERGED and not (residual < _LEAST_RESIDUAL[dtype.name] or residual == math.inf):
        return False
    most = _VALUES[dtype.name]
    start = _NONE if x0 is None else _exponent(on_host(x0, dtype))
    if whole is not None:
        least = math.ldexp(math.sqrt(math.prod(f.shape)), -most)
        if least <= whole <= math.ldexp(1.0, most):  # and so is the largest value
            return start > most
    largest = max(_exponent(on_host(f, dtype)), _boundary_exponent(faces, stencil.spacing))
    return largest > _NONE and (abs(largest) > most or start > most)


def _in_other_units(
    plan: Plan, asked: Solve, f: Any, x0: Any, faces: list[Face]
) -> tuple[Any, Stencil, int]:
    """The solve in units in which the largest value of the right-hand side is about 1: an
    `execution.Done`, the stencil, and the exponent of f's units.

    The solution is in the caller's units, and judged anew where its dtype has not the range.
    """
    dtype = np.dtype(plan.problem.dtype)
    values, spacing = on_host(f, _DOUBLE), asked.system.spacing
    e = math.frexp(min(spacing))[1]
    parts = [math.frexp(h) for h in spacing]
    spacing = tuple(math.ldexp(h, min(n - e, _FARTHEST)) for h, n in parts)
    largest = max(_exponent(values) + 2 * e, _boundary_exponent(faces, spacing))
    k = int(largest) if largest > _NONE else 0
    if x0 is not None:
        x0 = on_host(x0, _DOUBLE).reshape(values.shape)
        exponent = _exponent(x0)
        if (exponent if exponent > _NONE else 0) - k > _START:
            x0 = None
    with np.errstate(all="ignore"):
        total = np.ldexp(values, 2 * e - k)
        _add_boundary(total, faces, spacing, -k)
        rhs = total.astype(dtype)
        start = None if x0 is None else np.ldexp(x0, -k).astype(dtype)
    stencil = Stencil(values.shape, spacing)
    done = execute(with_host_result(plan), asked._replace(system=stencil), rhs, start)
    outcome = done.outcome
    with np.errstate(all="ignore"):
        u = np.ldexp(done.value, k)
        returned = np.ldexp(u, -k)
        if not np.array_equal(returned, done.value):
            residual, whole = load("hetero.ops.poisson.dst").norms(stencil, rhs, returned)
            outcome = judged(residual, asked.rtol * whole, ROUNDING, outcome.iterations, whole)
    if describe(f).location != HOST:
        u = like(f, u)
    return done._replace(value=u, outcome=outcome), stencil, k - 2 * e


def _boundary_exponent(faces: list[Face], spacing: tuple[float, ...]) -> float:
    """Of the largest of the boundary's shares, or one more."""
    exponents = [
        _exponent(value.astype(np.float64)) + 2 - 2 * math.frexp(spacing[axis])[1]
        for axis, _, value in faces
    ]
    return max(exponents, default=_NONE)


def _exponent(values: np.ndarray) -> float:
    """Of two, of the largest absolute value; -inf for zeros or what is not finite."""
    largest = max(float(values.max()), -float(values.min()))
    return math.frexp(largest)[1] if 0.0 < largest < math.inf else _NONE
