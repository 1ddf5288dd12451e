"""The equation of one call: f with the boundary's share, in its own units or in others.

Where the spacing, f or the boundary's values are so large or small that squares or quotients of
them overflow or vanish, the equation is solved in other units, powers of two, which change no
digit: A' v = g with spacing' = spacing / 2^e, g = f 2^(2 e - k) and u = v 2^k.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, describe, name_of
from hetero.imports import load
from hetero.moving.results import on_host as with_host_result
from hetero.ops.linear_systems.solve import Solve, Solved, execute, like, on_host
from hetero.ops.linear_systems.systems import CONVERGED, NOT_FINITE, ROUNDING, Outcome, Stencil
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


class Equation:
    """What is to be solved, in its own units or, where that has to be, in others."""

    def __init__(
        self, f: Any, x0: Any, spacing: tuple[float, ...], faces: list[Face], dtype: np.dtype
    ) -> None:
        self._f, self._x0, self._own_spacing, self._faces = f, x0, spacing, faces
        self._dtype, self._dtype_name = dtype, name_of(dtype)
        # What is solved; u and f - A u are these powers of two times its own.
        self._rhs, self._spacing = f, spacing
        self._solution = self._residual = 0

    def solve(self, plan: Plan, solve: Solve, solved: Solved | None = None) -> Solved:
        """Run the plan, unless ``solved`` is its result; in other units where the values turn out
        to need it."""
        shape = tuple(self._f.shape)
        if 0 in shape:
            chosen, nothing = plan.chosen, Outcome(CONVERGED, 0, 0.0, 0.0)
            return Solved(np.zeros(shape, self._dtype), nothing, chosen.device, chosen.method)
        if is_ordinary(self._spacing, self._dtype_name):
            self._rhs = self._with_boundary()
            solved = solved or self._run(plan, solve, self._x0)
            least, outcome = _LEAST_RESIDUAL[self._dtype_name], solved.outcome
            vague = outcome.residual < least or outcome.residual == math.inf
            if outcome.status == CONVERGED and not vague:
                return solved
            if not self._is_out_of_range(outcome.right_side):
                return solved
        start = self._change_units()
        solved = self._run(with_host_result(plan), solve, start)
        return self._in_own_units(solved, solve.rtol)

    def _run(self, plan: Plan, solve: Solve, start: Any) -> Solved:
        solve = solve._replace(system=Stencil(tuple(self._f.shape), self._spacing))
        return execute(plan, solve, self._rhs, start)

    def _with_boundary(self) -> Any:
        """f plus value / spacing**2 next to each side; an array of f's kind, or f itself."""
        if not self._faces:
            return self._f
        operand = describe(self._f)
        total = np.array(on_host(self._f, operand, self._dtype))
        with np.errstate(all="ignore"):  # `_is_out_of_range` sees to what is not finite
            self._add_boundary(total, 0)
        return total if operand.location == HOST else like(self._f, total)

    def _add_boundary(self, total: np.ndarray, exponent: int) -> None:
        for axis, layer, value in self._faces:
            index: list[Any] = [slice(None)] * total.ndim
            index[axis] = layer
            share = np.ldexp(value.astype(np.float64), exponent) / self._spacing[axis] ** 2
            total[tuple(index)] += share

    def _is_out_of_range(self, right_side: float | None) -> bool:
        """Whether right-hand side or initial guess are too large or too small for their squares.

        ``right_side`` is the 2-norm of the whole right-hand side, if a solver computed it: mostly
        it answers alone, and nothing is fetched from a device.
        """
        f, x0, most = self._f, self._x0, _VALUES[self._dtype_name]
        start = _NONE if x0 is None else _exponent(on_host(x0, describe(x0), self._dtype))
        if right_side is not None:
            least = math.ldexp(math.sqrt(math.prod(f.shape)), -most)
            if least <= right_side <= math.ldexp(1.0, most):  # and so is the largest value
                return start > most
        values = _exponent(on_host(f, describe(f), self._dtype))
        largest = max(values, *self._boundary_exponents(), _NONE)
        return largest > _NONE and (abs(largest) > most or start > most)

    def _change_units(self) -> np.ndarray | None:
        """Take units in which the largest value of the right-hand side is about 1; the start."""
        values, x0 = on_host(self._f, describe(self._f), _DOUBLE), self._x0
        e = math.frexp(min(self._own_spacing))[1]
        parts = [math.frexp(h) for h in self._own_spacing]
        self._spacing = tuple(math.ldexp(h, min(n - e, _FARTHEST)) for h, n in parts)
        k = max(_exponent(values) + 2 * e, *self._boundary_exponents(), _NONE)
        k = int(k) if k > _NONE else 0
        if x0 is not None:
            x0 = on_host(x0, describe(x0), _DOUBLE).reshape(values.shape)
            start = _exponent(x0)
            if (start if start > _NONE else 0) - k > _START:
                x0 = None
        with np.errstate(all="ignore"):
            total = np.ldexp(values, 2 * e - k)
            self._add_boundary(total, -k)
            self._rhs = total.astype(self._dtype)
            self._solution, self._residual = k, k - 2 * e
            return None if x0 is None else np.ldexp(x0, -k).astype(self._dtype)

    def _boundary_exponents(self) -> list[float]:
        """Exponents of the boundary's shares, or one more."""
        return [
            _exponent(value.astype(np.float64)) + 2 - 2 * math.frexp(self._spacing[axis])[1]
            for axis, _, value in self._faces
        ]

    def _in_own_units(self, solved: Solved, rtol: float) -> Solved:
        """The solution to return, judged anew where its dtype has not the range."""
        outcome = solved.outcome
        with np.errstate(all="ignore"):
            u = np.ldexp(solved.x, self._solution)
            returned = np.ldexp(u, -self._solution)
            if not np.array_equal(returned, solved.x):
                stencil = Stencil(u.shape, self._spacing)
                residual, whole = load("hetero.ops.poisson.dst").norms(stencil, self._rhs, returned)
                status = CONVERGED if residual <= rtol * whole else ROUNDING
                if not math.isfinite(residual):
                    status = NOT_FINITE
                outcome = Outcome(status, outcome.iterations, residual, whole)
        if describe(self._f).location != HOST:
            u = like(self._f, u)
        return solved._replace(x=u, outcome=outcome)

    def converged(self, outcome: Outcome, *, to_rounding: bool) -> bool:
        """Whether the tolerance is met; with ``to_rounding``, also where that ended the solve.

        Rounding u alone leaves up to eps norm(A) norm(u) <= eps cond(A) norm(f).
        """
        if outcome.status != ROUNDING or not to_rounding:
            return outcome.status == CONVERGED
        Poisson = load("hetero.ops.linear_systems.operators").Poisson
        condition = Poisson(tuple(self._f.shape), self._spacing).condition_number()
        most = _ROUNDINGS * float(np.finfo(self._dtype).eps) * condition
        return outcome.residual <= most * outcome.right_side

    def residual(self, outcome: Outcome) -> float:
        """2-norm of f - A u, in f's units."""
        with np.errstate(all="ignore"):
            return float(np.ldexp(outcome.residual, self._residual))

    def relative_residual(self, outcome: Outcome) -> float:
        """norm(f - A u) / norm(f); 0 where f is."""
        if outcome.residual == 0.0:
            return 0.0
        whole = outcome.right_side
        return outcome.residual / whole if whole > 0.0 else math.inf


def _exponent(values: np.ndarray) -> float:
    """Of two, of the largest absolute value; -inf for zeros or what is not finite."""
    largest = max(float(values.max()), -float(values.min()))
    return math.frexp(largest)[1] if 0.0 < largest < math.inf else _NONE
