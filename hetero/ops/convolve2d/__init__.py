"""Two-dimensional convolution: the public function."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero import registry, tables
from hetero.arrays import Array, Spec, describe_used
from hetero.calling import planner
from hetero.ops.convolve2d.methods import cut
from hetero.ops.convolve2d.planning import SMALL, key_of, plan_of, result_of
from hetero.ops.convolve2d.problem import NAME, checked
from hetero.pricing.plan import Plan
from hetero.registry.problem import Problem, check_dims
from hetero.tables import MISS, find

__all__ = ["convolve2d", "from_dims", "problem_of"]

_ndarray = np.ndarray
_forced = tables.forced.get


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


def _plan(
    operands: tuple[Any, ...],
    options: dict[str, Any],
    device: str | None,
    method: str | None,
    machine: planner.Machine = planner.HERE,
) -> Plan:
    return plan_of(checked(*operands, **options, device=device, method=method, machine=machine))


def problem_of(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0
) -> Problem:
    """The problem of ``convolve2d(in1, in2, ...)`` as a whole, whatever parts it is done in, by all
    but the values."""
    return checked(in1, in2, mode, boundary, fillvalue).problem()


def from_dims(dims: tuple[int, ...], dtype: str, on: str, mode: str = "full") -> Problem:
    """The problem with dimensions H W FH FW, as ``hetero explain convolve2d`` asks for it."""
    check_dims(NAME, dims, "H W FH FW")
    return problem_of(Spec(dims[:2], dtype, on=on), Spec(dims[2:], dtype, on=on), mode)


registry.register_operation(
    registry.Operation(
        name=NAME,
        function="convolve2d",
        call=convolve2d,
        summary="2-D convolution, with the semantics of scipy.signal.convolve2d",
        dims=("H W FH FW",),
        problem=problem_of,
        from_dims=from_dims,
        plan=_plan,
        options=("mode",),
        cut=cut,
    )
)
