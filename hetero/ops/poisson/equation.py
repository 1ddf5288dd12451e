"""The equation of one call: solved in its own units, or in others where squares would overflow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.arrays import HOST, describe, name_of
from hetero.imports import load
from hetero.moving.results import on_host as with_host_result
from hetero.ops.linear_systems.solve import Solve, Solved, execute
from hetero.ops.linear_systems.vectors import like, on_host
from hetero.ops.poisson import rhs as poisson_rhs
from hetero.pricing.plan import Plan

if TYPE_CHECKING:
    from hetero.ops.linear_systems.types import Outcome

_ROUNDINGS = 4.0  # how often that of u may be in what a method leaves
# Residuals below are those of numbers whose squares may have vanished.
_LEAST_RESIDUAL = {"float32": 1e-30, "float64": 1e-150}


class Equation:
    """What is to be solved, in its own units or in those of `poisson_rhs.Scaled`."""

    def __init__(
        self,
        f: Any,
        x0: Any,
        spacing: tuple[float, ...],
        faces: list[poisson_rhs.Face],
        dtype: np.dtype,
    ) -> None:
        self.f, self.x0, self.spacing, self.faces, self.dtype = f, x0, spacing, faces, dtype
        self._rhs = f
        self._scaled: poisson_rhs.Scaled | None = None

    def solve(self, plan: Plan, solve: Solve) -> Solved:
        """Run the plan; in other units where the numbers at hand turn out to need it."""
        CONVERGED = load("hetero.ops.linear_systems.types").CONVERGED
        Outcome = load("hetero.ops.linear_systems.types").Outcome
        Stencil = load("hetero.ops.linear_systems.types").Stencil
        shape = tuple(self.f.shape)
        if 0 in shape:
            nothing = Outcome(CONVERGED, 0, 0.0, 0.0)
            return Solved(
                np.zeros(shape, self.dtype), nothing, plan.chosen.device, plan.chosen.method
            )
        if not poisson_rhs.unusual(self.spacing, self.dtype):
            self._rhs = poisson_rhs.with_boundary(self.f, self.spacing, self.faces, self.dtype)
            solved = self._run(plan, solve, Stencil(shape, self.spacing), self._rhs, self.x0)
            least = _LEAST_RESIDUAL[name_of(self.dtype)]
            outcome = solved.outcome
            if outcome.status == CONVERGED and least <= outcome.residual < math.inf:
                return solved
            given = self.f, self.x0, self.spacing, self.faces, self.dtype
            if not poisson_rhs.out_of_range(*given, outcome.right_side):
                return solved
        self._scaled = scaled = poisson_rhs.scaled(
            self.f, self.x0, self.spacing, self.faces, self.dtype
        )
        self._rhs = scaled.f
        stencil = Stencil(shape, scaled.spacing)
        solved = self._run(with_host_result(plan), solve, stencil, scaled.f, scaled.x0)
        return self._in_own_units(solved, stencil, solve.rtol)

    @staticmethod
    def _run(plan: Plan, solve: Solve, stencil: Any, rhs: Any, x0: Any) -> Solved:
        return execute(plan, solve, rhs, x0, lambda used: (stencil, None))

    def _in_own_units(self, solved: Solved, stencil: Any, rtol: float) -> Solved:
        """The solution as it is to be returned, judged anew where its dtype has not the range."""
        types = load("hetero.ops.linear_systems.types")
        dst_cpu = load("hetero.ops.poisson.dst_cpu")
        assert self._scaled is not None
        exponent = self._scaled.solution
        outcome = solved.outcome
        with np.errstate(all="ignore"):
            u = np.ldexp(solved.x, exponent)
            returned = np.ldexp(u, -exponent)
            if not np.array_equal(returned, solved.x):
                residual = dst_cpu.norms(stencil, self._scaled.f, returned)[0]
                status = types.ROUNDING
                if not math.isfinite(residual):
                    status = types.NOT_FINITE
                elif residual <= rtol * self._right_side(outcome):
                    status = types.CONVERGED
                outcome = outcome._replace(status=status, residual=residual)
        if describe(self.f).location != HOST:
            u = like(self.f, u)
        return solved._replace(x=u, outcome=outcome)

    def _right_side(self, outcome: Outcome) -> float:
        """2-norm of the right-hand side as it was solved for."""
        if outcome.right_side is not None:
            return outcome.right_side
        return poisson_rhs.norm(on_host(self._rhs, describe(self._rhs), self.dtype))

    def converged(self, outcome: Outcome, *, to_rounding: bool) -> bool:
        """Whether the tolerance is met; with ``to_rounding``, also where that ended the solve.

        Rounding u alone leaves up to eps norm(A) norm(u) <= eps cond(A) norm(f).
        """
        types = load("hetero.ops.linear_systems.types")
        Poisson = load("hetero.ops.linear_systems.operators").Poisson
        if outcome.status != types.ROUNDING or not to_rounding:
            return outcome.status == types.CONVERGED
        spacing = self._scaled.spacing if self._scaled else self.spacing
        condition = Poisson(tuple(self.f.shape), spacing).condition_number()
        most = _ROUNDINGS * float(np.finfo(self.dtype).eps) * condition
        return outcome.residual <= most * self._right_side(outcome)

    def residual(self, outcome: Outcome) -> float:
        """2-norm of f - A u, in f's units."""
        if self._scaled is None:
            return outcome.residual
        with np.errstate(all="ignore"):
            return float(np.ldexp(outcome.residual, self._scaled.residual))

    def relative_residual(self, outcome: Outcome) -> float:
        """norm(f - A u) / norm(f); 0 where f is."""
        if outcome.residual == 0.0:
            return 0.0
        whole = self._right_side(outcome)
        return outcome.residual / whole if whole > 0.0 else math.inf
