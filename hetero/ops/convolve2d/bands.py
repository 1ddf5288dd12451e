"""Images in bands of rows: which rows of the image each reads, and what is a call of its own.

`cut` is for what several devices share.
"""

from __future__ import annotations

import numpy as np

from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import described
from hetero.ops.convolve2d.window import Window
from hetero.registry import Cut
from hetero.registry.problem import Problem


def cut(problem: Problem, parts: int) -> Cut | None:
    """A stack is cut into smaller ones, an image into bands of rows; None where these would read as
    many rows as there are."""
    image, filter, out = *problem.inputs, problem.output
    found, dtype, stacked = problem.options, out.dtype, len(image.shape) > 2

    def part(begin: int, end: int) -> Problem:
        if stacked:
            some = image._replace(shape=(end - begin, *image.shape[1:]))
            return described(some, filter, dtype, found)
        window = band(found, begin, end)
        some = image._replace(shape=(window.height, window.width))
        if is_copied(found, begin, end) and some.is_dense():
            row, column = some.strides
            some = some._replace(strides=(2 * row, 2 * column))  # so that packing is priced
        return described(some, filter, dtype, window)

    def arrays(
        begin: int, end: int, whole: tuple[np.ndarray], options: FilterOptions
    ) -> tuple[np.ndarray]:
        return (whole[0][begin:end] if stacked else band_of(whole[0], found, begin, end),)

    def output(begin: int, end: int, whole: np.ndarray) -> np.ndarray:
        return whole[begin:end]

    extent = out.shape[0]
    rows = -(-extent // parts) + found.filter_height - 1
    if extent < 2 or (not stacked and rows >= found.height):
        return None
    return Cut("images" if stacked else "rows", extent, part, arrays, output)


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


def is_copied(whole: Window, begin: int, end: int) -> bool:
    """Whether a band is no view of the image: it reads rows beyond the edge that have values."""
    first, last = _reach(whole, begin, end)
    return whole.boundary != "fill" and (first < 0 or last > whole.height)


def band_of(image: np.ndarray, whole: Window, begin: int, end: int) -> np.ndarray:
    """The rows that `views` gives as one C-contiguous array; a view where they are one."""
    parts = views(image, whole, begin, end)
    return np.ascontiguousarray(parts[0] if len(parts) == 1 else np.concatenate(parts))
