"""What a convolution is asked: operands checked as SciPy would, and made a problem."""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import cache
from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np

from hetero.arrays import HOST, Operand, Spec, as_array, describe, element_strides, is_device_array
from hetero.runtime.problem import Problem, Window, check_dims, dtype_obstacle

log = logging.getLogger("hetero")

NAME = "convolve2d"
MODES = ("full", "same", "valid")
BOUNDARIES = ("fill", "wrap", "symm")
TRANSFORMS = ("fft", "overlap_save")
SPREADING = (*TRANSFORMS, "separable")  # methods that add up more than the filter covers
_NARROW = 16  # a stack of more images, higher than that and 3 or 4 wide, may be an image in colour
LARGEST_DOWNLOADED = 1024  # elements of a filter on a device whose rank may be looked at
ALIASES = {"pad": "fill", "circular": "wrap", "symmetric": "symm"}  # as SciPy


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


def checked(
    dtypes: tuple[np.dtype, np.dtype], mode: Any, boundary: Any, fillvalue: Any
) -> tuple[str, Any]:
    """The boundary's own name and the fill value as a number; SciPy's errors."""
    from scipy.signal import convolve2d as reference

    for name, value, valid in (
        ("mode", mode, MODES),
        ("boundary", boundary, (*BOUNDARIES, *ALIASES)),
    ):
        if isinstance(value, str) and value not in valid:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, valid))}, got {value!r}")
    nothing, one = np.zeros((0, 1), dtypes[0]), np.ones((1, 1), dtypes[1])
    reference(nothing, one, mode, boundary, fillvalue)
    boundary = ALIASES.get(boundary, boundary)
    if boundary != "fill":
        return boundary, 0
    zero, taps = np.zeros((1, 1), dtypes[0]), np.zeros((1, 2), dtypes[1])
    taps[0, 1] = 1  # reads the value beyond
    return boundary, reference(zero, taps, "same", "fill", fillvalue)[0, 0].item()


