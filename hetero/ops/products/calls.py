"""How a product is planned and run that the call cache does not know."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from hetero import tables
from hetero.arrays import HOST, Operand, as_array, describe, describe_used, kept, of_numpy, overlap
from hetero.calling import execution, planner
from hetero.imports import load
from hetero.moving import transfer
from hetero.ops.products import methods as _methods  # noqa: F401  # registers them
from hetero.ops.products.operands import build
from hetero.pricing import pricing
from hetero.pricing.plan import CPU, Plan
from hetero.tables import forced

Function = Callable[..., Any]


def refused(function: Function, *placed: str | None) -> Function:
    """NumPy's function, for what it decides about; first what a plan would raise."""
    planner.check_placement(function.__name__, *placed)
    return function


def on_host(
    function: Function, A: np.ndarray, B: np.ndarray, out: np.ndarray | None, *placed: str | None
) -> Function:
    """The function ``run(A, B, out)`` of such calls, placed on a device and by a method: it runs
    their plan, or is NumPy's own."""
    target = None if out is None else describe(out)
    problem = build(function.__name__, of_numpy(A), of_numpy(B), target)
    if problem is None:
        return refused(function, *placed)  # it raises or casts
    if out is None and forced.get() is not None:
        problem = planner.staying(problem, placed[0])
    plan = planner.plan(problem, *placed)
    run = host_call(plan, function)
    if not plan.keepable:
        return run
    pays = any(o.nbytes >= kept.LEAST_WATCHED for o in problem.inputs) and pricing.copies_pay(plan)

    def by_copies(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Plan anew where an operand may have a kept copy."""
        if A.flags.writeable and B.flags.writeable and (not pays or kept.obstacle()):
            return run(A, B, out)
        inputs = describe_used(A), describe_used(B, A)
        if inputs[0].kept is None and inputs[1].kept is None:
            return run(A, B, out)
        plan = planner.plan(replace(problem, inputs=inputs), *placed)
        return host_call(plan, function)(A, B, out)

    return by_copies


def host_call(plan: Plan, function: Function) -> Function:
    """The function ``run(A, B, out=None)`` that runs a plan on host operands: NumPy's own where it
    is the plan's choice, unless copies of operands count."""
    if plan.chosen.device == CPU and not plan.kept:
        return function
    inputs, output = plan.problem.inputs, plan.problem.output

    def run(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> Any:
        target = None if out is None else output
        return execution.execute(plan, execution.Call((A, B), inputs, out, target))

    return run


def with_device_arrays(function: Function, A: Any, B: Any, out: Any, *placed: str | None) -> Any:
    """A product with an operand or ``out`` on a device."""
    now = tables.generation()
    arrays = tuple(map(as_array, (A, B)))
    operands = tuple(map(describe, arrays))
    target = None if out is None else describe(out)
    problem = build(function.__name__, *operands, target)
    plan = None if problem is None else planner.plan(problem, *placed)
    if plan is None:
        function = refused(function, *placed)
    if plan is None or not plan.problem.output.size:
        return _by_numpy(function, arrays, operands, out, target)
    if target is not None and any(overlap(target, operand) for operand in operands):
        # Written only after everything is read: computed apart, then put in its place.
        made = with_device_arrays(function, *arrays, None, *placed)
        transfer.put(made, describe(made), target)
        return out
    result = execution.execute(plan, execution.Call(arrays, operands, out, target))
    described = operands if target is None else (*operands, target)
    planner.learn(function.__name__, plan, arrays, out, described, placed, now)
    return result


def _by_numpy(
    function: Function,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    """NumPy's result, or its error, on copies in host memory."""
    hosts = [
        array if operand.location == HOST else transfer.to_host(array, operand)
        for array, operand in zip(arrays, operands, strict=True)
    ]
    if target is None:
        there = next(a for a, o in zip(arrays, operands, strict=True) if o.location != HOST)
        like = load("hetero.ops.solvers.systems").like
        return like(there, np.asarray(function(*hosts)))
    if target.location == HOST:
        return function(*hosts, out=out)
    values = transfer.to_host(out, target).copy()
    values.flags.writeable = not target.readonly
    transfer.from_host(function(*hosts, out=values), target)
    return out
