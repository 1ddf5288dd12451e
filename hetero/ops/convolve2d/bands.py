"""Images in bands of rows: which rows of the image each reads, and what is a call of its own.

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
    windows = [band(found, *half) for half in rows]
    if not middle or max(half.height for half in windows) >= found.height:
        return None
    parts = (
        (half, band_of(image, found, begin, end), out[begin:end])
        for half, (begin, end) in zip(windows, rows, strict=True)
    )
    return _pieces(problem, parts)


def _pieces(
    problem: Problem, parts: Iterable[tuple[Window, np.ndarray, np.ndarray]]
) -> Iterator[Piece]:
    for found, image, out in parts:
        half = described(describe(image), problem.inputs[1], out.dtype, found)
        yield Piece(half, (image,), out)


def band(whole: Window, begin: int, end: int) -> Window:
    """The window of rows ``begin`` to ``end`` of the result, in the rows of the image they read.

    With boundary "fill" these end where the image does. Else they are those of the image extended
    above and below, so that nothing beyond them is read but to the left and right.
    """
    first, last = _reach(whole, begin, end)
    lower, upper = first, last
    if whole.boundary == "fill":
        lower, upper = max(first, 0), min(last, whole.height)
    return whole._replace(height=upper - lower, out_height=end - begin, top=lower - first)


def _reach(whole: Window, begin: int, end: int) -> tuple[int, int]:
    """The rows of the extended image that some rows of the result read."""
    return begin - whole.top, end - whole.top + whole.filter_height - 1


def views(image: np.ndarray, whole: Window, begin: int, end: int) -> list[np.ndarray]:
    """The rows of the image that rows of the result read, from top to bottom; views of it.

    One, but for bands at the upper and the lower edge of images that go on beyond it.

    Parameters
    ----------
    image : (h, w) ndarray
    whole : Window
    begin, end : int
        Rows of the result; their window is `band`.
    """
    first, last = _reach(whole, begin, end)
    h = whole.height
    if whole.boundary == "fill":
        return [image[max(first, 0) : min(last, h)]]
    found = []
    for copy in range(first // h, -(-last // h)):  # the image itself is number 0
        part = slice(max(first - copy * h, 0), min(last - copy * h, h))
        mirrored = whole.boundary == "symm" and copy % 2
        found.append(image[::-1][part] if mirrored else image[part])
    return found


def band_of(image: np.ndarray, whole: Window, begin: int, end: int) -> np.ndarray:
    """The rows that `views` gives as one C-contiguous array; a view where they are one."""
    parts = views(image, whole, begin, end)
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
