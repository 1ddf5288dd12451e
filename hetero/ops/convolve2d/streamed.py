"""method="streamed": images on the host in bands that move while others are convolved.

What convolves a band is what the plan of that convolution, with the band on the device, chooses.
Bands by transforms are whole rows of their tiles, so that these are those of the whole image.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from hetero import profile
from hetero.calling import planner
from hetero.errors import DeviceMemoryError
from hetero.moving import failures, pipeline
from hetero.moving.pipeline import Load, Step, Store
from hetero.ops.convolve2d import bands, traits, value_ranges
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.part_choice import SLOTS, Cut, choose, nbytes_of, part_problem
from hetero.ops.convolve2d.value_ranges import is_wide
from hetero.ops.convolve2d.window import Window
from hetero.pricing import memory_limit, tables
from hetero.pricing.plan import CPU
from hetero.profile import inventory
from hetero.registry import Arguments, Price
from hetero.registry.problem import Problem

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.profile import Profile

_ROOM = 0.8  # of a device's memory: its pool rounds sizes up, and others use it too
_ALIGNED = 16  # bytes that divide the address of every buffer of a device
_LOOKED_AHEAD = 0.5  # of the host's memory: a larger image is a file, which is read but once

Way = Callable[[Any, Any], object]  # ``way(part's buffer, result's buffer)`` begins a part


def room(info: dict[str, Any]) -> float:
    """Bytes of a device that a call may use."""
    return min(_ROOM * info["memory_bytes"], memory_limit.room(info))


def price(problem: Problem, name: str, info: dict[str, Any], constants: Profile) -> Price:
    """``price`` of the method's rows."""
    choice = choose(problem, name, info, constants, room(info))
    if choice is None:
        return Price(None, reason="there is no room for a row of the image")
    return Price(choice.terms, choice.told(problem))


_choices = tables.new_table()


def _cut(problem: Problem, device: Device) -> Cut:
    """That of `choose` with this machine's constants, remembered."""
    most = room(memory_limit.of(device))
    key = problem, device.name, most
    found = _choices.get(key)
    if found is None:
        now = tables.generation()
        info, constants = inventory.devices()[device.name], profile.current()
        choice = choose(problem, device.name, info, constants, most)
        if choice is None:
            raise DeviceMemoryError(f"{device.name} has no room for a row of the image")
        found = choice.cut
        tables.remember(_choices, key, found, now)
    return found


def run(devices: tuple[Device], problem: Problem, arguments: Arguments) -> None:
    """``run`` of the method's rows; where the device has less room than it should, parts halve.

    Raises
    ------
    DeviceMemoryError
        Where there is room for not even one row.
    """
    (device,), ((image,), out, options) = devices, arguments
    window, dtype = problem.options, np.dtype(problem.dtype)
    stack = np.asarray(image, dtype).reshape(-1, window.height, window.width)
    results = out.reshape(-1, window.out_height, window.out_width)
    cut = _cut(problem, device)
    while True:
        try:
            with device.active():  # whose errors are ours behind it
                _stream(device, problem, cut, stack, options, results)
            return
        except DeviceMemoryError as error:
            if cut == Cut(1, 1):
                raise
            failures.release(error)
        device.trim()
        if cut.images > 1:
            cut = cut._replace(images=cut.images // 2)
        else:
            cut = cut._replace(rows=max(min(cut.rows, window.out_height) // 2, 1))


def _stream(
    device: Device,
    problem: Problem,
    cut: Cut,
    stack: np.ndarray,
    options: FilterOptions,
    results: np.ndarray,
) -> None:
    """Convolve part after part."""
    height = problem.options.out_height
    parts = list(cut.parts(len(stack), height))
    number = min(SLOTS, len(parts))
    sources, targets = (pipeline.slots(device, size, number) for size in nbytes_of(problem, cut))
    ways = _Ways(device, problem, options._replace(filter=options.filter.held()))
    windows = [_window(problem.options, begin, end) for _, _, begin, end in parts]

    def views(at: int) -> list[np.ndarray]:
        """What a part reads."""
        first, last, *rows = parts[at]
        if windows[at] is problem.options:
            return [stack[first:last]]
        return bands.views(stack[first], problem.options, *rows)

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

        def compute() -> None:
            way = ahead[at] if ahead else ways.seen(read, window)
            way(source.buffer, target.buffer)

        return Step(compute, tuple(loads), (Store(target, results[first:last, slice(*rows)]),))

    pipeline.run(device, map(step, range(len(parts))))


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

            self._found[key] = way, traits.of_row(row).transforms
        return self._found[key]

    def seen(self, views: list[np.ndarray], window: Window) -> Way:
        """How a part of these values is convolved: by the sum where a transform would lose some."""
        images = len(views[0]) if views[0].ndim > 2 else 1
        way, transforms = self.of(images, window)
        if transforms:
            pixels = views if len(views) > 1 else views[0]
            wide = is_wide(pixels, self._options.filter, window, self._options.fillvalue)
            if wide is not False:
                seen = window._replace(finite=wide is not None, wide_range=bool(wide))
                way, _ = self.of(images, seen)
        return way
