"""The ways to do conjugate gradients: what each takes, and when it cannot."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST
from hetero.imports import load
from hetero.ops.cg.operands import NAME
from hetero.ops.linear_systems.loops import ROWS, STENCILS
from hetero.ops.linear_systems.systems import Outcome, digits
from hetero.registry import Arguments
from hetero.registry.models import Work
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

_LEAST_SHARED = 1024  # unknowns from which several devices may share
_SPARSE = ("csr", "stencil2", "stencil3")
_DENSE_TERMS = ((), (0,), (0, 0))  # launches, vectors, the matrix
ADAPTIVE = "adaptive"  # which has no constants of its own
_MATRICES = {
    "dense": "dense matrices",
    "csr": "sparse matrices",
    "stencil2": "hetero.Poisson",
    "stencil3": "hetero.Poisson",
    "operator": "LinearOperators",
}


def _obstacle(*layouts: str) -> Callable[[Problem, dict[str, Any]], str | None]:
    def excludes(problem: Problem, info: dict[str, Any]) -> str | None:
        if problem.dtype.startswith("complex") and "operator" not in layouts:
            return "does not apply: it is for real numbers"
        if problem.layout.partition("-")[0] not in layouts:
            matrices = " and ".join(dict.fromkeys(map(_MATRICES.get, layouts)))
            return f"does not apply: it is for {matrices}"
        return None

    return excludes


def _plain_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    own = _obstacle(*_SPARSE)(problem, info)
    if registry.missing(_loops(problem), info):
        return own
    return registry.Unasked("is used only while 'numba' is compiled", own)


def _hybrid_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    if problem.layout.endswith("multigrid"):
        return "has a diagonal preconditioner at most"
    return _obstacle("dense", *_SPARSE)(problem, info)


def _adaptive_obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    if problem.device is not None:
        return "does not apply: it is for arrays on the host"
    if problem.options.known:
        return "is for an unknown number of iterations"
    reason = _obstacle("dense")(problem, info)
    if reason is None and info.get("asked"):
        return registry.Unasked(f"begins on the CPU; name it with method={ADAPTIVE!r} to use it")
    return reason


def work(problem: Problem, info: dict[str, Any]) -> Work:
    """One iteration: the matrix once, and ten passes over a vector, which a stencil stays with."""
    n, entries = problem.dims
    size = np.dtype(problem.dtype).itemsize
    kind = problem.layout.partition("-")[0]
    matrix = {"dense": size, "csr": size + 4}.get(kind, 0) * entries
    dims = (n, max(entries // max(n, 1), 1)) if kind == "csr" else (n,)
    rtol, repeat, _ = problem.options
    if problem.layout.endswith("multigrid"):
        repeat = max(2, math.ceil(digits(rtol, np.dtype(problem.dtype)) / 2.6))
    terms = _DENSE_TERMS if kind == "dense" else ()
    return Work(dims, 2.0 * entries + 10.0 * n, matrix + 10.0 * n * size, repeat, terms=terms)


def _shared(problem: Problem) -> bool:
    """Stencils and matrices of the host are cut by rows, without multigrid cycles."""
    kind = problem.layout
    here = kind in _SPARSE or (kind == "dense" and problem.inputs[0].location == HOST)
    return here and problem.dims[0] >= _LEAST_SHARED


def iterations(dims: tuple[int, ...], dtype: str) -> dict[str, registry.Iteration]:
    """See `registry.Operation`; nothing of a dense matrix.

    Vectors are b, x, its start, two p and two r; rows of p and r are exchanged, and four sums.
    """
    if len(dims) == 1:
        return {}
    halo = load("hetero.kernels.cg.plan_stencil").HALO
    row = math.prod(dims[1:]) * np.dtype(dtype).itemsize
    iteration = registry.Iteration(row, 7, halo, 2 * halo, sums=1, sum_bytes=4 * 8)
    return dict.fromkeys(("fused", "numba"), iteration)


def _loops(problem: Problem) -> tuple[str, ...]:
    """What is compiled for sparse matrices and stencils on the CPU."""
    family = ROWS if problem.layout == "csr" else STENCILS
    return (family.of(problem.dtype),)


def _run(
    devices: tuple[Device, ...], problem: Problem, arguments: Arguments, plain: bool = False
) -> Outcome:
    """Solve; on the CPU, if ``plain``, with nothing that has to be compiled."""
    (b,), x, asked = arguments
    system, M = asked.system(devices)
    if not devices:
        return load("hetero.ops.krylov.cg").solve(system, b, x, asked, M, plain=plain)
    if len(devices) > 1 and asked.from_zero:  # which nobody wrote to x
        x[...] = 0.0
    cg_device = load("hetero.ops.krylov.cg_device")
    return cg_device.solve(devices, system, b, x, asked, M, dtype=problem.dtype)


def _in_turn(module: str) -> dict[str, Any]:
    """Work and run of a method that takes turns with the CPU, in a module of its own: ``price``
    and ``solve`` there."""

    def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> Outcome:
        return load(module).solve(*devices, problem, arguments)

    priced = registry.Composed(work, lambda *problem: load(module).price(*problem))
    return {"work": priced, "run": registry.HostRun(run, registry.IN_TURN)}


def _row(kinds: tuple[str, ...], method: str, excludes: Any, run: Any = _run, **row: Any) -> None:
    row = {"work": work, "run": run} | row
    registry.register_method(operation=NAME, kinds=kinds, method=method, excludes=excludes, **row)


_row(("cpu",), "blas", _obstacle("dense"))
_row(("cpu",), "numba", _obstacle(*_SPARSE), loops=_loops)
_row(("cpu",), "scipy", _plain_obstacle, functools.partial(_run, plain=True))
_row(("cpu",), "operator", _obstacle("operator"))
_row(registry.PORTABLE, "fused", _obstacle("dense", *_SPARSE), shared=_shared)
_row(registry.PORTABLE, "hybrid", _hybrid_obstacle, **_in_turn("hetero.ops.cg.hybrid"))
_row(registry.PORTABLE, ADAPTIVE, _adaptive_obstacle, **_in_turn("hetero.ops.cg.adaptive"))
