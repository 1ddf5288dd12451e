"""Images on the host cut into ranges: groups of whole images, or bands of rows of each.

A band reads the rows of the image that its results need. What convolves a range is what the plan of
that convolution, with the range on the device, chooses.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from hetero.arrays import HOST, dense
from hetero.ops.convolve2d import tiles, value_ranges
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import described
from hetero.ops.convolve2d.window import FFT, Window
from hetero.pricing.plan import Plan
from hetero.profile import Profile
from hetero.registry import Cut
from hetero.registry.problem import Problem

Box = tuple[tuple[int, int], ...]
_WORKSPACE = 4  # of transforms, times a range and its result


def cut(problem: Problem) -> Cut:
    """How a convolution is cut: images first, then rows."""
    image, filter = problem.inputs
    whole, dtype = problem.options, np.dtype(problem.dtype)
    stacked = len(image.shape) > 2

    def window_of(box: Box) -> Window:
        return whole if box[1] == (0, whole.out_height) else band(whole, *box[1])

    def part(box: Box, place: str) -> Problem:
        window, (first, last) = window_of(box), box[0]
        shape = (*(last - first,) * stacked, window.height, window.width)
        if place != HOST:
            return described(dense(shape, dtype, place), filter, dtype, window)
        some = image._replace(shape=shape, strides=image.strides[-len(shape) :])
        if window is not whole and is_copied(whole, *box[1]) and some.is_dense():
            strides = *some.strides[:-2], *(2 * s for s in some.strides[-2:])
            some = some._replace(strides=strides)  # so that packing is priced
        return described(some, filter, dtype, window)

    def arrays(box: Box, given: tuple[np.ndarray]) -> tuple[list[np.ndarray]]:
        stack = np.asarray(given[0], dtype)
        if stacked:
            stack = stack.reshape(-1, *stack.shape[-2:])[slice(*box[0])]
        if window_of(box) is whole:
            return ([stack],)
        found = views(stack, whole, *box[1])
        if len(found) > 1 and box[0][1] - box[0][0] > 1:  # each image's rows lie together
            found = [np.concatenate(found, axis=-2)]
        return (found,)

    def output(box: Box, out: np.ndarray) -> np.ndarray:
        if stacked:
            out = out.reshape(-1, *out.shape[-2:])[slice(*box[0])]
        return out[..., slice(*box[1]), :]

    return Cut(
        axes=(("images", problem.batch), ("rows", whole.out_height)),
        needs=((0, 1),),
        problem=part,
        arrays=arrays,
        output=output,
        steps=(1, 1),
        seconds=(0.0, 2.8e-4),  # H100, 16 cores
        both=0.7,
        whole=partial(_whole, whole),
        workspace=_WORKSPACE,
        priced=_priced,
        look=_by_values,
    )


def _whole(window: Window, plan: Plan, lengths: tuple[int, int]) -> tuple[int, int]:
    """Whole rows of the tiles that a transform computes, where some are whole."""
    (images, rows), height = lengths, window.out_height
    if rows == height or plan.candidates[0].method != FFT:
        return lengths
    tile = tiles.on_device(window)[0].step
    return (images, rows // tile * tile) if tile < rows else lengths


def _priced(plan: Plan, constants: Profile) -> Plan:
    """The plan of a range, with a look at its values where it is transformed."""
    return value_ranges.priced(plan, value_ranges.seconds(plan.problem, constants.machine()))


def _by_values(plan: Plan, found: list[np.ndarray], options: FilterOptions) -> Problem:
    """The problem of a range as its values decide it: a transform might lose some."""
    problem, window = plan.problem, plan.problem.options
    if plan.chosen.method != FFT:
        return problem
    pixels = np.concatenate(found, axis=-2) if len(found) > 1 else found[0]
    seen = value_ranges.seen(pixels, options.filter, window, options.fillvalue)
    return problem if seen == window else replace(problem, options=seen)


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
    """The rows of an image (..., h, w) that rows of the result read, whose window is `band`, from
    top to bottom; views of it.

    One, but for bands at the upper and the lower edge of images that go on beyond it.
    """
    first, last = _reach(whole, begin, end)
    h = whole.height
    if whole.boundary == "fill":
        return [image[..., max(first, 0) : min(last, h), :]]
    found = []
    for copy in range(first // h, -(-last // h)):  # the image itself is number 0
        part = slice(max(first - copy * h, 0), min(last - copy * h, h))
        mirrored = whole.boundary == "symm" and copy % 2
        found.append((image[..., ::-1, :] if mirrored else image)[..., part, :])
    return found


def is_copied(whole: Window, begin: int, end: int) -> bool:
    """Whether a band is no view of the image: it reads rows beyond the edge that have values."""
    first, last = _reach(whole, begin, end)
    return whole.boundary != "fill" and (first < 0 or last > whole.height)
