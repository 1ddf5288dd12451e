"""The public function of a product: the call cache, and how a call is planned that it lacks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np

from hetero.arrays import (
    HOST,
    Operand,
    as_array,
    describe,
    describe_used,
    is_device_array,
    layouts,
    overlap,
    watched,
)
from hetero.arrays.kept import written
from hetero.calling import planner
from hetero.calling.call_cache import MISS, bind, find, learn
from hetero.imports import load
from hetero.moving import results, ski_rental
from hetero.ops.products.operands import as_given, build
from hetero.pricing import settings, tables
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory

_FEW = 64**3  # products that NumPy makes in some 20 us, as long as a device takes to begin and end
Function = Callable[..., Any]
Public = TypeVar("Public", bound=Callable[..., Any])
_ndarray = np.ndarray
_forced = settings.forced.get


def product(function: Function) -> Callable[[Public], Public]:
    """Decorator that makes a public function of its signature and documentation.

    Parameters
    ----------
    function : callable
        `numpy.matmul` or `numpy.matvec`: the semantics.
    """
    name = function.__name__

    def public(
        A: Any,
        B: Any,
        /,
        *outs: Any,
        out: Any = None,
        device: str | None = None,
        method: str | None = None,
        **options: Any,
    ) -> Any:
        if outs:
            out = as_given(function, outs, out)
        if (
            type(A) is _ndarray
            and type(B) is _ndarray
            and out is None
            and device is None
            and method is None
            and not options
            and _forced() is None
        ):
            run = find((name, A.shape, A.strides, A.dtype, B.shape, B.strides, B.dtype))
            if run is not None:
                return run(A, B)
        elif not options and (lookup := find(type(A))) is not None:
            result = lookup(name, A, B, out, device, method)
            if result is not MISS:
                return result
        try:
            return _call(function, A, B, out, device, method, options)
        finally:
            if isinstance(out, _ndarray):
                written(out)

    return lambda documented: functools.wraps(documented)(public)


def _call(
    function: Function,
    A: Any,
    B: Any,
    out: Any,
    device: str | None,
    method: str | None,
    options: dict[str, Any],
) -> Any:
    """Compute ``function(A, B, out=out, **options)`` where it is fastest, or where it is forced."""
    if type(out) is tuple and len(out) == 1 and type(out[0]) is not tuple:
        (out,) = out
    device, method = planner.placement(device, method)
    if is_device_array(A) or is_device_array(B) or is_device_array(out):
        if options:
            raise TypeError(f"device arrays take no {', '.join(options)}")
        return _with_device_arrays(function, A, B, out, device, method)
    if options or _hands_over(A) or _hands_over(B) or not (out is None or type(out) is np.ndarray):
        planner.check_placement(function.__name__, device, method)
        return function(A, B, out=out, **options)
    A, B = _dense(function, A), _dense(function, B)
    key = function.__name__, *layouts(A, B, out)
    if out is not None or device is not None or method is not None:
        key = *key, device, method, out is not None and out.flags.writeable
    run = bind(key, lambda: _on_host(function, A, B, out, device, method))
    return run(A, B, out)


def _on_host(
    function: Function,
    A: np.ndarray,
    B: np.ndarray,
    out: np.ndarray | None,
    device: str | None,
    method: str | None,
) -> Function:
    """The function that runs such calls: it runs their plan, or is NumPy's own."""
    stays = out is None and results.wanted()
    # The CPU has one method, NumPy's; and devices need not be looked for, which takes some tenths
    # of a second, where NumPy has ended before a device has begun.
    few = not stays and _are_few(A, B)
    if device is None and method is None and (few or planner.is_host_alone(None)):
        return function
    target = None if out is None else describe(out)
    problem = build(function.__name__, describe(A).unkept(), describe(B).unkept(), target)
    if problem is None:
        planner.check_placement(function.__name__, device, method)
        return function  # it raises or casts
    if stays:
        problem = results.staying(problem, device)
    plan = planner.plan(problem, device, method)
    run = host_call(plan, function)
    if not plan.keepable:
        return run
    large = any(o.nbytes >= watched.LEAST for o in problem.inputs)
    pays = large and ski_rental.may_pay(problem, lambda p: planner.plan(p, device, method))

    def by_copies(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> Any:
        """Plan anew where an operand may have a kept copy."""
        if A.flags.writeable and B.flags.writeable and (not pays or watched.obstacle()):
            return run(A, B, out)
        inputs = describe_used(A), describe_used(B, A)
        if inputs[0].kept is None and inputs[1].kept is None:
            return run(A, B, out)
        plan = planner.plan(replace(problem, inputs=inputs), device, method)
        return host_call(plan, function)(A, B, out)

    return by_copies


def _are_few(A: np.ndarray, B: np.ndarray) -> bool:
    """Whether NumPy makes all products in the time in which a device begins, and devices were not
    looked for."""
    columns = B.shape[1] if B.ndim == 2 else 1
    return not inventory.looked() and max(A.ndim, B.ndim) <= 2 and A.size * columns <= _FEW


def _dense(function: Function, x: Any) -> np.ndarray:
    """``x`` as a NumPy array; sparse matrices are refused."""
    if type(x) is np.ndarray:
        return x
    if hasattr(x, "tocsr"):
        raise ValueError(
            f"{function.__name__} takes dense arrays, got {type(x).__name__}: "
            "multiply with A @ x, or convert it with toarray()"
        )
    return as_array(x)


def host_call(plan: Plan, function: Function) -> Function:
    """The function ``run(A, B, out=None)`` that runs a plan on host operands: NumPy's own where it
    is the plan's choice, unless copies of operands count."""
    if plan.chosen.device == CPU and not plan.kept:
        return function
    execution = load("hetero.calling.execution")
    inputs, output = plan.problem.inputs, plan.problem.output

    def run(A: np.ndarray, B: np.ndarray, out: np.ndarray | None = None) -> Any:
        target = None if out is None else output
        return execution.execute(plan, execution.Call((A, B), inputs, out, target))

    return run


def _hands_over(x: Any) -> bool:
    """Whether NumPy must decide: subclasses, types with their own arithmetic or kind of result."""
    return type(x) is not np.ndarray and (
        isinstance(x, np.ndarray) or hasattr(x, "__array_ufunc__") or hasattr(x, "__array_wrap__")
    )


def _with_device_arrays(
    function: Function,
    A: Any,
    B: Any,
    out: Any,
    device: str | None,
    method: str | None,
) -> Any:
    """A product with an operand or ``out`` on a device."""
    now = tables.generation()
    arrays = tuple(map(as_array, (A, B)))
    operands = tuple(map(describe, arrays))
    target = None if out is None else describe(out)
    problem = build(function.__name__, *operands, target)
    plan = None if problem is None else planner.plan(problem, device, method)
    if plan is None:
        planner.check_placement(function.__name__, device, method)
    if plan is None or not plan.problem.output.size:
        return _by_numpy(function, arrays, operands, out, target)
    if target is not None and any(overlap(target, operand) for operand in operands):
        # Written only after everything is read: computed apart, then put in its place.
        transfer = load("hetero.moving.transfer")
        made = _with_device_arrays(function, *arrays, None, device, method)
        transfer.put(made, describe(made), out, target)
        return out
    execution = load("hetero.calling.execution")
    result = execution.execute(plan, execution.Call(arrays, operands, out, target))
    described = operands if target is None else (*operands, target)
    learn(function.__name__, plan, arrays, out, described, (device, method), now)
    return result


def _by_numpy(
    function: Function,
    arrays: tuple[Any, ...],
    operands: tuple[Operand, ...],
    out: Any,
    target: Operand | None,
) -> Any:
    """NumPy's result, or its error, on copies in host memory."""
    transfer = load("hetero.moving.transfer")
    hosts = [
        array if operand.location == HOST else transfer.to_host(array, operand)
        for array, operand in zip(arrays, operands, strict=True)
    ]
    if target is None:
        result = np.asarray(function(*hosts))
        like, operand = next(
            (a, o) for a, o in zip(arrays, operands, strict=True) if o.location != HOST
        )
        made, _ = transfer.empty_like(like, operand, result.shape, result.dtype)
        transfer.from_host(result, made, describe(made))
        return made
    if target.location == HOST:
        return function(*hosts, out=out)
    values = transfer.to_host(out, target).copy()
    values.flags.writeable = not target.readonly
    transfer.from_host(function(*hosts, out=values), out, target)
    return out
