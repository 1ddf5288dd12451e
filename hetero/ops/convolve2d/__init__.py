"""Two-dimensional convolution: the public function and its implementations."""

from __future__ import annotations

from math import isfinite
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, Spec, as_array, describe
from hetero.errors import GraphError
from hetero.ops.convolve2d import bands as convolution_bands
from hetero.ops.convolve2d import methods  # noqa: F401  # registers them
from hetero.ops.convolve2d import small as small_convolutions
from hetero.ops.convolve2d.fallbacks import by_parts, by_scipy, by_the_host, one_by_one
from hetero.ops.convolve2d.operands import (
    BOUNDARIES,
    LARGEST_DOWNLOADED,
    MODES,
    NAME,
    SPREADING,
    TRANSFORMS,
    checked,
    described,
    filter_of,
    filter_there,
    from_dims,
    is_wide,
    named,
    note_channels,
    problem,
    rank_of,
    request_of,
    swapped,
    window,
)
from hetero.runtime import call_cache, planner, registry
from hetero.runtime.registry import Arguments

__all__ = ["OPERATION", "convolve2d", "from_dims", "named", "problem"]

# Seconds that a convolution must take for the rank of a filter on its device to be looked at.
_WORTH_A_DOWNLOAD = 2e-4
_calls = call_cache.Calls()
_known_on_host, _find_for = _calls.host.get, _calls.find.get
# Of a filter whose values tell a remembered call on a device.
_SMALL = 256
_ndarray = np.ndarray
_forced = call_cache.forced.get


def convolve2d(
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: Any = 0,
    *,
    device: str | None = None,
    method: str | None = None,
) -> Any:
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
        "cpu", "cuda", "cuda:0", "opencl:0": compute there. Default: where it is fastest.
    method : str, optional
        "direct" (the sum), "separable" (two one-dimensional passes for each product of a column and
        a row that make up the filter), "fft" (one transform), "overlap_save" (transforms of
        tiles), "library" (OpenCV).

    Returns
    -------
    (..., oh, ow) array
        float32 and float64 run on devices; complex numbers as two or four real convolutions; what
        else there is, integers for example, by SciPy on the CPU, as are the smallest arrays. A
        NumPy array where the image lies on the host and the filter too; else an array of the device
        array's type, there.

    Raises
    ------
    ValueError, TypeError
        As SciPy, for shapes, modes and fill values.
    DeviceNotAvailable, MethodNotAvailable
        If ``device`` or ``method`` is not available; the message names what is.

    Notes
    -----
    An image too large for a device's memory goes through it in bands of rows.

    NaN and infinity spread as in the direct sum: where another method's result is not finite, the
    direct sum takes its place.

    "fft" and "overlap_save" are accurate relative to the largest values of the image, or of the
    tile: one pixel of 1e20 leaves nothing of others of 1. They are not chosen where values on the
    host, the fill value or the filter are seen to differ so much in size that an error is estimated
    to exceed 1e3 eps of the sum of the products' absolute values. What "full" gives near its edges,
    and results that meet no more than a corner of a part that is not zero, do not count. By name
    they are taken whatever the values.
    Images on a device are not looked at.

    An array of shape (h, w, 3), an image with its channels last, counts as h images of w x 3. Give
    ``np.moveaxis(image, -1, 0)``. The first such array is noted in the log "hetero".

    How often the fastest method is chosen, and how much time a wrong choice costs, is in
    ``docs/benchmarks.md``; ``hetero verify convolve2d`` measures it on this machine.

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
        if device is None and method is None and _forced() is None:
            key = in1.shape, in1.strides, in1.dtype, in2.shape, in2.dtype, mode, boundary
            try:
                run = _known_on_host(key)
            except TypeError:  # a mode that cannot be hashed: SciPy says so
                pass
            else:
                if run is None:
                    run = small_convolutions.learn(_calls.host, key)
                if run is not None and (result := run(in1, in2, fillvalue)) is not None:
                    return result
    elif (
        type(in2) is _ndarray
        and in2.size <= _SMALL
        and type(fillvalue) is int
        and fillvalue == 0
        and (find := _find_for(type(in1))) is not None
    ):
        try:
            result = find(in1, in1, None, device, _rest(in2, mode, boundary, method))
        except TypeError:  # as above
            result = call_cache.MISS
        if result is not call_cache.MISS:
            return result
    device, method = planner.placement(device, method)
    image, kernel = as_array(in1), as_array(in2)
    a, b = describe(image), describe(kernel)
    if len(a.shape) < 2 or len(b.shape) != 2:
        raise ValueError(
            "in1 must have at least 2 dimensions and in2 must have 2, "
            f"got {len(a.shape)} and {len(b.shape)}"
        )
    if not (
        type(mode) is str
        and mode in MODES
        and type(boundary) is str
        and boundary in BOUNDARIES
        and type(fillvalue) in (int, float)
    ):
        if isinstance(mode, str) and mode == "valid":
            swapped(a.shape[-2:], b.shape)  # as SciPy, which looks at the shapes first
        boundary, fillvalue = checked((a.dtype, b.dtype), mode, boundary, fillvalue)
    if boundary != "fill":
        fillvalue = 0
    if len(a.shape) == 3:
        note_channels(a.shape)
    if mode == "valid" and swapped(a.shape[-2:], b.shape):
        if len(a.shape) > 2:
            return one_by_one(convolve2d, image, kernel, mode, boundary, fillvalue, device, method)
        image, kernel, a, b = kernel, image, b, a
    rest = (mode, boundary, fillvalue, device, method)
    if any(x.location != HOST and x.dtype.char not in "fd" for x in (a, b)):
        return by_the_host(convolve2d, image, kernel, *rest)
    try:
        dtype = np.result_type(a.dtype, b.dtype)
    except TypeError:
        return by_scipy(image, kernel, mode, boundary, fillvalue)
    if dtype.kind == "c":
        on_host = a.location == b.location == HOST
        return (by_parts if on_host else by_the_host)(convolve2d, image, kernel, *rest)
    if dtype.char not in "fd" or not a.size * b.size:
        planner.check_placement(NAME, device, method)
        if method not in (None, "direct"):  # the plan says why not
            planner.plan(problem(image, kernel, mode, boundary, fillvalue), device, method)
        if a.location == b.location == HOST:
            return by_scipy(image, kernel, mode, boundary, fillvalue)
        return by_the_host(convolve2d, image, kernel, mode, boundary, fillvalue, None, None)
    if a.location == HOST and a.dtype != dtype:
        image = np.ascontiguousarray(image, dtype)
        a = describe(image)
    if a.dtype != dtype or (b.location != HOST and b.staged_strides() is None):
        return by_the_host(convolve2d, image, kernel, *rest)
    call = _Call(image, kernel, a, b, dtype, mode, boundary, float(fillvalue), device, method)
    return _planned(call)


