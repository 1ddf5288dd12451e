"""What calibration measures of convolutions: each method over sizes of images and filters."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from hetero import registry
from hetero.arrays import HOST, spec
from hetero.imports import load
from hetero.ops.cases import Budget, Case, Dims, Passes, Place, grid, thinned
from hetero.ops.convolve2d.filters import Filter, FilterOptions
from hetero.ops.convolve2d.operands import described
from hetero.ops.convolve2d.window import DIRECT, FFT, NAME, SEPARABLE, window_of
from hetero.registry import Implementation
from hetero.registry.problem import DEVICE_DTYPES, Problem

# By kind of device, "" for others; on devices fewer filters: each takes some kernels to compile.
_IMAGES = {
    "cpu": (4, 16, 64, 128, 256, 512, 1024, 4096),
    "opencl": (4, 16, 64, 256),
    "": (16, 256, 1024, 4096, 8192),
}
_IMAGES_TRANSFORMED = (4, 16, 32, 64, 128, 256, 512, 768, 1024, 2048, 4096)  # on the CPU
_FILTERS = {
    DIRECT: {"cpu": (1, 2, 3, 5, 11, 31, 63, 129), "": (1, 3, 7, 15, 63)},
    SEPARABLE: {"cpu": (3, 7, 15, 31, 63), "": (3, 15, 63)},  # of rank 1
}
_HELD_OUT = ((100, 4), (300, 13), (700, 6), (1500, 3), (2900, 20))
_HELD_OUT_DEVICE = ((300, 13), (2900, 20))  # a transform of a new size takes long to prepare
_LONGEST = 0.02  # seconds of one call; with images alone to go through, four times that
_PASSES, _PASSES_FEWER = 3, 2  # on the CPU, where noise lasts longest; quickly, and on devices
_KNOT, _DEVICE_KNOT = 0.006, 0.1  # seconds for one in a pass, at most in proportion to other cases
_EXAMPLE = (64, 5)


def cases(place: Place, budget: Budget) -> Iterator[Case]:
    """Every implementation at a place, by dtype."""
    for implementation in registry.lookup(NAME):
        if implementation.kind == place.kind and implementation.method in (FFT, *_FILTERS):
            yield from _measured(implementation, place, budget)


def _sizes(method: str, kind: str, step: float) -> list[Dims]:
    """Extents of images and filters; these are small beside an image that is transformed."""
    images = _IMAGES.get(kind, _IMAGES[""])
    if method == FFT:
        images = _IMAGES_TRANSFORMED if kind == "cpu" else images
        return [(n, min(33, max(n // 48, 3))) for n in thinned(images, step)]
    filters = _FILTERS[method]
    return grid([thinned(images, step), thinned(filters.get(kind, filters[""]), step)])


def _measured(implementation: Implementation, place: Place, budget: Budget) -> Iterator[Case]:
    on_cpu, form = not place.devices, "surface" if implementation.method == FFT else "filter"
    # Methods are close to one another.
    sizes = _sizes(implementation.method, place.kind, budget.step**0.5)
    largest = sizes[-1][0]
    options = functools.cache(_options)  # its filters stay on the device as long as the cases
    for dtype in DEVICE_DTYPES:
        problem = functools.partial(_problem, implementation, dtype, place.operands_on)
        host = functools.partial(_problem, implementation, dtype, HOST)
        if implementation.obstacle(host(largest, 5), place.info) is not None:
            continue
        block = 1
        if on_cpu and form == "filter":
            direct_cpu = load("hetero.ops.convolve2d.direct_cpu")
            block = direct_cpu.block_width(np.dtype(dtype))
        between = _HELD_OUT if on_cpu or form == "filter" else _HELD_OUT_DEVICE
        knots, held_out = (
            _by_work(implementation, problem, points, form, block)
            for points in (sizes, [size for size in between if size[0] <= largest])
        )
        number = _PASSES if on_cpu and not budget.quick else _PASSES_FEWER
        longest = _LONGEST * (4.0 if form == "surface" else 1.0)
        points = len(knots) + len(held_out)
        yield Case(
            implementation,
            dtype,
            "*",
            Passes(form, knots, held_out, longest, number, block),
            problem=problem,
            options=lambda made: options(made.inputs[1].shape, made.dtype),
            inputs=1,
            seconds=points * (number * _KNOT if on_cpu else _DEVICE_KNOT),
            example=_EXAMPLE,
        )


def _problem(
    implementation: Implementation, dtype: str, on: str, n: int, filter_size: int
) -> Problem:
    """An image of n x n, filtered to the same size; the filter of rank 1 where that is measured."""
    shapes = (n, n), (filter_size, filter_size)
    image, filter = (spec(shape, dtype, on=on).operand() for shape in shapes)
    rank = int(implementation.method == SEPARABLE)
    found = window_of(*shapes, "same", rank=rank)
    return described(image, filter._replace(location=HOST), np.dtype(dtype), found)


def _by_work(
    implementation: Implementation, problem: Any, sizes: list[Dims], form: str, block: int
) -> dict[Dims, Dims]:
    """What the model knows a problem by -> the problem's sizes, smaller ones first."""
    found = {}
    info = {"kind": implementation.kind}
    for size in sizes:
        made = problem(*size)
        if implementation.obstacle(made, info) is None:
            dims = implementation.work(made, info).dims
            if form == "filter":
                dims = dims[0] * -(-dims[1] // block) * block, dims[2] * dims[3]
            found[dims] = size
    return dict(sorted(found.items(), key=lambda item: math.prod(item[0])))


def _options(shape: tuple[int, int], dtype: str) -> FilterOptions:
    """A filter of rank 1, and nothing beyond the image."""
    line = 0.5 + np.random.default_rng(1).random(shape[0])
    values = np.outer(line, line) / line.sum() ** 2
    return FilterOptions(Filter(values.astype(dtype)), 0.0)