def window(
    shape: tuple[int, int],
    filter_shape: tuple[int, int],
    mode: str,
    boundary: str = "fill",
    filled: bool = False,
    rank: int = 0,
    finite: bool = True,
    wide_range: bool = False,
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
    return Window(h, w, fh, fw, *out, *lead, boundary, filled, rank, finite, wide_range)


@cache
def _say_once(message: str) -> None:
    log.warning(message)


def note_channels(shape: tuple[int, ...]) -> None:
    """Say once that an image with its channels last is taken for a stack of narrow images."""
    if shape[-1] in (3, 4) and min(shape[:-1]) > _NARROW:
        _say_once(
            f"convolve2d takes an array of shape {shape} for {shape[0]} images of "
            f"{shape[1]} x {shape[2]}; of an image with its channels last give "
            "np.moveaxis(image, -1, 0)"
        )


def described(image: Operand, kernel: Operand, dtype: np.dtype, found: Window) -> Problem:
    """A problem of operands whose dtypes were settled."""
    location = next((o.location for o in (image, kernel) if o.location != HOST), HOST)
    batch = image.shape[:-2]
    shape = (*batch, found.out_height, found.out_width)
    strides = element_strides(shape)
    output = Operand(shape, tuple(s * dtype.itemsize for s in strides), dtype, location)
    steps = image.staged_strides()
    obstacle = dtype_obstacle(image, kernel)
    if obstacle is None and len(batch) > 1 and not image.is_c_contiguous():
        obstacle = "a stack with several axes must be contiguous"
    if obstacle is None and image.location == HOST != kernel.location:
        obstacle = "the filter lies on a device and the image does not"
    each = found.out_height * found.out_width
    apart = steps[-3] if steps is not None and batch else 0
    return Problem(
        NAME,
        (found.height, found.width, found.filter_height, found.filter_width),
        dtype.name,
        (image, kernel),
        output,
        batch=prod(batch),
        strides=((apart, *steps[-2:]), (each, found.out_width, 1)) if steps is not None else (),
        function=NAME,
        device_obstacle=obstacle,
        window=found,
    )


def _of_dtype(operand: Operand, dtype: np.dtype) -> Operand:
    """The operand after conversion, which makes it contiguous; itself where there is none."""
    if operand.dtype == dtype:
        return operand
    strides = tuple(s * dtype.itemsize for s in element_strides(operand.shape))
    return operand._replace(dtype=dtype, strides=strides)


def problem(
    in1: Any, in2: Any, mode: str = "full", boundary: str = "fill", fillvalue: Any = 0
) -> Problem:
    """The problem of ``convolve2d(in1, in2, ...)`` for arrays or `hetero.spec` stand-ins.

    With arrays the filter's rank is looked at, and whether all values on the host are finite and
    of sizes that a transform keeps.

    Raises
    ------
    ValueError
        For wrong numbers of dimensions, an unknown mode or boundary, and shapes that "valid" does
        not take.
    """
    arrays = [x if isinstance(x, Spec) else as_array(x) for x in (in1, in2)]
    image, kernel = map(describe, arrays)
    if len(image.shape) < 2 or len(kernel.shape) != 2:
        raise ValueError(
            "in1 must have at least 2 dimensions and in2 must have 2, "
            f"got {image.shape} and {kernel.shape}"
        )
    boundary = ALIASES.get(boundary, boundary)
    if mode not in MODES:
        raise ValueError(f"mode must be one of {', '.join(map(repr, MODES))}, got {mode!r}")
    if boundary not in BOUNDARIES:
        names = ", ".join(map(repr, BOUNDARIES))
        raise ValueError(f"boundary must be one of {names}, got {boundary!r}")
    if mode == "valid" and swapped(image.shape[-2:], kernel.shape):
        if len(image.shape) > 2:
            raise ValueError(f"a stack of filters has no plan of its own, got {image.shape}")
        image, kernel, arrays = kernel, image, arrays[::-1]
    if type(fillvalue) not in (int, float):
        boundary, fillvalue = checked((image.dtype, kernel.dtype), mode, boundary, fillvalue)
    dtype = np.result_type(image.dtype, kernel.dtype)
    rank, finite, wide_range = 0, True, False
    if boundary != "fill":
        fillvalue = 0
    if is_device_array(arrays[1]) and kernel.size <= LARGEST_DOWNLOADED:
        from hetero.runtime import transfer

        arrays[1] = transfer.to_host(arrays[1], kernel)
    known = isinstance(arrays[1], np.ndarray)
    if dtype.char in "fd":
        image, kernel = _of_dtype(image, dtype), _of_dtype(kernel, dtype)
        if known and kernel.size:
            rank = rank_of(filter_of(arrays[1], dtype))
        finite = all(np.isfinite(x).all() for x in arrays if isinstance(x, np.ndarray))
        finite = finite and bool(np.isfinite(fillvalue))
    filled = bool(fillvalue)
    found = window(image.shape[-2:], kernel.shape, mode, boundary, filled, rank, bool(finite))
    if dtype.char in "fd" and known and image.size and kernel.size:
        filter = filter_of(arrays[1], dtype)
        pixels = arrays[0] if isinstance(arrays[0], np.ndarray) else None
        wide_range = is_wide(pixels, filter, found, fillvalue)
    return described(image, kernel, dtype, found._replace(wide_range=wide_range))


def named(problem: Problem, method: str) -> Problem:
    """The problem where a method is asked for: it is taken, however values differ in size."""
    if method not in TRANSFORMS or problem.window is None:
        return problem
    return replace(problem, window=problem.window._replace(wide_range=False))


def is_wide(image: np.ndarray | None, filter: Any, found: Window, fillvalue: float) -> bool:
    """Whether a transform would lose small values; see `hetero.ops.convolve2d.ranges`."""
    if filter.array is None:
        return False
    return _filtering().wide(image, filter, found, fillvalue)


def from_dims(dims: tuple[int, ...], dtype: str, on: str, mode: str = "full") -> Problem:
    """The problem with dimensions H W FH FW, as ``hetero explain convolve2d`` asks for it."""
    check_dims(NAME, dims, "H W FH FW")
    return problem(Spec(dims[:2], dtype, on=on), Spec(dims[2:], dtype, on=on), mode)


@cache
def _filtering() -> Any:
    """What only a call needs, loaded once: at the interpreter's end nothing can be."""
    from hetero.ops.convolve2d.ranges import wide
    from hetero.ops.convolve2d.request import Filter, Request

    return SimpleNamespace(Filter=Filter, Request=Request, wide=wide)


def filter_of(kernel: np.ndarray, dtype: np.dtype) -> Any:
    """The filter of a host array."""
    return _filtering().Filter(np.ascontiguousarray(kernel, dtype))


def filter_there(kernel: Any, operand: Operand) -> Any:
    """The filter that stays on its device, its values unknown."""
    return _filtering().Filter(None, kernel, operand)


def request_of(filter: Any, fillvalue: float) -> Any:
    """What an implementation gets beside the image."""
    return _filtering().Request(filter, fillvalue)


def rank_of(filter: Any) -> int:
    """Number of factors of a filter; 0 where there are too many, or its values are not known."""
    return 0 if filter.factors is None else len(filter.factors[0])