def _rest(filter: np.ndarray, mode: str, boundary: str, method: str | None) -> tuple[Any, ...]:
    """What a call on a device depends on beside the image, where nothing lies beyond it but 0."""
    return filter.tobytes(), filter.shape, filter.dtype, mode, boundary, method


class _Call(NamedTuple):
    """A real convolution of float32 or float64; the image is of the dtype that is computed in."""

    image: Any
    kernel: Any
    a: Operand
    b: Operand
    dtype: np.dtype
    mode: str
    boundary: str
    fillvalue: float
    device: str | None
    method: str | None


def _plan(call: _Call, filter: Any) -> planner.Plan:
    a, b, mode, boundary = call.a, call.b, call.mode, call.boundary
    finite = boundary != "fill" or isfinite(call.fillvalue)
    if call.method in SPREADING and finite:  # asked for by name: say so, rather than do another
        hosts = [x for x in (call.image, call.kernel) if isinstance(x, np.ndarray)]
        finite = all(np.isfinite(x).all() for x in hosts)
    filled, rank, unknown = bool(call.fillvalue), rank_of(filter), filter.array is None

    def planned(wide_range: bool) -> planner.Plan:
        key = (
            *(a.shape, a.strides, a.dtype, a.location, b.shape, mode, boundary, filled, rank),
            *(bool(finite), wide_range, unknown, call.device, call.method),
        )
        plan = _calls.plans.get(key)
        if plan is None:
            now = call_cache.generation()
            found = window(
                *(a.shape[-2:], b.shape, mode, boundary, filled, rank, bool(finite), wide_range)
            )
            taps = Spec(b.shape, call.dtype, on=b.location if unknown else HOST).operand()
            plan = planner.plan(described(a, taps, call.dtype, found), call.device, call.method)
            call_cache.remember(_calls.plans, key, plan, now)
            if not (wide_range or filled) and a.location == b.location == HOST:
                _remember_host_call(call, plan, rank, now)
        return plan

    plan = planned(False)
    if call.method is None and plan.chosen.method in TRANSFORMS:
        pixels = call.image if a.location == HOST else None
        if is_wide(pixels, filter, plan.problem.window, call.fillvalue):
            return planned(True)
    return plan


