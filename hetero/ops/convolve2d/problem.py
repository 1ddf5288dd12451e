"""What a convolution is asked: operands checked as SciPy would, and which part of it is wanted."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, Operand, Spec, array_or_spec, dense, describe, name_of
from hetero.calling.planner import HERE, Machine
from hetero.errors import one_of
from hetero.imports import load
from hetero.registry import Problem, check_dims, dtype_obstacle

NAME = "convolve2d"
DIRECT, SEPARABLE, FFT, SCIPY = "direct", "separable", "fft", "scipy"  # methods
MODES = ("full", "same", "valid")
BOUNDARIES = ("fill", "wrap", "symm")
ALIASES = {"pad": "fill", "circular": "wrap", "symmetric": "symm"}  # as SciPy
# Products of one image's direct sum up to which SciPy's loop has ended before another has begun, by
# the character of the dtype; in the time of four it begins a result.
FEW_PRODUCTS = {"f": 1 << 13, "d": 1 << 13, "F": 1 << 16, "D": 1 << 16}
_RESULT = 4
_NARROW = 16  # a stack of more images, higher than that and 3 or 4 wide, is an image in colour
_NUMBERS = "biufc"  # kinds of dtypes


class Window(NamedTuple):
    """Which part of a convolution is wanted, what lies beyond the image, what values are known.

    out[i, j] = sum over u, v of taps[u, v] * image[i + u - top, j + v - left], the taps being the
    flipped filter: rotated by 180 degrees.
    """

    height: int  # of the image
    width: int
    filter_height: int
    filter_width: int
    out_height: int
    out_width: int
    top: int  # rows above the image that the first result reads
    left: int  # likewise columns
    boundary: str  # "fill", "wrap" or "symm"; "fill" where nothing beyond the image is read
    filled: bool = False  # whether the fill value is another one than 0
    # Products of a column and a row that make up the filter; 0: too many, or values not known.
    rank: int = 0
    finite: bool = True  # False where image or filter is known to hold NaN or infinity
    # Whether values are known to differ so much in size that a transform would lose small ones.
    wide_range: bool = False

    # Of SciPy's; None for a part of one, a band of rows.
    mode: str | None = None

    def has_few(self, char: str, batch: int = 1) -> bool:
        """Whether the direct sum, in a dtype with this character, is SciPy's."""
        products = self.filter_height * self.filter_width + _RESULT
        is_small = self.out_height * self.out_width * products <= FEW_PRODUCTS[char]
        return is_small and batch == 1 and self.mode is not None

    @property
    def sides(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of each axis: the image's extent, the filter's, the result's; what is read before."""
        return self[:8:2], self[1:8:2]

    @property
    def is_outer(self) -> bool:
        """Whether each result is one product, all else zeros beyond the image."""
        thin = min(self.height, self.filter_height) == min(self.width, self.filter_width) == 1
        return thin and (not self.extended or self.filter_height * self.filter_width == 1)

    @property
    def extended(self) -> bool:
        """Whether something other than zeros lies beyond the image."""
        return self.boundary != "fill" or self.filled


def window_of(
    shape: tuple[int, int],
    filter_shape: tuple[int, int],
    mode: str,
    boundary: str = "fill",
    filled: bool = False,
    **known: Any,
) -> Window:
    """The window of a mode; for 'valid', the image is the larger one."""
    (h, w), (fh, fw) = shape, filter_shape
    if mode == "full":
        out, lead = (h + fh - 1, w + fw - 1), (fh - 1, fw - 1)
    elif mode == "same":
        out, lead = (h, w), (fh // 2, fw // 2)
    else:
        out, lead, boundary, filled = (h - fh + 1, w - fw + 1), (0, 0), "fill", False
    filled = filled and boundary == "fill"
    return Window(h, w, fh, fw, *out, *lead, boundary, filled, mode=mode, **known)


class Call(NamedTuple):
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
    machine: Machine  # the one that is asked
    stays: bool  # whether the result may stay on the device that computes it; not of a part

    def of(self, image: Any, filter: Any, **others: Any) -> Call:
        """A part of the call, on these operands, with other options where they are given."""
        a, b = describe(image), describe(filter)
        operands = {"image": image, "filter": filter, "a": a, "b": b, "dtype": _common(a, b)}
        return self._replace(**operands, stays=False, **others).typed()

    def typed(self) -> Call:
        """With the image of the result's dtype, in which devices compute, where that is real."""
        if self.dtype.char not in "fd" or self.a.dtype == self.dtype or self.a.location != HOST:
            return self
        image = converted(self.image, self.dtype)
        return self._replace(image=image, a=describe(image))

    @property
    def is_of_filters(self) -> bool:
        """Whether the image is a stack of filters, each for the second operand as the image."""
        a, b = self.a.shape, self.b.shape
        return self.mode == "valid" and len(a) > 2 and swapped(a[-2:], b)

    @property
    def is_few(self) -> bool:
        """Whether it is placed by prices alone and has so few products that it is SciPy's.

        With less to compute a device only loses: beginning and moving cost the same.
        """
        is_free = self.device is self.method is None and len(self.a.shape) == 2
        is_here = self.a.location == self.b.location == HOST
        return is_free and is_here and self.window().has_few(self.dtype.char)

    @property
    def is_scipys(self) -> bool:
        """Whether no other method computes it, or one of complex numbers is not worth its parts."""
        if self.dtype.char not in FEW_PRODUCTS or not self.a.size * self.b.size:
            return True
        return self.dtype.kind == "c" and (self.method == SCIPY or self.is_few)

    def window(self, **known: Any) -> Window:
        """By the shapes and the boundary, with what is known of the values."""
        image, filter = self.a.shape[-2:], self.b.shape
        if self.is_of_filters:
            image, filter = filter, image
        filled = bool(self.fillvalue)
        return window_of(image, filter, self.mode, self.boundary, filled, **known)

    def problem(self) -> Problem:
        """All of it, whatever parts it is done in, by all but the values."""
        return described(self.a, self.b, self.dtype, self.window())


def converted(x: Any, dtype: np.dtype, part: str = "real") -> Any:
    """The real or imaginary part of an array or Spec, in a dtype."""
    if isinstance(x, Spec):
        return Spec(x.shape, dtype)
    return np.ascontiguousarray(getattr(x, part), dtype)


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
) -> Call:
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
    boundary = ALIASES.get(boundary, boundary) if isinstance(boundary, str) else boundary
    is_usual = type(mode) is type(boundary) is str and mode in MODES and boundary in BOUNDARIES
    if not (is_usual and type(fillvalue) in (int, float)):
        if isinstance(mode, str) and mode == "valid":
            swapped(a.shape[-2:], b.shape)  # as SciPy, which looks at the shapes first
        boundary, fillvalue = _as_scipy((a.dtype, b.dtype), mode, boundary, fillvalue)
    common = _common(a, b)
    reads_beyond = mode != "valid" and b.shape != (1, 1)
    if boundary != "fill" or (common.char in FEW_PRODUCTS and not reads_beyond):
        fillvalue = 0
    if mode == "full" and any(n + f == 0 for n, f in zip(a.shape[-2:], b.shape, strict=True)):
        raise ValueError(f"in1 {a.shape} and in2 {b.shape} are both empty along an axis")
    if mode == "valid" and swapped(a.shape[-2:], b.shape) and len(a.shape) == 2:
        image, filter, a, b = filter, image, b, a
    options = mode, boundary, fillvalue, device, method, machine, machine.is_here
    return Call(image, filter, a, b, common, *options).typed()


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


def _common(a: Operand, b: Operand) -> np.dtype:
    """The dtype of the result; SciPy's error where there is none."""
    try:
        common = np.result_type(a.dtype, b.dtype)
    except TypeError:
        common = np.dtype(object)
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
    for name, value, valid in (
        ("mode", mode, MODES),
        ("boundary", boundary, (*BOUNDARIES, *ALIASES)),
    ):
        if isinstance(value, str) and value not in valid:
            raise ValueError(one_of(name, valid, value))
    reference = load("scipy.signal").convolve2d
    nothing, one = np.zeros((0, 1), dtypes[0]), np.ones((1, 1), dtypes[1])
    reference(nothing, one, mode, boundary, fillvalue)
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
    """A problem of operands in the dtype that is computed in."""
    location = image.location if image.location != HOST else kernel.location
    batch = image.shape[:-2]
    strides = image.staged_strides()
    obstacle = dtype_obstacle(image, kernel)
    if obstacle is None and len(batch) > 1 and not image.is_c_contiguous():
        obstacle = "a stack with several axes must be contiguous"
    out = dense((*batch, found.out_height, found.out_width), dtype, location)
    known = {"batch": prod(batch), "function": NAME, "device_obstacle": obstacle}
    if strides is not None:
        packed = found.out_height * found.out_width, found.out_width, 1
        known["strides"] = (strides[-3] if batch else 0, *strides[-2:]), packed
    dims = found[:4]
    return Problem(NAME, dims, name_of(dtype), (image, kernel), out, options=found, **known)
