"""One real convolution: its plan, and what carries it out."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, dense, is_device_array
from hetero.calling import call_cache, execution, planner
from hetero.errors import GraphError
from hetero.imports import load
from hetero.moving import results
from hetero.ops.convolve2d import range_check_cost, traits
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.operands import (
    LARGEST_DOWNLOADED,
    CheckedCall,
    are_finite,
    described,
    filter_of,
    is_wide,
    rank_of,
)
from hetero.ops.convolve2d.remembered import (
    SMALL,
    are_few,
    calls,
    is_of_few,
    key_of,
    known,
    method_of_few,
    remember,
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
    """How a convolution of float32 or float64 is done, whose image is of the result's dtype."""
    remembered = known(call)
    if remembered is None:
        return _planned(call)

    def run() -> Any:
        result = remembered(call.image, call.filter, call.fillvalue)
        return _planned(call).run() if result is None else result

    return Task(lambda: _planned(call).plan(), run)


def _planned(call: CheckedCall) -> Task:
    now = tables.generation()
    a, b = call.a, call.b
    filter = _filter(call)
    found = call.window(rank_of(filter), _is_finite(call))
    plan = _plan(call, filter, found, now)
    if (
        filter.array is None
        and call.method is None
        and is_device_array(call.filter)
        and b.size <= LARGEST_DOWNLOADED
        and plan.candidates[0].terms.get("compute", 0.0) > _WORTH_A_DOWNLOAD
        and planner.capturing.get() is None
        and (downloaded := _downloaded(call)).factors
    ):
        filter = downloaded
        plan = _plan(call, filter, found._replace(rank=rank_of(filter)), now)
    options = FilterOptions(filter, float(call.fillvalue))

    def run() -> Any:
        read = () if b.location == HOST else (b,)
        data = execution.Call((call.image,), (a,), options=options, read=read)
        result = execution.execute(plan, data)
        if a.location != HOST == b.location and b.size <= SMALL and call.fillvalue == 0:
            given = call.device, key_of(call.filter, call.mode, call.boundary, call.method)
            calls.learn(plan, (call.image, call.image), None, (a, a), given, now, options)
        return result

    return Task(lambda: plan, run)


def _filter(call: CheckedCall) -> Any:
    """The filter, its values known where they are needed or lie on the host."""
    a, b = call.a, call.b
    if isinstance(call.filter, np.ndarray):
        return filter_of(call.filter, call.dtype)
    graph = planner.capturing.get()
    if graph is not None and b.location not in (HOST, graph):
        raise GraphError(f"a graph of {graph} takes filters there or on the host")
    elsewhere = a.location != b.location or call.dtype != b.dtype
    if is_device_array(call.filter) and (elsewhere or traits.of(call.method).factors):
        return _downloaded(call)
    return Filter(None, call.filter, b)


def _downloaded(call: CheckedCall) -> Any:
    transfer = load("hetero.moving.transfer")
    return filter_of(transfer.to_host(call.filter, call.b), call.dtype)


def _is_finite(call: CheckedCall) -> bool:
    """Of values that a plan depends on: a method that spreads others is refused by name only."""
    finite = isfinite(call.fillvalue)
    if finite and traits.of(call.method).spreads:
        finite = are_finite(_known(call.image), _known(call.filter))
    return finite


def _known(x: Any) -> np.ndarray | None:
    return x if isinstance(x, np.ndarray) else None


def _plan(call: CheckedCall, filter: Any, found: Window, now: int) -> Plan:
    """The plan by the values of image and filter."""
    plan = _plan_of(call, filter, found, now)
    seen = _look(call, filter, found, plan)
    return plan if seen == found else _plan_of(call, filter, seen, now)


def _look(call: CheckedCall, filter: Any, found: Window, plan: Plan) -> Window:
    """What the values are seen to be where a plan would transform them."""
    if call.method is not None or not traits.of_row(plan.candidates[0].implementation).transforms:
        return found
    wide = is_wide(_known(call.image), filter, found, call.fillvalue)
    return found._replace(finite=wide is not None, wide_range=bool(wide))


def _plan_of(call: CheckedCall, filter: Any, found: Window, now: int) -> Plan:
    a, b = call.a, call.b
    unknown = filter.array is None

    def make() -> Plan:
        taps = dense(b.shape, call.dtype, b.location if unknown else HOST)
        problem = described(a, taps, call.dtype, found)
        if call.stays:
            problem = results.staying(problem, call.device)
        plan = call.machine.plan(problem, call.device, call.method)
        if a.location == HOST:
            named, devices = call.method is not None, call.machine.devices()
            look = range_check_cost.seconds(problem, devices, finite_only=named)
            plan = range_check_cost.priced(plan, look, "spreads" if named else "transforms")
        if not is_of_few(plan) and are_few(call):  # as the remembered call will be done
            plan = call.machine.plan(problem, CPU, method_of_few())
        if not (found.wide_range or found.filled) and call.machine.is_here:
            remember(call, plan, now)
        return plan

    if not call.machine.is_here or a.kept is not None:
        return make()
    rest = call.method, found, unknown, call.stays
    return calls.plan((call.device, rest, call_cache.facts(a)), make)
