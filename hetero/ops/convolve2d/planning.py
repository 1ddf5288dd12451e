"""What a convolution comes down to: one plan, or parts that have one each; and how it is run.

`hetero.plan` and the call both begin with `planned`: what is printed is what runs. Of a call on
real numbers `_real` makes the plan by what is known of the values, and `_priced` one by shapes.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, Spec, dense, describe, is_device_array
from hetero.calling import call_cache, execution
from hetero.imports import load
from hetero.moving import results
from hetero.ops.convolve2d import remembered, traits, value_ranges
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.operands import (
    LARGEST_DOWNLOADED,
    CheckedCall,
    described,
    filter_of,
    rank_of,
)
from hetero.ops.convolve2d.window import Window
from hetero.pricing import tables
from hetero.pricing.plan import CPU, Plan

# Seconds that a convolution must take for the rank of a filter on its device to be looked at.
_WORTH_A_DOWNLOAD = 2e-4


class Task(NamedTuple):
    """What gives a plan where one is asked for, and what carries it out, for the result."""

    plan: Callable[[], Plan]
    run: Callable[[], Any]


def planned(call: CheckedCall) -> Task:
    """How a call is done.

    Complex numbers are sums of real convolutions, a stack of filters is done one by one. Device
    arrays of dtypes or layouts that no device computes in go by way of the host. What no other
    method computes is SciPy's.
    """
    if _needs_host(call):
        return _by_way_of_host(call)
    only_scipys = call.dtype.char not in "fdFD" or not call.a.size * call.b.size
    if only_scipys or (call.dtype.kind == "c" and traits.of(call.method).any_dtype):
        return _by_scipy(call)
    if call.is_of_filters:
        return _one_by_one(call)
    if call.dtype.kind == "c":
        return _by_scipy(call) if remembered.are_few(call) else _in_real_parts(call)
    if call.a.dtype != call.dtype:
        stays = call.stays
        call = call.of(_converted(call.image, call.dtype), call.filter)._replace(stays=stays)
    return _real(call)


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
    if stacked and isinstance(images[0], Spec):  # both at once
        images = [Spec((2, *images[0].shape), dtype)]
    elif stacked:
        images = [np.stack(images)]
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
        if np.isfinite(out).all():
            return out
        return _by_scipy(call._replace(device=None, method=None)).run()

    how = f"sum of {len(tasks)} real convolutions" if len(tasks) > 1 else "a real convolution"
    if stacked:
        how += " of real and imaginary part as a stack"
    return _whole(call, tasks, how, run)


def _converted(x: Any, dtype: np.dtype, part: str = "real") -> Any:
    if isinstance(x, Spec):
        return Spec(x.shape, dtype)
    return np.ascontiguousarray(getattr(x, part), dtype)


def _by_scipy(call: CheckedCall) -> Task:
    """What no other method computes."""
    problem = described(call.a, call.b, call.dtype, call.window())
    plan = call.machine.plan(problem, call.device, call.method)

    def run() -> Any:
        options = FilterOptions(filter_of(call.filter), call.fillvalue)
        return execution.execute(plan, execution.Call((call.image,), (call.a,), options=options))

    return Task(lambda: plan, run)


# -- One convolution of float32 or float64 ---------------------------------------------------------


def _real(call: CheckedCall) -> Task:
    """A convolution whose image is of the result's dtype."""
    again = remembered.known(call)
    made = _plan(call) if again is None else None

    def run() -> Any:
        result = again and again(call.image, call.filter, call.fillvalue)
        return _run(call, *(made or _plan(call))) if result is None else result

    return Task(lambda: (made or _plan(call))[0], run)


def _run(call: CheckedCall, plan: Plan, filter: Filter, now: int) -> Any:
    """Carry out a plan; `remembered` learns what a call on a device comes down to."""
    options = FilterOptions(filter, float(call.fillvalue))
    read = () if call.b.location == HOST else (call.b,)
    data = execution.Call((call.image,), (call.a,), options=options, read=read)
    result = execution.execute(plan, data)
    remembered.learn(call, plan, options, now)
    return result


def _plan(call: CheckedCall) -> tuple[Plan, Filter, int]:
    """The plan by what is known of the values, the filter, and the plans' generation before it."""
    now = tables.generation()
    filter = _filter(call)
    window = call.window(rank_of(filter), _is_finite(call))
    plan = _by_values(call, filter, window, now)
    if (
        filter.array is None
        and call.method is None
        and is_device_array(call.filter)
        and call.b.size <= LARGEST_DOWNLOADED
        and plan.candidates[0].terms.get("compute", 0.0) > _WORTH_A_DOWNLOAD
        and (downloaded := _downloaded(call)).factors
    ):
        filter = downloaded
        plan = _by_values(call, filter, window._replace(rank=rank_of(filter)), now)
    return plan, filter, now


def _filter(call: CheckedCall) -> Filter:
    """The filter, its values known where they are needed or lie on the host."""
    a, b = call.a, call.b
    if isinstance(call.filter, np.ndarray):
        return filter_of(call.filter, call.dtype)
    elsewhere = a.location != b.location or call.dtype != b.dtype
    if is_device_array(call.filter) and (elsewhere or traits.of(call.method).factors):
        return _downloaded(call)
    return Filter(None, call.filter, b)


def _downloaded(call: CheckedCall) -> Filter:
    transfer = load("hetero.moving.transfer")
    return filter_of(transfer.to_host(call.filter, call.b), call.dtype)


def _is_finite(call: CheckedCall) -> bool:
    """Of values that a plan depends on: a method that spreads others is refused by name only."""
    if not (finite := isfinite(call.fillvalue)) or not traits.of(call.method).spreads:
        return finite
    return value_ranges.are_finite(_known(call.image), _known(call.filter))


def _known(x: Any) -> np.ndarray | None:
    return x if isinstance(x, np.ndarray) else None


def _by_values(call: CheckedCall, filter: Filter, window: Window, now: int) -> Plan:
    """The plan; made again where it transforms an image that turns out to lose small values."""
    plan = _priced(call, filter, window, now)
    if call.method is None and traits.of_row(plan.candidates[0].implementation).transforms:
        wide = value_ranges.is_wide(_known(call.image), filter, window, call.fillvalue)
        seen = window._replace(finite=wide is not None, wide_range=bool(wide))
        if seen != window:
            return _priced(call, filter, seen, now)
    return plan


def _priced(call: CheckedCall, filter: Filter, window: Window, now: int) -> Plan:
    """The plan of a window, from memory where there is one."""
    a, on_device = call.a, filter.array is None

    def make() -> Plan:
        taps = dense(call.b.shape, call.dtype, call.b.location if on_device else HOST)
        problem = described(a, taps, call.dtype, window)
        if call.stays:
            problem = results.staying(problem, call.device)
        plan = call.machine.plan(problem, call.device, call.method)
        if a.location == HOST and call.method is None:
            look = value_ranges.seconds(problem, call.machine.devices())
            plan = value_ranges.priced(plan, look)
        if not remembered.leaves_few(plan) and remembered.are_few(call):  # as it will be again
            plan = call.machine.plan(problem, CPU, remembered.method_of_few())
        if not (window.wide_range or window.filled) and call.machine.is_here:
            remembered.remember(call, plan, now)
        return plan

    if not call.machine.is_here or a.kept is not None:
        return make()
    rest = call.method, window, on_device, call.stays
    return remembered.calls.plan((call.device, rest, call_cache.facts(a)), make)
