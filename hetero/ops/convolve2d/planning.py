"""What a convolution comes down to: one plan, or parts that have one each; and how it is run.

`hetero.plan` and the call both begin with `planned`: what is printed is what runs. Of a call on
real numbers `_real` makes the plan by what is known of the values, and `_priced` one by shapes.

Some calls on NumPy arrays come down to SciPy's function: integers and other dtypes that only SciPy
takes, and problems cheaper than the start-up of any other method. Those, and others by the rank of
their filter, are found by `convolve2d` itself in the call cache.
"""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from hetero import tables
from hetero.arrays import HOST, Operand, Spec, dense, is_device_array
from hetero.calling import call_cache, execution, planner
from hetero.host import pages
from hetero.imports import load
from hetero.moving import results
from hetero.ops.convolve2d import value_ranges
from hetero.ops.convolve2d.direct_cpu import scipys_convolve2d
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.operands import (
    LARGEST_DOWNLOADED,
    CheckedCall,
    described,
    filter_of,
    swapped,
)
from hetero.ops.convolve2d.window import (
    ALIASES,
    BOUNDARIES,
    DIRECT,
    FEW_PRODUCTS,
    FFT,
    MODES,
    NAME,
    SCIPY,
    SEPARABLE,
    SPREADS,
    Window,
    window_of,
)
from hetero.ops.linear_systems.solve import like
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments

Function = Callable[..., Any]
SMALL = 256  # elements of a filter whose values are part of the key of a call on a device
_BOUNDARIES = (*BOUNDARIES, *ALIASES)
_PARTS = "real", "imag"

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
    if only_scipys or (call.dtype.kind == "c" and call.method == SCIPY):
        return _by_scipy(call)
    if call.is_of_filters:
        return _one_by_one(call)
    if call.dtype.kind == "c":
        return _by_scipy(call) if _are_few(call) else _in_real_parts(call)
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

    there = call.image if call.a.location != HOST else call.filter
    task = planned(call.of(on_host(call.image, call.a), on_host(call.filter, call.b)))
    how = "computed from copies on the host"
    return _whole(call, [task], how, lambda: like(there, task.run()))


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
    filters = [Spec(shape[-2:], call.a.dtype)] * prod(shape[:-2])
    if not isinstance(call.image, Spec):
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
    number = 1 + (call.a.dtype.kind == "c" or fill.imag != 0.0)  # parts of the image
    images = [_converted(call.image, dtype, part) for part in _PARTS[:number]]
    numbers = 1 + (call.b.dtype.kind == "c")
    filters = [_converted(call.filter, dtype, part) for part in _PARTS[:numbers]]
    if stacked := number == 2 and fill == 0.0:  # both at once
        spec = isinstance(call.image, Spec)
        images = [Spec((2, *images[0].shape), dtype) if spec else np.stack(images)]
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


# -- Few products ----------------------------------------------------------------------------------


def scipys(key: Any) -> Function | None:
    """``run(in1, in2, fillvalue)`` of a call on NumPy arrays that is SciPy's, remembered from now
    on: of integers and other dtypes that only SciPy takes, or of few products; None of any other.

    The key is `NAME`, shape, strides and dtype of the image, shape and dtype of the filter, mode,
    boundary.
    """
    _, shape, _, dtype, filter_shape, filter_dtype, mode, boundary = key
    if not (len(shape) == len(filter_shape) == 2 and all(shape) and all(filter_shape)):
        return None
    if mode not in MODES or boundary not in _BOUNDARIES:
        return None
    try:
        common = np.result_type(dtype, filter_dtype)
        if mode == "valid" and swapped(shape, filter_shape):
            shape, filter_shape = filter_shape, shape
    except (TypeError, ValueError):  # the general way says what is wrong
        return None
    if common.char in FEW_PRODUCTS and not window_of(shape, filter_shape, mode).has_few(
        common.char
    ):
        return None
    return tables.bind(key, lambda: _scipys(mode, boundary))


def _scipys(mode: str, boundary: str) -> Function:
    convolve2d = scipys_convolve2d()

    def run(in1: Any, in2: Any, fillvalue: Any) -> Any:
        return convolve2d(in1, in2, mode, boundary, fillvalue)

    return run


def _are_few(call: CheckedCall) -> bool:
    """Whether a call, placed by prices alone, has so few products that it is SciPy's.

    With less to compute a device only loses: beginning and moving cost the same.
    """
    a, b = call.a, call.b
    return (
        call.device is None
        and call.method is None
        and a.location == b.location == HOST
        and len(a.shape) == 2
        and window_of(a.shape, b.shape, call.mode).has_few(call.dtype.char)
    )


# -- One convolution of float32 or float64 ---------------------------------------------------------


def _real(call: CheckedCall) -> Task:
    """A convolution whose image is of the result's dtype."""
    key = _host_key(call)

    def run() -> Any:
        again = key and tables.find(key) and _by_rank(key)
        result = again and again(call.image, call.filter, call.fillvalue)
        return _run(call, key) if result is None else result

    return Task(lambda: _plan(call)[0], run)


