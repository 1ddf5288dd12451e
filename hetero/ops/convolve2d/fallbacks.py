"""Convolutions that no plan is made for: complex numbers, other dtypes, stacks of filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hetero.arrays import describe
from hetero.ops.convolve2d.operands import NAME
from hetero.runtime import planner


def one_by_one(convolve2d: Any, image: Any, kernel: Any, *options: Any) -> Any:
    """A stack of small images, each of which 'valid' takes as the filter of the second operand."""
    mode, boundary, fillvalue, device, method = options
    if not isinstance(image, np.ndarray):
        return by_the_host(convolve2d, image, kernel, *options)
    planes = image.reshape(-1, *image.shape[-2:])
    where = {"device": device, "method": method}
    found = [convolve2d(p, kernel, mode, boundary, fillvalue, **where) for p in planes]
    return np.reshape(found, (*image.shape[:-2], *np.shape(found)[-2:]))


def by_the_host(convolve2d: Any, image: Any, kernel: Any, *options: Any) -> Any:
    """Device arrays of dtypes and layouts that are computed from NumPy arrays instead."""
    from hetero.runtime import transfer

    mode, boundary, fillvalue, device, method = options
    like = next(x for x in (image, kernel) if not isinstance(x, np.ndarray))
    hosts = [
        x if isinstance(x, np.ndarray) else np.asarray(transfer.to_host(x, describe(x)))
        for x in (image, kernel)
    ]
    result = convolve2d(*hosts, mode, boundary, fillvalue, device=device, method=method)
    made, _ = transfer.empty_like(like, describe(like), result.shape, result.dtype)
    transfer.from_host(result, made, describe(made))
    return made


def by_parts(
    convolve2d: Any,
    image: np.ndarray,
    kernel: np.ndarray,
    mode: str,
    boundary: str,
    fillvalue: complex,
    device: str | None,
    method: str | None,
) -> np.ndarray:
    """Complex operands as sums of real convolutions.

    By SciPy where the result is not finite: it takes a real operand for a complex one, whose
    imaginary zeros times infinity are NaN.
    """
    dtype = np.result_type(image.dtype, kernel.dtype)
    if dtype.char not in "FD" or not image.size * kernel.size:
        planner.check_placement(NAME, device, method)
        return by_scipy(image, kernel, mode, boundary, fillvalue)
    real = np.dtype(dtype.char.lower())
    fill = complex(fillvalue)
    options = {"device": device, "method": method}

    def parts(of_kernel: np.ndarray) -> list[np.ndarray]:
        """The image's real part, and its imaginary one if there is one, with a real filter."""
        of_kernel = np.ascontiguousarray(of_kernel, real)
        if len(images) == 2 and fill == 0.0:  # both at once
            return [*convolve2d(both, of_kernel, mode, boundary, 0, **options)]
        values = fill.real, fill.imag
        return [
            convolve2d(image, of_kernel, mode, boundary, value, **options)
            for image, value in zip(images, values, strict=False)
        ]

    images = [np.ascontiguousarray(image.real, real)]
    if image.dtype.kind == "c" or fill.imag != 0.0:
        images.append(np.ascontiguousarray(image.imag, real))
    both = np.stack(images) if len(images) == 2 and fill == 0.0 else None
    with_real = parts(kernel.real)
    out = np.zeros(with_real[0].shape, dtype)
    out.real = with_real[0]
    if len(images) == 2:
        out.imag = with_real[1]
    if kernel.dtype.kind == "c":
        with_imaginary = parts(kernel.imag)
        with np.errstate(all="ignore"):  # as SciPy's loops, which look at no flags
            out.imag += with_imaginary[0]
            if len(images) == 2:
                out.real -= with_imaginary[1]
    if not np.isfinite(out).all():
        return by_scipy(image, kernel, mode, boundary, fillvalue)
    return out


def by_scipy(
    image: np.ndarray, kernel: np.ndarray, mode: str, boundary: str, fillvalue: Any
) -> np.ndarray:
    """`scipy.signal.convolve2d` of an image, or of each of a stack, whatever the dtypes."""
    from scipy.signal import convolve2d as reference

    if not image.size:  # SciPy divides by the extents of what it repeats
        boundary, fillvalue = "fill", fillvalue if boundary == "fill" else 0
    if image.ndim == 2:
        return reference(image, kernel, mode, boundary, fillvalue)
    planes = image.reshape(-1, *image.shape[-2:]) if image.size else image[:0]
    found = [reference(plane, kernel, mode, boundary, fillvalue) for plane in planes]
    if not found:
        blank = np.zeros((max(image.shape[-2], 1), max(image.shape[-1], 1)), image.dtype)
        one = reference(blank, kernel, mode, boundary, fillvalue)
        return np.zeros((*image.shape[:-2], *one.shape), one.dtype)
    return np.reshape(found, (*image.shape[:-2], *found[0].shape))
