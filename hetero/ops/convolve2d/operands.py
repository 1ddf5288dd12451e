"""What a convolution is asked: operands checked as SciPy would, and made a problem."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, prod
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import (
    HOST,
    Operand,
    Spec,
    array_or_spec,
    dense,
    describe,
    is_device_array,
    name_of,
)
from hetero.calling.planner import HERE, Machine
from hetero.errors import one_of
from hetero.imports import load
from hetero.moving import results
from hetero.ops.convolve2d.filters import Filter
from hetero.ops.convolve2d.value_ranges import is_finite, is_wide
from hetero.ops.convolve2d.window import ALIASES, BOUNDARIES, MODES, NAME, Window, window_of
from hetero.registry.problem import Problem, check_dims, dtype_obstacle

_NARROW = 16  # a stack of more images, higher than that and 3 or 4 wide, is an image in colour
_NUMBERS = "biufc"  # kinds of dtypes
LARGEST_DOWNLOADED = 1024  # elements of a filter on a device whose rank may be looked at


class CheckedCall(NamedTuple):
    """A call's arguments, checked."""

    image: Any  # an array or Spec, as the filter
    filter: Any
    a: Operand  # their descriptions
    b: Operand
    dtype: np.dtype  # of the result
    mode: str  # as in `MODES`
    boundary: str  # as in `BOUNDARIES`
    fillvalue: Any  # another one than 0 with "fill" only
    device: str | None  # forced placement
    method: str | None
    machine: Machine = HERE  # the one that is asked
    # Whether the result is to stay on the device that computes it; not of a part of a call.
    stays: bool = False

    def of(self, image: Any, filter: Any, fillvalue: Any = None) -> CheckedCall:
        """The same of other operands, with another fill value where one is given."""
        a, b = describe(image), describe(filter)
        dtype = _common(a, b)
        found = self._replace(image=image, filter=filter, a=a, b=b, dtype=dtype, stays=False)
        return found if fillvalue is None else found._replace(fillvalue=fillvalue)

    @property
    def is_of_filters(self) -> bool:
        """Whether the image is a stack of filters, each for the second operand as the image."""
        a, b = self.a.shape, self.b.shape
        return self.mode == "valid" and len(a) > 2 and swapped(a[-2:], b)

    def window(self, rank: int = 0, finite: bool = True) -> Window:
        """By the shapes and the boundary, with what is known of the values."""
        image, filter = self.a.shape[-2:], self.b.shape
        if self.is_of_filters:
            image, filter = filter, image
        filled = bool(self.fillvalue)
        return window_of(image, filter, self.mode, self.boundary, filled, rank, finite)


def checked(
    in1: Any,
    in2: Any,
    mode: Any = "full",
    boundary: Any = "fill",
    fillvalue: Any = 0,
    device: str | None = None,
    method: str | None = None,
    machine: Machine = HERE,
    describe: Callable[[Any], Operand] = describe,
) -> CheckedCall:
    """A call of arrays or `hetero.spec` stand-ins, described by `describe` or `describe_used`.

    Raises
    ------
    ValueError, TypeError
        For wrong numbers of dimensions, an image with its channels last, an unknown mode or
        boundary, shapes that "valid" does not take, nothing at all along an axis that "full" would
        lengthen; as SciPy, for fill values and dtypes.
    """
    image, filter = array_or_spec(in1), array_or_spec(in2)
    a, b = describe(image), describe(filter)
    if len(a.shape) < 2 or len(b.shape) != 2:
        sparse = [n for n, x in (("in1", in1), ("in2", in2)) if hasattr(x, "tocsr")]
        hint = f"; {' and '.join(sparse)} is sparse: give .toarray()" if sparse else ""
        raise ValueError(
            "in1 must be an array of at least 2 dimensions and in2 one of 2, got "
            f"{type(in1).__name__} of {len(a.shape)} and {type(in2).__name__} of {len(b.shape)}"
            + hint
        )
    refuse_colour(a.shape)
    if not (
        type(mode) is str
        and mode in MODES
        and type(boundary) is str
        and boundary in BOUNDARIES
        and type(fillvalue) in (int, float)
    ):
        if isinstance(mode, str) and mode == "valid":
            swapped(a.shape[-2:], b.shape)  # as SciPy, which looks at the shapes first
        boundary, fillvalue = _as_scipy((a.dtype, b.dtype), mode, boundary, fillvalue)
    common = _common(a, b)
    reads_beyond = mode != "valid" and b.shape != (1, 1)
    if boundary != "fill" or (common.char in "fdFD" and not reads_beyond):
        fillvalue = 0
    if mode == "full" and any(n + f == 0 for n, f in zip(a.shape[-2:], b.shape, strict=True)):
        raise ValueError(f"in1 {a.shape} and in2 {b.shape} are both empty along an axis")
    if mode == "valid" and swapped(a.shape[-2:], b.shape) and len(a.shape) == 2:
        image, filter, a, b = filter, image, b, a
    stays = machine.is_here and a.location == b.location == HOST and results.wanted()
    placed = device, method, machine, stays
    return CheckedCall(image, filter, a, b, common, mode, boundary, fillvalue, *placed)


def _common(a: Operand, b: Operand) -> np.dtype:
    """The dtype of the result; SciPy's error where there is none."""
    if a.dtype is b.dtype and a.dtype.isnative and a.dtype.kind in _NUMBERS:
        return a.dtype
    try:
        common = np.result_type(a.dtype, b.dtype)
    except TypeError:
        _as_scipy((a.dtype, b.dtype), "full", "fill", 0)
        raise
    if common.kind not in _NUMBERS:
        _as_scipy((a.dtype, b.dtype), "full", "fill", 0)
    return common