class _HostCall:
    """What a call on the CPU comes down to, by the rank of its filter.

    ``call(image, kernel, fillvalue)`` gives the result; None where another way is to be planned.
    """

    __slots__ = ("by_rank", "generation")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.by_rank: dict[int, Any] = {}

    def __call__(self, image: np.ndarray, kernel: np.ndarray, fillvalue: Any) -> Any:
        if type(fillvalue) is not int or fillvalue != 0:
            return None
        filter = filter_of(kernel, image.dtype)
        run = self.by_rank.get(rank_of(filter))
        return run and run(image, filter)


def _remember_host_call(call: _Call, plan: planner.Plan, rank: int, now: int) -> None:
    """What the next call of this kind comes down to, if it was placed by the planner alone."""
    a, b = call.a, call.b
    placed = call.device is None and call.method is None and plan.chosen.device == planner.CPU
    if not placed or a.dtype != b.dtype:
        return
    compute, found = plan.chosen.implementation.run, plan.problem
    shape, dtype = found.output.shape, found.output.dtype
    transform = plan.chosen.method in TRANSFORMS

    def run(image: np.ndarray, filter: Any) -> np.ndarray | None:
        if transform and is_wide(image, filter, found.window, 0.0):
            return None
        out = np.empty(shape, dtype)
        compute((), found, Arguments((image,), out, request_of(filter, 0.0)))
        return out

    key = a.shape, a.strides, a.dtype, b.shape, b.dtype, call.mode, call.boundary
    if small_convolutions.learn(_calls.host, key) is not None:
        return  # a list or a subclass came this way; arrays need not
    known = _calls.host.get(key)
    if not isinstance(known, _HostCall) or known.generation != now:
        known = _HostCall(now)
    known.by_rank[rank] = run
    call_cache.remember(_calls.host, key, known, now)


def _planned(call: _Call) -> Any:
    """Plan a convolution and run it."""
    now = call_cache.generation()
    a, b = call.a, call.b
    graph = planner.capturing.get()
    if graph is not None and b.location not in (HOST, graph):
        raise GraphError(f"a graph of {graph} takes filters there or on the host")
    if b.location == HOST:
        filter = filter_of(call.kernel, call.dtype)
    elif a.location != b.location or call.dtype != b.dtype or call.method == "separable":
        filter = _downloaded(call)
    else:
        filter = filter_there(call.kernel, b)
    if (
        a.location == b.location == HOST
        and len(a.shape) == 2
        and a.nbytes + b.nbytes > convolution_bands.LARGE // 2
    ):
        by_bands = convolution_bands.attempt(call, filter)
        if by_bands is not None:
            return by_bands
    plan = _plan(call, filter)
    known_later = filter.array is None and b.size <= LARGEST_DOWNLOADED and call.method is None
    if known_later and graph is None:
        terms = plan.chosen.terms
        if terms.get("compute", 0.0) > _WORTH_A_DOWNLOAD and (known := _downloaded(call)).factors:
            filter = known
            plan = _plan(call, filter)
    request = request_of(filter, call.fillvalue)
    if a.location == HOST and plan.chosen.device == planner.CPU:
        result = np.empty(plan.problem.output.shape, plan.problem.output.dtype)
        arguments = Arguments((call.image,), result, request)
        plan.chosen.implementation.run((), plan.problem, arguments)
    else:
        from hetero.runtime import execution

        halves = convolution_bands.halves
        result = execution.execute(
            plan, execution.Call((call.image,), (a,), options=request, pieces=halves)
        )
        if a.location != HOST == b.location and b.size <= _SMALL and call.fillvalue == 0.0:
            given = call.device, _rest(call.kernel, call.mode, call.boundary, call.method)
            _calls.learn(plan, (call.image, call.image), None, (a, a), given, now, request)
    if a.location != HOST or b.location == HOST:
        return result
    from hetero.runtime import transfer

    made, _ = transfer.empty_like(call.kernel, b, result.shape, result.dtype)
    transfer.from_host(result, made, describe(made))
    return made


def _downloaded(call: _Call) -> Any:
    from hetero.runtime import transfer

    return filter_of(transfer.to_host(call.kernel, call.b), call.dtype)


def _plan_of(
    operands: tuple[Any, ...], options: dict[str, Any], device: str | None, method: str | None
) -> planner.Plan:
    found = problem(*operands, **options)
    return planner.plan(found if method is None else named(found, method), device, method)


OPERATION = registry.register_operation(
    registry.Operation(
        name=NAME,
        function="convolve2d",
        call=convolve2d,
        summary="2-D convolution, with the semantics of scipy.signal.convolve2d",
        dims=("H W FH FW",),
        problem=problem,
        from_dims=from_dims,
        plan=_plan_of,
        options={"mode": (MODES, "which results; default: full")},
        cases="hetero.ops.convolve2d.cases",
        benchmarks="hetero.ops.convolve2d.benchmarks",
    )
)
