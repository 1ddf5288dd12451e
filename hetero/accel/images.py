"""Two-dimensional convolutions of SciPy's: which of them `hetero.convolve2d` can compute."""

from __future__ import annotations

import functools
import numbers
import sys
from collections.abc import Callable
from typing import Any

from hetero.accel.notes import shapes
from hetero.accel.session import Attempt, Session, planned, wrapped
from hetero.imports import load

# Seconds of SciPy's functions: for each product of the sum, for each result by transforms.
_PRODUCT, _FILTERED, _TRANSFORMED = 2.5e-9, 1.5e-9, 3e-8
_SMALL = 1 << 18  # products of the sum, which no function takes `session.LEAST` for
_BOUNDARIES = {"reflect": "symm", "constant": "fill", "wrap": "wrap", "grid-wrap": "wrap"}
# Methods that are SciPy's own function, which would gain nothing by them.
_OWN = {"fftconvolve": (), "oaconvolve": ("fft",), "convolve": ()}


def replaced(session: Session, name: str, original: Any) -> Any:
    """What stands in the place of a function of `scipy.signal` or `scipy.ndimage`."""
    package, _, function = name.rpartition(".")
    recognise = _filtered if package == "scipy.ndimage" else _summed
    if recognise is _filtered or function.endswith("2d"):
        recognise = functools.partial(recognise, flipped=function.startswith("correlate"))
    else:
        recognise = functools.partial(_transformed, function)
    return wrapped(session, name, original, recognise, _SMALL)


def _summed(
    looks: Callable[[float], bool],
    in1: Any,
    in2: Any,
    mode: str = "full",
    boundary: str = "fill",
    fillvalue: Any = 0,
    *,
    flipped: bool,
) -> Attempt | None:
    """`scipy.signal.convolve2d` and `correlate2d`."""
    if not _are_images(in1, in2) or not isinstance(fillvalue, numbers.Real):
        return None
    large, small = max(in1.size, in2.size), min(in1.size, in2.size)
    seconds = large * small * _PRODUCT
    if not looks(seconds):
        return None
    what = f"{shapes((in1, in2))} {mode}"
    if flipped:
        if mode == "valid" and any(a < b for a, b in zip(in1.shape, in2.shape, strict=True)):
            return Attempt(what, seconds, ("option", "the second one is the larger one"))
        if mode == "same" and not all(n % 2 for n in in2.shape):
            return Attempt(what, seconds, ("option", "a filter of even size has another centre"))
        in2 = in2[::-1, ::-1]
    return _attempt(what, seconds, (in1, in2, mode, boundary, fillvalue), ())


def _transformed(
    function: str,
    looks: Callable[[float], bool],
    in1: Any,
    in2: Any,
    mode: str = "full",
    *arguments: Any,
    **options: Any,
) -> Attempt | None:
    """`scipy.signal.fftconvolve`, `oaconvolve`, and `convolve`, which chooses for itself."""
    if not _are_images(in1, in2):
        return None
    if min(in1.size, in2.size) < 2:  # a factor, which SciPy multiplies by
        return None
    seconds = (in1.shape[0] + in2.shape[0]) * (in1.shape[1] + in2.shape[1]) * _TRANSFORMED
    if function == "convolve":
        seconds = min(seconds, in1.size * in2.size * _PRODUCT)
    if not looks(seconds):
        return None
    what = f"{shapes((in1, in2))} {mode}"
    option, allowed = (
        ("method", ("auto", "fft", "direct")) if function == "convolve" else ("axes", (None,))
    )
    if options.keys() - {option} or any(x not in allowed for x in (*arguments, *options.values())):
        return Attempt(what, seconds, ("option", f"{option}= is given"))
    if in1.dtype != in2.dtype:  # the narrower one's transform is rounded to it
        return Attempt(what, seconds, ("dtype", f"{in1.dtype} and {in2.dtype} together"))
    larger = [a >= b for a, b in zip(in1.shape, in2.shape, strict=True)]
    if not all(larger):  # a filter larger than its image: the sum would be long
        if any(larger) or mode != "full" or function == "convolve":  # which may give a view
            return Attempt(what, seconds, ("option", "the second one is the larger one"))
        in1, in2 = in2, in1
    exact = function == "convolve"  # which may be the direct sum; others are not exact in SciPy
    return _attempt(what, seconds, (in1, in2, mode), _OWN[function], exact)


def _filtered(
    looks: Callable[[float], bool],
    input: Any,
    weights: Any,
    output: Any = None,
    mode: str = "reflect",
    cval: float = 0.0,
    origin: Any = 0,
    *,
    axes: Any = None,
    flipped: bool,
) -> Attempt | None:
    """`scipy.ndimage.convolve` and `correlate`."""
    if not _are_images(input, weights) or not isinstance(cval, numbers.Real):
        return None
    seconds = input.size * weights.size * _FILTERED
    if not looks(seconds):
        return None
    what = f"{shapes((input, weights))} {mode}"
    obstacle = None
    if output is not None or origin != 0 or axes is not None or mode not in _BOUNDARIES:
        obstacle = "option", f"output=, origin=, axes= or mode={mode!r} is given"
    elif input.dtype.char != "d" or weights.dtype.char != "d":
        obstacle = "dtype", "float32, which ndimage sums in float64"
    elif not all(n % 2 for n in weights.shape):
        obstacle = "option", "a filter of even size has another centre"
    elif any(n < f for n, f in zip(input.shape, weights.shape, strict=True)):
        obstacle = "option", "the filter is larger than the image"
    if obstacle is not None:
        return Attempt(what, seconds, obstacle)
    kernel = weights[::-1, ::-1] if flipped else weights
    return _attempt(what, seconds, (input, kernel, "same", _BOUNDARIES[mode], cval), ())


def _are_images(image: Any, kernel: Any) -> bool:
    ndarray = sys.modules["numpy"].ndarray
    return (
        type(image) is type(kernel) is ndarray
        and image.ndim == kernel.ndim == 2
        and image.dtype.char in "fd"
        and kernel.dtype.char in "fd"
    )


def _attempt(
    what: str,
    seconds: float,
    arguments: tuple[Any, ...],
    own: tuple[str, ...],
    exact: bool = True,
) -> Attempt:
    """An attempt of ``hetero.convolve2d(*arguments)``; ``own``: methods that are SciPy's; zeros are
    to be ``exact`` or not."""
    options = dict(zip(("mode", "boundary", "fillvalue"), arguments[2:], strict=False))

    def compute(plan: Any) -> Any:
        wanted = load("hetero.ops.convolve2d.filters").exact_zeros
        before = wanted.set(exact)
        try:
            result = load("hetero.ops.convolve2d").convolve2d(*arguments)
        finally:
            wanted.reset(before)
        numpy = sys.modules["numpy"]
        with numpy.errstate(all="ignore"):
            return result if numpy.isfinite(result.sum()) else None

    plan = functools.partial(planned, "convolve2d", *arguments[:2], **options)
    return Attempt(what, seconds, None, plan, (*own, "scipy"), compute, arguments[:2])