def swapped(shape: tuple[int, ...], filter_shape: tuple[int, ...]) -> bool:
    """Whether 'valid' takes the second operand as the image."""
    pairs = list(zip(shape, filter_shape, strict=True))
    if all(n >= f for n, f in pairs):
        return False
    if all(f >= n for n, f in pairs):
        return True
    raise ValueError(
        "For 'valid' mode, one must be at least as large as the other in every dimension, "
        f"got {tuple(shape)} and {tuple(filter_shape)}"
    )


def _as_scipy(
    dtypes: tuple[np.dtype, np.dtype], mode: Any, boundary: Any, fillvalue: Any
) -> tuple[str, Any]:
    """The boundary's own name and the fill value as a number; SciPy's errors."""
    reference = load("scipy.signal").convolve2d
    for name, value, valid in (
        ("mode", mode, MODES),
        ("boundary", boundary, (*BOUNDARIES, *ALIASES)),
    ):
        if isinstance(value, str) and value not in valid:
            raise ValueError(one_of(name, valid, value))
    nothing, one = np.zeros((0, 1), dtypes[0]), np.ones((1, 1), dtypes[1])
    reference(nothing, one, mode, boundary, fillvalue)
    boundary = ALIASES.get(boundary, boundary)
    if boundary != "fill":
        return boundary, 0
    zero, taps = np.zeros((1, 1), dtypes[0]), np.zeros((1, 2), dtypes[1])
    taps[0, 1] = 1  # reads the value beyond
    return boundary, reference(zero, taps, "same", "fill", fillvalue)[0, 0].item()


def refuse_colour(shape: tuple[int, ...]) -> None:
    """Raise what SciPy would, which takes no image with its channels last."""
    if len(shape) == 3 and shape[-1] in (3, 4) and min(shape[:-1]) > _NARROW:
        raise ValueError(
            f"in1 of shape {shape} looks like an image with its channels last; images are in the "
            "last two axes. Per channel: np.stack([convolve2d(channel, in2) for channel in "
            f"np.moveaxis(in1, -1, 0)], -1). For {shape[0]} images of {shape[1]} x {shape[2]}: "
            "convolve2d(in1[None], in2)[0]"
        )


def described(image: Operand, kernel: Operand, dtype: np.dtype, found: Window) -> Problem:
    """A problem of operands whose dtypes were settled."""
    location = image.location if image.location != HOST else kernel.location
    batch = image.shape[:-2]
    shape = (*batch, found.out_height, found.out_width)
    strides = image.staged_strides()
    obstacle = dtype_obstacle(image, kernel)
    if obstacle is None and len(batch) > 1 and not image.is_c_contiguous():
        obstacle = "a stack with several axes must be contiguous"
    if obstacle is None and image.location == HOST != kernel.location:
        obstacle = "the filter lies on a device and the image does not"
    each = found.out_height * found.out_width
    apart = strides[-3] if strides is not None and batch else 0
    return Problem(
        NAME,
        (found.height, found.width, found.filter_height, found.filter_width),
        name_of(dtype),
        (image, kernel),
        dense(shape, dtype, location),
        batch=prod(batch),
        strides=((apart, *strides[-2:]), (each, found.out_width, 1)) if strides is not None else (),
        function=NAME,
        device_obstacle=obstacle,
        options=found,
    )


def problem(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0
) -> Problem:
    """The problem of ``convolve2d(in1, in2, ...)`` as a whole, whatever parts it is done in.

    With arrays the filter's rank is looked at, and whether all values on the host are finite and
    of sizes that a transform keeps.
    """
    call = checked(in1, in2, mode, boundary, fillvalue)
    image, kernel, dtype, found = call.a, call.b, call.dtype, call.window()
    if dtype.char not in "fd" or not image.size * kernel.size or call.is_of_filters:
        return described(image, kernel, dtype, found)
    image, kernel = (
        o if o.dtype == dtype else o._replace(dtype=dtype, strides=dense(o.shape, dtype).strides)
        for o in (image, kernel)
    )
    arrays = [call.image, call.filter]
    if is_device_array(arrays[1]) and kernel.size <= LARGEST_DOWNLOADED:
        transfer = load("hetero.moving.transfer")
        arrays[1] = transfer.to_host(arrays[1], call.b)
    pixels, taps = (x if isinstance(x, np.ndarray) else None for x in arrays)
    finite = isfinite(call.fillvalue) and is_finite(pixels) and is_finite(taps)
    found = found._replace(finite=finite)
    if taps is not None:
        filter = filter_of(taps, dtype)
        wide = is_wide(pixels, filter, found, call.fillvalue)
        found = found._replace(rank=filter.rank, wide_range=bool(wide))
    return described(image, kernel, dtype, found)


def from_dims(dims: tuple[int, ...], dtype: str, on: str, mode: str = "full") -> Problem:
    """The problem with dimensions H W FH FW, as ``hetero explain convolve2d`` asks for it."""
    check_dims(NAME, dims, "H W FH FW")
    return problem(Spec(dims[:2], dtype, on=on), Spec(dims[2:], dtype, on=on), mode)


def filter_of(kernel: np.ndarray, dtype: np.dtype | None = None) -> Filter:
    """The filter of a host array, converted to a dtype where one is given."""
    return Filter(np.ascontiguousarray(kernel, dtype))
