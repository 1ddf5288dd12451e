"""method="streamed": images on the host in bands that move while others are convolved.

What convolves a band is what the plan of that convolution, with the band on the device, chooses.
Bands by transforms are whole rows of their tiles, so that these are those of the whole image.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero.blocks.streamed import Streamed
from hetero.calling import planner
from hetero.moving import pipeline
from hetero.moving.pipeline import Load, Step, Store
from hetero.ops.convolve2d import bands, value_ranges
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.part_choice import SLOTS, Choice, choose, nbytes_of, part_problem
from hetero.ops.convolve2d.value_ranges import is_wide
from hetero.ops.convolve2d.window import FFT, Window
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Arguments
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device

_ALIGNED = 16  # bytes that divide the address of every buffer of a device
_LOOKED_AHEAD = 0.5  # of the host's memory: a larger image is a file, which is read but once

Way = Callable[[Any, Any], object]  # ``way(part's buffer, result's buffer)`` begins a part


def compute(device: Device, problem: Problem, arguments: Arguments, choice: Choice) -> None:
    """Convolve part after part; the device is active."""
    (image,), out, options = arguments
    whole, cut = problem.options, choice.cut
    stack = np.asarray(image, problem.dtype).reshape(-1, whole.height, whole.width)
    results = out.reshape(-1, whole.out_height, whole.out_width)
    height = whole.out_height
    parts = list(cut.parts(len(stack), height))
    number = min(SLOTS, len(parts))
    sources, targets = (pipeline.slots(device, size, number) for size in nbytes_of(problem, cut))
    ways = _Ways(device, problem, options._replace(filter=options.filter.held()))
    windows = [_window(whole, begin, end) for _, _, begin, end in parts]

    def views(at: int) -> list[np.ndarray]:
        """What a part reads."""
        first, last, *rows = parts[at]
        if windows[at] is whole:
            return [stack[first:last]]
        return bands.views(stack[first], whole, *rows)

    # Before anything moves: beside copies a look takes four times as long.
    ahead: list[Way] = []
    if stack.nbytes <= _LOOKED_AHEAD * inventory.devices()[CPU].get("memory_bytes", inf):
        ahead = [ways.seen(views(at), window) for at, window in enumerate(windows)]

    def step(at: int) -> Step:
        (first, last, *rows), window = parts[at], windows[at]
        source, target = sources[at % number], targets[at % number]
        read, loads, offset = views(at), [], 0
        for view in read:
            loads.append(Load(view, source, offset))
            offset += view.nbytes

        def convolve() -> None:
            way = ahead[at] if ahead else ways.seen(read, window)
            way(source.buffer, target.buffer)

        return Step(convolve, tuple(loads), (Store(target, results[first:last, slice(*rows)]),))

    pipeline.run(device, map(step, range(len(parts))))


STREAMED = Streamed(choose, compute, "a row of the image")


def _window(whole: Window, begin: int, end: int) -> Window:
    """That of a band; of whole images their own."""
    return whole if (begin, end) == (0, whole.out_height) else bands.band(whole, begin, end)


class _Ways:
    """How parts are convolved.

    Parameters
    ----------
    device : Device
    problem : Problem
        Of the whole.
    options : FilterOptions
    """

    def __init__(self, device: Device, problem: Problem, options: FilterOptions) -> None:
        self._device, self._problem, self._options = device, problem, options
        self._found: dict[tuple[int, Window], tuple[Way, bool]] = {}

    def of(self, images: int, window: Window) -> tuple[Way, bool]:
        """``way(part's buffer, result's buffer)``, and whether it is by a transform."""
        key = images, window
        if key not in self._found:
            device, options = self._device, self._options
            problem = part_problem(self._problem, device.name, images, window)
            look = value_ranges.seconds(problem, inventory.devices())
            chosen = value_ranges.priced(planner.plan(problem, device.name), look).chosen
            row = chosen.implementation

            def way(source: Any, target: Any) -> None:
                row.run((device,), problem, Arguments((source,), target, options))

            if row.prepare is not None:  # which the host begins sooner
                launch = row.prepare(device, problem, _ALIGNED, options)

                def way(source: Any, target: Any) -> None:
                    launch(source, source, target)

            self._found[key] = way, row is not None and row.method == FFT
        return self._found[key]

    def seen(self, views: list[np.ndarray], window: Window) -> Way:
        """How a part of these values is convolved: by the sum where a transform would lose some."""
        images = len(views[0]) if views[0].ndim > 2 else 1
        way, transforms = self.of(images, window)
        if transforms:
            pixels = np.concatenate(views, axis=-2) if len(views) > 1 else views[0]
            wide = is_wide(pixels, self._options.filter, window, self._options.fillvalue)
            if wide is not False:
                seen = window._replace(finite=wide is not None, wide_range=bool(wide))
                way, _ = self.of(images, seen)
        return way
