"""Images that do not fit a device: convolved there in bands of rows, one after the other.

`rows_with_room` cuts what is larger than a device's memory, `halves` what found no room in what is
free.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from hetero.arrays import HOST, describe
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import CheckedCall, described
from hetero.ops.convolve2d.window import Window
from hetero.runtime.plan import CPU
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Piece

LARGE = 1 << 30  # bytes of image and result below which every device is taken to have room
# Of a device's memory, for a band and its result; transforms need as much again, or more.
_SHARE = 0.3


def rows_with_room(call: CheckedCall, found: Window) -> int | None:
    """How many rows of the result fit the largest device; None where all of them do.

    Parameters
    ----------
    call : CheckedCall
        Nothing but a single image on the host is cut.
    found : Window
        Of the whole.
    """
    a, b = call.a, call.b
    if not a.location == b.location == HOST or len(a.shape) > 2 or a.nbytes + b.nbytes <= LARGE / 2:
        return None
    needed = a.nbytes + found.out_height * found.out_width * call.dtype.itemsize
    rooms = [
        info["memory_bytes"]
        for name, info in call.machine.devices().items()
        if info["kind"] != CPU
        and not info.get("set_aside")
        and call.device in (None, name, info["kind"])
    ]
    if not rooms or needed <= 0.9 * max(rooms):
        return None
    return min(max(int(found.out_height * _SHARE * max(rooms) / needed), 1), found.out_height)


def halves(
    problem: Problem, arrays: tuple[np.ndarray, ...], options: FilterOptions, out: np.ndarray
) -> Iterator[Piece] | None:
    """The convolution of a host image, or of a stack of them, as two; None where too small."""
    (image,), found = arrays, problem.options
    middle = out.shape[0] // 2
    rows = (0, middle), (middle, out.shape[0])
    if image.ndim > 2:
        parts = ((found, image[begin:end], out[begin:end]) for begin, end in rows)
        return _pieces(problem, parts) if middle else None
    windows = [band(found, end - begin) for begin, end in rows]
    if not middle or max(half.height for half in windows) >= found.height:
        return None
    parts = (
        (
            half,
            extended_rows(image, begin - found.top, half.height, found, options.fillvalue),
            out[begin:end],
        )
        for half, (begin, end) in zip(windows, rows, strict=True)
    )
    return _pieces(problem, parts)


def _pieces(
    problem: Problem, parts: Iterable[tuple[Window, np.ndarray, np.ndarray]]
) -> Iterator[Piece]:
    for found, image, out in parts:
        half = described(describe(image), problem.inputs[1], out.dtype, found)
        yield Piece(half, (image,), out)


def band(whole: Window, rows: int) -> Window:
    """The window of so many rows of the result, of the rows of the image that they read."""
    return whole._replace(height=rows + whole.filter_height - 1, out_height=rows, top=0)


def extended_rows(
    image: np.ndarray, first: int, count: int, found: Window, fillvalue: float
) -> np.ndarray:
    """Rows of the image extended above and below; a view where none of them lies outside."""
    h = found.height
    if first >= 0 and first + count <= h:
        return np.ascontiguousarray(image[first : first + count])
    at = np.arange(first, first + count)
    if found.boundary == "fill":
        part = np.full((count, found.width), fillvalue, image.dtype)
        inside = (at >= 0) & (at < h)
        part[inside] = image[at[inside]]
        return part
    at %= h if found.boundary == "wrap" else 2 * h
    return np.ascontiguousarray(image[np.where(at < h, at, 2 * h - 1 - at)])
