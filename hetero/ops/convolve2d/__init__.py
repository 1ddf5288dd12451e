"""Two-dimensional convolution: the public function, and what a call comes down to: a list of real
ones, or one that has a plan; and its run.

`hetero.plan` and the call both go through `parts_of`: what is printed is what runs. `convolve2d`
itself finds in the call cache what runs calls on NumPy arrays: SciPy's function, for dtypes that
only SciPy takes and for few products, or the method of a plan.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from hetero import registry, tables
from hetero.arrays import HOST, Array, Operand, Spec, dense, describe_used, is_device_array, kept
from hetero.calling import execution, planner
from hetero.host import cpu
from hetero.imports import load
from hetero.ops.convolve2d import problem as asked
from hetero.ops.convolve2d.filters import Filter, is_finite, is_wide, with_look
from hetero.ops.convolve2d.methods import cut, scipys
from hetero.ops.convolve2d.problem import NAME, Call, Window, checked, from_dims, problem_of
from hetero.ops.solvers.systems import like
from hetero.pricing.plan import CPU, Plan
from hetero.profile import inventory
from hetero.registry import Arguments
from hetero.tables import MISS, find

__all__ = ["convolve2d", "from_dims", "problem_of"]

Function, Key = Callable[..., Any], tuple[Any, ...]
_ndarray = np.ndarray
_forced = tables.forced.get
SMALL = 256  # elements of a filter with values that are part of the key of a call on a device
LARGEST_DOWNLOADED = 1024  # elements of a filter on a device that may be copied for its rank
# Seconds that a convolution must take for the rank of a filter on its device to be looked at.
_WORTH_A_DOWNLOAD = 2e-4
# Methods that add up more than the filter covers: NaN and infinity would spread.
_SPREADS = asked.SEPARABLE, asked.FFT


def convolve2d(
    in1: Array,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: Any = 0,
    *,
    device: str | None = None,
    method: str | None = None,
) -> Array:
    """Convolve images with a filter where it is fastest, as `scipy.signal.convolve2d`.

    Parameters
    ----------
    in1 : (..., h, w) array_like
        An image, or a stack of them; on the host, or on a device (anything with
        ``__cuda_array_interface__``).
    in2 : (fh, fw) array_like
        The filter.
    mode : {"full", "same", "valid"}
        All results, those centered on the image's points, or those that read nothing beyond the
        image. With "valid" the smaller of the two is the filter.
    boundary : {"fill", "wrap", "symm"}
        Beyond the image lie ``fillvalue``, the image again, or its mirror image.
    fillvalue : scalar
    device : str, optional
        "cpu", "cuda", "cuda:0", "opencl:0": compute there; "cuda:*": on all GPUs, each with a range
        of operands that lie on the host. Default: where it is fastest.
    method : str, optional
        "direct" (the sum), "separable" (two one-dimensional passes for each product of a column and
        a row that make up the filter), "fft" (transforms of the image, or of tiles where that costs
        less), "streamed" (bands of an image on the host that go to a GPU, are convolved by one of
        these and come back, all at the same time), "scipy" (SciPy's function, for dtypes that no
        other takes, and where the loops of others are not compiled).

    Returns
    -------
    (..., oh, ow) array
        float32 and float64 run on devices; complex numbers as sums of real convolutions; integers
        and others by SciPy on the CPU. A NumPy array where both operands lie on the host; else an
        array of the device array's type, there.

    Raises
    ------
    ValueError, TypeError
        As SciPy, for shapes, modes and fill values. So for an image with its channels last: an
        array (h, w, 3) or (h, w, 4) with h and w above 16. As a stack of h narrow images give it
        with an axis more, ``in1[None]``.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    Notes
    -----
    "streamed" takes images of any size, whatever memory the device has. "direct" on the CPU is
    SciPy's loop where there are few products, also of complex numbers; while nobody has imported
    `scipy.signal`, such calls are summed by NumPy.

    By every method results are exactly 0 where all products are, whole if all operands are and the
    sums fit the dtype, and not negative if no operand is, as the direct sum's. Where an image has
    windows that hold nothing but zeros, a transform on the CPU takes up to twice its time. NaN and
    infinity spread as in the direct sum, which takes the place of results that are not finite.

    "fft" is accurate relative to the largest values of the image, or of the tile. It is not chosen
    where values on the host, the fill value or the filter are seen to differ so much in size that
    an error is estimated to exceed 1e3 eps of the sum of the products' absolute values. Results
    that meet less of the image than a block of half the filter's extents do not count. By name it
    is taken however much finite values differ; it and "separable" are refused where values on the
    host, or the fill value, are not finite.

    Images on a device are not looked at. A filter there is copied to the host, to find whether
    "separable" can do it, where that is named; by itself where the filter has up to 1024 elements
    and the convolution is estimated to take more than 0.2 ms.

    How often the fastest method is chosen is in ``docs/benchmarks.md``; ``hetero verify
    convolve2d`` measures it on this machine.

    See Also
    --------
    hetero.plan : the priced candidates, nothing run.

    References
    ----------
    A. White, "Modeling and Optimization of Parallel Matrix-based Computations on GPU", Auburn
    University, 2013, section 5.1.

    Examples
    --------
    >>> import numpy as np, hetero
    >>> hetero.convolve2d(np.ones((3, 3)), np.ones((2, 2)), mode="valid")
    array([[4., 4.],
           [4., 4.]])
    """
    if type(in1) is _ndarray and type(in2) is _ndarray:
        if _forced() is None:
            what = in1.shape, in1.strides, in1.dtype, in2.shape, in2.dtype
            try:
                run = find((NAME, what, mode, boundary, device, method))
            except TypeError:  # a mode that cannot be hashed: SciPy says so
                run = None
            if run is not None and (result := run(in1, in2, fillvalue=fillvalue)) is not None:
                return result
    elif (
        type(fillvalue) is int
        and fillvalue == 0
        and (lookup := find(type(in1))) is not None
        and (type(in2) is not _ndarray or in2.size <= SMALL)
    ):
        second = in1 if type(in2) is _ndarray else in2
        try:
            result = lookup(NAME, in1, second, None, device, key_of(in2, mode, boundary, method))
        except TypeError:  # as above
            result = MISS
        if result is not MISS:
            return result
    placed = planner.placement(device, method)
    return result_of(checked(in1, in2, mode, boundary, fillvalue, *placed, describe=describe_used))


def _planned(
    operands: tuple[Any, ...],
    options: dict[str, Any],
    device: str | None,
    method: str | None,
    machine: planner.Machine = planner.HERE,
) -> Plan:
    return plan_of(checked(*operands, **options, device=device, method=method, machine=machine))


def plan_of(call: Call) -> Plan:
    """The plan of a call, of whatever parts it is done in."""
    parts, problem = parts_of(call), call.problem()
    if parts is None:
        return _plan(call)[0]
    plans, moves = tuple(map(plan_of, parts.calls)), call.machine.moved_by_host(problem)
    return Plan(problem, (), plans[0].profile_name, plans, parts.how, moves)


def result_of(call: Call) -> Any:
    """The result of a call."""
    parts = parts_of(call)
    return _run(call) if parts is None else parts.join([*map(result_of, parts.calls)])


# -- Calls that are done in parts ------------------------------------------------------------------


class Parts(NamedTuple):
    """The calls that a call is done in, how they make it, what makes its result of theirs."""

    calls: list[Call]
    how: str
    join: Callable[[list[Any]], Any]


def parts_of(call: Call) -> Parts | None:
    """What a call is done in; None where that is one convolution.

    Device arrays of dtypes or layouts that no device computes in go by way of the host. A stack of
    filters is done one by one. Complex numbers are sums of real convolutions.
    """
    a, b = call.a, call.b
    if not a.location == b.location == HOST and (
        a.location == HOST
        or a.dtype != call.dtype
        or not a.size * b.size
        or call.is_of_filters
        or any(x.location != HOST and x.dtype.char not in "fd" for x in (a, b))
        or (b.location != HOST and b.staged_strides() is None)
    ):
        there = call.image if a.location != HOST else call.filter
        part = call.of(_on_host(call.image, a), _on_host(call.filter, b))
        how = "computed from copies on the host"
        return Parts([part], how, lambda found: like(there, found[0]))
    if call.is_scipys:
        return None
    if call.is_of_filters:
        return _one_by_one(call)
    return _in_real_parts(call) if call.dtype.kind == "c" else None


def _on_host(x: Any, operand: Operand) -> Any:
    if isinstance(x, Spec):
        return Spec(x.shape, x.dtype, order=x.order)
    return x if operand.location == HOST else load("hetero.moving.transfer").to_host(x, operand)


def _one_by_one(call: Call) -> Parts:
    """A stack of small images, each of which "valid" takes as the filter of the second operand."""
    *front, height, width = call.a.shape
    filters = [Spec((height, width), call.a.dtype)] * prod(front)
    if not isinstance(call.image, Spec):
        filters = list(call.image.reshape(-1, height, width))
    how = f"{len(filters)} convolutions, one for each filter"
    calls = [call.of(call.filter, filter) for filter in filters]
    return Parts(calls, how, lambda found: np.reshape(found, (*front, *found[0].shape)))


def _in_real_parts(call: Call) -> Parts:
    """Complex operands: a sum of real convolutions.

    By SciPy where the result is not finite: it takes a real operand for a complex one, and
    imaginary zeros times infinity are NaN.
    """
    dtype = np.dtype(call.dtype.char.lower())
    fill = complex(call.fillvalue)
    # Two parts of the image if the fill value has two.
    numbers = 1 + (call.a.dtype.kind == "c" or fill.imag != 0.0), 1 + (call.b.dtype.kind == "c")
    images, filters = (
        [asked.converted(x, dtype, part) for part in ("real", "imag")[:number]]
        for x, number in zip((call.image, call.filter), numbers, strict=True)
    )
    if stacked := len(images) == 2 and fill == 0.0:  # both at once
        is_spec = isinstance(call.image, Spec)
        images = [Spec((2, *images[0].shape), dtype) if is_spec else np.stack(images)]
    values = fill.real, fill.imag
    calls = [
        call.of(image, filter, fillvalue=value)
        for filter, (image, value) in product(filters, zip(images, values, strict=False))
    ]

    def join(found: list[Any]) -> Any:
        if stacked:
            found = [part for both in found for part in both]
        out = np.zeros(found[0].shape, call.dtype)
        with np.errstate(all="ignore"):  # as SciPy's loops, which look at no flags
            for power, part in zip(map(sum, np.ndindex(numbers[::-1])), found, strict=True):
                target = out.imag if power == 1 else out.real  # a power of the imaginary unit
                (np.subtract if power == 2 else np.add)(target, part, out=target)
        if np.isfinite(out).all():
            return out
        return result_of(call._replace(device=None, method=asked.SCIPY))

    how = f"sum of {len(calls)} real convolutions" if len(calls) > 1 else "a real convolution"
    return Parts(calls, how, join)


# -- One convolution -------------------------------------------------------------------------------


def _run(call: Call) -> Any:
    """Run one convolution as a call before it, or make a plan; then the next one is remembered."""
    a, b, image, now = call.a, call.b, call.image, tables.generation()
    key = None  # by which `convolve2d` finds what runs calls on the host, outside blocks of `use`
    if call.machine.is_here and _forced() is None and a.location == b.location == HOST:
        what = a.shape, a.strides, a.dtype, b.shape, b.dtype
        key = NAME, what, call.mode, call.boundary, call.device, call.method
    run = find(key) if key and a.kept is None else None
    is_free = call.device is call.method is None and len(a.shape) == 2
    if key and not run and is_free and a.size and (call.is_scipys or call.is_few):
        run = partial(scipys, mode=call.mode, boundary=call.boundary)
        tables.remember(tables.bound, key, run, now)
    result = run and run(image, call.filter, fillvalue=call.fillvalue)
    if result is not None:
        return result
    plan, filter = _plan(call)
    read = () if b.location == HOST else (b,)
    result = execution.execute(plan, execution.Call((image,), (a,), options=filter, read=read))
    window = plan.problem.options
    if a.location != HOST:
        known = b.location == HOST and b.size <= SMALL
        if call.fillvalue == 0 and (known or filter.array is None):
            second, operand = (image, a) if known else (call.filter, b)
            given = call.device, key_of(call.filter, call.mode, call.boundary, call.method)
            pair = (image, second), None, (a, operand)
            planner.learn(NAME, plan, *pair, given, now, filter)
    elif (
        key is not None
        and inventory.looked()
        and not (window.filled or window.wide_range or call.is_scipys or call.method in _SPREADS)
        and window.finite
        and not plan.kept
    ):
        tables.remember(tables.bound, key, _bound(plan, a.unkept()), now)
    return result


def _plan(call: Call) -> tuple[Plan, Filter]:
    """The plan by what is known of the values, and the filter.

    Values on the host are looked at where a method that spreads what is not finite is named, which
    is refused then, and where a transform is the cheapest. The rank of a small filter on a device
    is looked at where it is named, and where the convolution takes longer than that; the sum goes
    on with the filter there.
    """
    image, taps = (x if isinstance(x, np.ndarray) else None for x in (call.image, call.filter))
    if call.is_scipys:
        plan = call.machine.plan(call.problem(), call.device, call.method)
        return plan, Filter(None if taps is None else np.ascontiguousarray(taps), call.fillvalue)
    fill, is_there = float(call.fillvalue), is_device_array(call.filter)
    if taps is not None:
        filter = Filter(np.ascontiguousarray(taps, call.dtype), fill)
    else:
        filter = Filter(None, fill, call.filter, call.b)
        apart = call.a.location != call.b.location or call.dtype != call.b.dtype
        if is_there and (apart or call.method == asked.SEPARABLE):
            filter = filter.downloaded(call.dtype)
    finite = isfinite(fill)
    if finite and call.method in _SPREADS:
        finite = is_finite(image) and is_finite(filter.array)
    window = call.window(rank=filter.rank, finite=finite)
    plan = _priced(call, filter, window)
    seconds = plan.candidates[0].terms.get("compute", 0.0)
    may_be_separable = call.method is None and is_there and filter.array is None
    if may_be_separable and call.b.size <= LARGEST_DOWNLOADED and seconds > _WORTH_A_DOWNLOAD:
        known = filter.downloaded(call.dtype)
        if known.rank:
            window = window._replace(rank=known.rank)
            plan = _priced(call, known, window)
            if plan.candidates[0].method != asked.DIRECT:  # by which calls are remembered
                filter = known
    if call.method is None and plan.candidates[0].method == asked.FFT:
        wide = is_wide(image, filter, window)
        if wide is not False:
            window = window._replace(finite=wide is not None, wide_range=bool(wide))
            plan = _priced(call, filter, window)
    return plan, filter


def _priced(call: Call, filter: Filter, window: Window) -> Plan:
    """The plan of a window."""
    taps = dense(call.b.shape, call.dtype, call.b.location if filter.array is None else HOST)
    problem = asked.described(call.a, taps, call.dtype, window)
    if call.stays:
        problem = planner.staying(problem, call.device)
    is_free = call.machine.is_here and call.device is call.method is None
    if is_free and (plan := planner.at_once(problem)) is not None:
        return plan
    plan = call.machine.plan(problem, call.device, call.method)
    if call.a.location == HOST and call.method is None:
        plan = with_look(plan, call.machine.devices())
    first = plan.candidates[0]
    if (first.device, first.method) != (CPU, asked.DIRECT) and call.is_few:
        plan = call.machine.plan(problem, CPU, asked.DIRECT)
    return plan


# -- What the call cache has -----------------------------------------------------------------------


def key_of(filter: Any, mode: str, boundary: str, method: str | None) -> Key:
    """What a call on a device depends on in addition to its arrays there, where nothing lies beyond
    the image but 0: the values of a filter on the host are part of it."""
    if type(filter) is not np.ndarray:
        return mode, boundary, method
    return filter.tobytes(), filter.shape, filter.dtype, mode, boundary, method


def _bound(plan: Plan, a: Operand) -> Function:
    """``run(image, kernel, fillvalue)`` of calls on the host by a plan; it gives None where one is
    to be made anew."""
    row, problem, shape = plan.chosen.implementation, plan.problem, plan.problem.output.shape
    transforms, on_cpu = row.method == asked.FFT, plan.chosen.device == CPU
    compute, dtype = row.run, problem.output.dtype
    empty = np.empty if problem.output.nbytes < cpu.LEAST_REUSED else cpu.empty
    is_watched = not on_cpu and a.nbytes >= kept.LEAST_WATCHED

    def run(image: np.ndarray, kernel: np.ndarray, fillvalue: Any) -> Any:
        if type(fillvalue) not in (int, float) or fillvalue != 0:
            return None
        may_be_kept = plan.keepable and (is_watched or not image.flags.writeable)
        if may_be_kept and describe_used(image).kept is not None:
            return None
        filter = Filter(np.ascontiguousarray(kernel, dtype))
        if filter.rank != problem.options.rank:
            return None
        if transforms and is_wide(image, filter, problem.options) is not False:
            return None
        if not on_cpu:
            return execution.execute(plan, execution.Call((image,), (a,), options=filter))
        out = empty(shape, dtype)
        compute((), problem, Arguments((image,), out, filter))
        return out

    return run


registry.register_operation(
    registry.Operation(
        name=NAME,
        function="convolve2d",
        call=convolve2d,
        summary="2-D convolution, with the semantics of scipy.signal.convolve2d",
        dims=("H W FH FW",),
        problem=problem_of,
        from_dims=from_dims,
        plan=_planned,
        options=("mode",),
        cut=cut,
    )
)
