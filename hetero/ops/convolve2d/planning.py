"""What a convolution comes down to: one plan, or parts that have one each; and how it is run.

`hetero.plan` and the call both begin with `planned`: what is printed is what runs.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from hetero.arrays import HOST, Operand, Spec, describe
from hetero.calling import execution
from hetero.imports import load
from hetero.ops.convolve2d import real, traits
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import CheckedCall, described, filter_of
from hetero.ops.convolve2d.real import Task
from hetero.ops.convolve2d.remembered import are_few
from hetero.pricing.plan import Plan


def planned(call: CheckedCall) -> Task:
    """How a call is done.

    Complex numbers are sums of real convolutions, a stack of filters is done one by one. Device
    arrays of dtypes or layouts that no device computes in go by way of the host. What no other
    method computes is SciPy's.
    """
    if _needs_host(call):
        return _by_way_of_host(call)
    only_scipys = call.dtype.char not in "fdFD" or not call.a.size * call.b.size
    if only_scipys or (traits.of(call.method).any_dtype and call.dtype.kind == "c"):
        return _by_scipy(call)
    if call.is_of_filters:
        return _one_by_one(call)
    if call.dtype.kind == "c":
        return _by_scipy(call) if are_few(call) else _in_real_parts(call)
    if call.a.dtype != call.dtype:
        stays = call.stays
        call = call.of(_converted(call.image, call.dtype), call.filter)._replace(stays=stays)
    return real.planned(call)


def _needs_host(call: CheckedCall) -> bool:
    """Whether device arrays are computed from copies on the host."""
    a, b = call.a, call.b
    if a.location == b.location == HOST:
        return False
    return (
        a.location == HOST
        or a.dtype != call.dtype
        or not a.size * b.size
        or call.is_of_filters
        or any(x.location != HOST and x.dtype.char not in "fd" for x in (a, b))
        or (b.location != HOST and b.staged_strides() is None)
    )


def _by_way_of_host(call: CheckedCall) -> Task:
    """The operands downloaded, the result uploaded to where the first of them lies."""
    transfer = load("hetero.moving.transfer")

    def on_host(x: Any, operand: Operand) -> Any:
        if isinstance(x, Spec):
            return Spec(x.shape, x.dtype, order=x.order)
        return x if operand.location == HOST else np.asarray(transfer.to_host(x, operand))

    like = call.image if call.a.location != HOST else call.filter
    task = planned(call.of(on_host(call.image, call.a), on_host(call.filter, call.b)))

    def run() -> Any:
        result = task.run()
        made, _ = transfer.empty_like(like, describe(like), result.shape, result.dtype)
        transfer.from_host(result, made, describe(made))
        return made

    return _whole(call, [task], "computed from copies on the host", run)


def _whole(call: CheckedCall, tasks: list[Task], how: str, run: Callable[[], Any]) -> Task:
    """What several tasks make together."""

    def plan() -> Plan:
        problem = described(call.a, call.b, call.dtype, call.window())
        parts = tuple(task.plan() for task in tasks)
        moves = call.machine.moved_by_host(problem)
        return Plan(problem, (), parts[0].profile_name, parts, how, moves)

    return Task(plan, run)


def _one_by_one(call: CheckedCall) -> Task:
    """A stack of small images, each of which "valid" takes as the filter of the second operand."""
    shape = call.a.shape
    if isinstance(call.image, Spec):
        filters = [Spec(shape[-2:], call.a.dtype)] * prod(shape[:-2])
    else:
        filters = list(call.image.reshape(-1, *shape[-2:]))
    tasks = [planned(call.of(call.filter, filter)) for filter in filters]

    def run() -> Any:
        found = [task.run() for task in tasks]
        return np.reshape(found, (*shape[:-2], *found[0].shape))

    return _whole(call, tasks, f"{len(tasks)} convolutions, one for each filter", run)


def _in_real_parts(call: CheckedCall) -> Task:
    """Complex operands: a sum of real convolutions.

    By SciPy where the result is not finite: it takes a real operand for a complex one, whose
    imaginary zeros times infinity are NaN.
    """
    dtype = np.dtype(call.dtype.char.lower())
    fill = complex(call.fillvalue)
    images = [_converted(call.image, dtype)]
    if call.a.dtype.kind == "c" or fill.imag != 0.0:
        images.append(_converted(call.image, dtype, "imag"))
    filters = [_converted(call.filter, dtype)]
    if call.b.dtype.kind == "c":
        filters.append(_converted(call.filter, dtype, "imag"))
    number, stacked = len(images), len(images) == 2 and fill == 0.0
    if stacked:  # both at once
        images = [_stack(images)]
    tasks = [
        planned(call.of(image, filter, value))
        for filter in filters
        for image, value in zip(images, (fill.real, fill.imag), strict=False)
    ]

    def run() -> Any:
        found = [task.run() for task in tasks]
        if stacked:
            found = [part for both in found for part in both]
        out = np.zeros(found[0].shape, call.dtype)
        out.real = found[0]
        if number == 2:
            out.imag = found[1]
        if len(filters) == 2:
            with np.errstate(all="ignore"):  # as SciPy's loops, which look at no flags
                out.imag += found[number]
                if number == 2:
                    out.real -= found[3]
        finite = np.isfinite(out).all()
        return out if finite else _by_scipy(call._replace(device=None, method=None)).run()

    how = f"sum of {len(tasks)} real convolutions" if len(tasks) > 1 else "a real convolution"
    if stacked:
        how += " of real and imaginary part as a stack"
    return _whole(call, tasks, how, run)


def _converted(x: Any, dtype: np.dtype, part: str = "real") -> Any:
    if isinstance(x, Spec):
        return Spec(x.shape, dtype)
    return np.ascontiguousarray(getattr(x, part), dtype)


def _stack(images: list[Any]) -> Any:
    if isinstance(images[0], Spec):
        return Spec((2, *images[0].shape), images[0].dtype)
    return np.stack(images)


def _by_scipy(call: CheckedCall) -> Task:
    """What no other method computes."""
    problem = described(call.a, call.b, call.dtype, call.window())
    plan = call.machine.plan(problem, call.device, call.method)

    def run() -> Any:
        options = FilterOptions(filter_of(call.filter), call.fillvalue)
        return execution.execute(plan, execution.Call((call.image,), (call.a,), options=options))

    return Task(lambda: plan, run)