def _run(call: CheckedCall, key: Any) -> Any:
    """Make a plan and carry it out; the next call of its kind is remembered."""
    now = tables.generation()
    plan, filter = _plan(call)
    a, b, image = call.a, call.b, call.image
    options = FilterOptions(filter, float(call.fillvalue))
    read = () if b.location == HOST else (b,)
    result = execution.execute(plan, execution.Call((image,), (a,), options=options, read=read))
    window = plan.problem.options
    if a.location != HOST:
        given = call.device, key_of(call.filter, call.mode, call.boundary, call.method)
        if call.fillvalue == 0 and b.location == HOST and b.size <= SMALL:
            call_cache.learn(NAME, plan, (image, image), None, (a, a), given, now, options)
        elif call.fillvalue == 0 and filter.array is None:
            call_cache.learn(NAME, plan, (image, call.filter), None, (a, b), given, now, options)
    elif (
        key is not None
        and inventory.looked()
        and not (window.filled or window.wide_range)
        and window.finite
        and (plan.chosen.device == CPU or not plan.keepable)
        and not _are_few(call)  # these come as a list or a subclass; arrays need not
    ):
        tables.remember(tables.bound, (*key, window.rank), _bound(plan, a.unkept()), now)
        tables.remember(tables.bound, key, _by_rank(key), now)
    return result


def key_of(filter: Any, mode: str, boundary: str, method: str | None) -> tuple[Any, ...]:
    """What a call on a device depends on beside its arrays there, where nothing lies beyond the
    image but 0: the values of a filter on the host are part of it."""
    if type(filter) is not np.ndarray:
        return mode, boundary, method
    return filter.tobytes(), filter.shape, filter.dtype, mode, boundary, method


def _host_key(call: CheckedCall) -> tuple[Any, ...] | None:
    """What a call of NumPy arrays is found by, by `convolve2d` itself where it is not placed.

    None for others, for methods that are refused by name where values are not finite, and where the
    result may stay on a device.
    """
    a, b = call.a, call.b
    if not (call.machine.is_here and a.location == b.location == HOST) or call.stays:
        return None
    if call.method in SPREADS:
        return None
    placed = () if call.device is call.method is None else (call.device, call.method)
    arrays = a.shape, a.strides, a.dtype, b.shape, b.dtype
    return tables.here((NAME, *arrays, call.mode, call.boundary, *placed))


def _by_rank(key: tuple[Any, ...]) -> Function:
    """The function that finds what runs a call on the host by the rank of its filter."""
    find = tables.find

    def run(image: np.ndarray, kernel: np.ndarray, fillvalue: Any) -> Any:
        if type(fillvalue) not in (int, float) or fillvalue != 0:
            return None
        filter = filter_of(kernel, image.dtype)
        compute = find((*key, filter.rank))
        return compute and compute(image, filter)

    return run


def _bound(plan: Plan, a: Operand) -> Function:
    """``run(image, filter)`` of calls on the host by a plan; None where one is to be made anew."""
    row, problem, shape = plan.chosen.implementation, plan.problem, plan.problem.output.shape
    transforms, on_cpu = row.method == FFT, plan.chosen.device == CPU
    compute, empty, dtype = row.run, pages.maker(problem.output.nbytes), problem.output.dtype

    def run(image: np.ndarray, filter: Filter) -> Any:
        if plan.keepable and not image.flags.writeable:
            return None
        if transforms and value_ranges.is_wide(image, filter, problem.options, 0.0) is not False:
            return None
        options = FilterOptions(filter, 0.0)
        if not on_cpu:
            return execution.execute(plan, execution.Call((image,), (a,), options=options))
        out = empty(shape, dtype)
        compute((), problem, Arguments((image,), out, options))
        return out

    return run


def _plan(call: CheckedCall) -> tuple[Plan, Filter]:
    """The plan by what is known of the values, and the filter.

    Values on the host that are not finite are looked for where a method that spreads them is named:
    it is refused then. The image is looked at where a transform is the cheapest.
    """
    filter, elsewhere = Filter(None, call.filter, call.b), call.a.location != call.b.location
    image, taps = (x if isinstance(x, np.ndarray) else None for x in (call.image, call.filter))
    on_device = is_device_array(call.filter)
    if taps is not None:
        filter = filter_of(taps, call.dtype)
    elif on_device and (elsewhere or call.dtype != call.b.dtype or call.method == SEPARABLE):
        filter = _downloaded(call)
    finite = isfinite(call.fillvalue)
    if finite and call.method in SPREADS:
        finite = value_ranges.is_finite(image) and value_ranges.is_finite(taps)
    window = call.window(filter.rank, finite)
    plan = _priced(call, filter, window)
    if call.method is not None:
        return plan, filter
    if (
        filter.array is None
        and on_device
        and call.b.size <= LARGEST_DOWNLOADED
        and plan.candidates[0].terms.get("compute", 0.0) > _WORTH_A_DOWNLOAD
        and (downloaded := _downloaded(call)).rank
    ):
        filter, window = downloaded, window._replace(rank=downloaded.rank)
        plan = _priced(call, filter, window)
    if plan.candidates[0].method == FFT:
        seen = value_ranges.seen(image, filter, window, call.fillvalue)
        plan = plan if seen == window else _priced(call, filter, seen)
    return plan, filter


def _downloaded(call: CheckedCall) -> Filter:
    transfer = load("hetero.moving.transfer")
    return filter_of(transfer.to_host(call.filter, call.b), call.dtype)


def _priced(call: CheckedCall, filter: Filter, window: Window) -> Plan:
    """The plan of a window."""
    taps = dense(call.b.shape, call.dtype, call.b.location if filter.array is None else HOST)
    problem = described(call.a, taps, call.dtype, window)
    if call.stays:
        problem = results.staying(problem, call.device)
    if call.machine.is_here and call.device is call.method is None:
        plan = planner.at_once(problem)
        if plan is not None:
            return plan
    plan = call.machine.plan(problem, call.device, call.method)
    if call.a.location == HOST and call.method is None:
        look = value_ranges.seconds(problem, call.machine.devices())
        plan = value_ranges.priced(plan, look)
    first = plan.candidates[0]
    if (first.device, first.method) != (CPU, DIRECT) and _are_few(call):
        plan = call.machine.plan(problem, CPU, DIRECT)
    return plan
