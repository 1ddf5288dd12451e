"""method="streamed": images on the host in bands that move while others are convolved.

What convolves a band is what the plan of that convolution, with the band on the device, chooses.
Bands by transforms are whole rows of their tiles, so that these are those of the whole image.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, dense
from hetero.errors import DeviceMemoryError
from hetero.ops.convolve2d import bands, tiles_device
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import described, is_wide
from hetero.ops.convolve2d.window import TRANSFORMS, Window
from hetero.runtime import call_cache, inventory, pipeline, planner, pricing, profile
from hetero.runtime.pipeline import Load, Slot, Step, Store
from hetero.runtime.plan import Plan
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.runtime.profile import Profile

# Bytes of a band with its result, that are tried.
SIZES = (32 << 20, 16 << 20, 8 << 20, 4 << 20, 2 << 20)
_SLOTS = 3  # for bands, and as many for results: moving, computed and moving
_WORKSPACE = 4  # times a band and its result, for transforms
_ROOM = 0.8  # of a device's memory: its pool rounds sizes up, and others use it too
_STEP = 5e-5  # seconds of the host for each band
_TIMES = (3, 9, 33)  # likewise, times what a band reads beside its own rows
_LOOKED_AT = 64  # parts, from which follows what all take
_LEAST_MOVED = 16 << 20  # bytes below which a call is over before a pipeline is full


class Cut(NamedTuple):
    """How a stack of images is cut: into groups of whole ones, or each into bands of rows.

    Attributes
    ----------
    images : int
        Of a group; 1 where they are cut.
    rows : int
        Of the result, in a band.
    """

    images: int
    rows: int

    def number(self, batch: int, height: int) -> int:
        """How many parts there are."""
        return -(-batch // self.images) * -(-height // self.rows)

    def parts(self, batch: int, height: int) -> Iterator[tuple[int, int, int, int]]:
        """First and last image, first and last row of each part; the last are not in it."""
        for first in range(0, batch, self.images):
            for begin in range(0, height, self.rows):
                last = min(first + self.images, batch)
                yield first, last, begin, min(begin + self.rows, height)


class Choice(NamedTuple):
    """How a convolution is streamed.

    Attributes
    ----------
    cut : Cut
    part : Plan
        Of a part in the middle.
    terms : dict or None
        Seconds, which add up to those of the whole; None where they are not known.
    """

    cut: Cut
    part: Plan
    terms: dict[str, float] | None

    def told(self, problem: Problem) -> str:
        """In words."""
        height, chosen = problem.options.out_height, self.part.chosen
        number = self.cut.number(problem.batch, height)
        if self.cut.rows == height:
            size = f"{self.cut.images} image{'s' * (self.cut.images > 1)}"
        else:
            size = f"{self.cut.rows} row{'s' * (self.cut.rows > 1)}"
        return f"{number} part{'s' * (number > 1)} of {size} by {chosen.method}"


def obstacle(problem: Problem, info: dict[str, Any]) -> str | None:
    """Why a convolution cannot be streamed to a device, None where it can."""
    if any(o.location != HOST for o in (*problem.inputs, problem.output)):
        return "not all operands are on the host"
    return None


def stands_in(problem: Problem) -> str | None:
    """Why bands are not considered, None where they are."""
    moved = sum(o.nbytes for o in (*problem.inputs, problem.output))
    if moved < _LEAST_MOVED:
        return f"moves less than {_LEAST_MOVED >> 20} MiB"
    return None


def _part(problem: Problem, name: str, images: int, window: Window) -> Problem:
    """The convolution of some images, or of a band of one, that lie on a device."""
    image, filter = problem.inputs
    stack = (images,) if len(image.shape) > 2 else ()
    dtype = np.dtype(problem.dtype)
    there = dense((*stack, window.height, window.width), dtype, name)
    return described(there, filter, dtype, window)


def _nbytes(problem: Problem, cut: Cut) -> tuple[int, int]:
    """Of the largest part and of its result."""
    w, size = problem.options, np.dtype(problem.dtype).itemsize
    read = w.height
    if cut.rows < w.out_height:
        read = cut.rows + w.filter_height - 1
        if w.boundary == "fill":
            read = min(read, w.height)
    part, result = read * w.width, cut.rows * w.out_width
    return cut.images * part * size, cut.images * result * size


def _cuts(problem: Problem, room: float) -> Iterator[Cut]:
    """Ways to cut a stack so that its parts have room, and read not much more than they must."""
    w = problem.options
    whole, ends = (sum(_nbytes(problem, Cut(1, rows))) for rows in (w.out_height, 1))
    most = room / (_SLOTS + _WORKSPACE)
    row = max((whole - ends) / max(w.out_height - 1, 1), 1)
    beside = ends - row  # what a band reads beside its own rows
    for size in (*SIZES, *(beside * times for times in _TIMES)):
        size = min(size, most)
        if whole <= size:
            yield Cut(int(min(max(size // whole, 1), problem.batch)), w.out_height)
        else:
            yield Cut(1, int(min(max((size - beside) // row, 1), w.out_height)))


def _middle(problem: Problem, cut: Cut) -> Window:
    """The window of a part in the middle of an image."""
    found = problem.options
    if cut.rows == found.out_height:
        return found
    begin = (found.out_height // cut.rows // 2) * cut.rows
    return bands.band(found, begin, min(begin + cut.rows, found.out_height))


def choose(
    problem: Problem, name: str, info: dict[str, Any], constants: Profile, room: float, beside: str
) -> Choice | None:
    """The fastest way to stream a convolution with so many bytes; None where there is no room.

    Parameters
    ----------
    problem : Problem
    name, info
        The device.
    constants : Profile
    room : float
        Bytes.
    beside : str
        As for `Profile.link`.
    """

    def plan(cut: Cut) -> Plan:
        part = _part(problem, name, cut.images, _middle(problem, cut))
        return pricing.price(part, constants, {name: info}, name)

    best: Choice | None = None
    for cut in dict.fromkeys(_cuts(problem, room)):
        if sum(_nbytes(problem, cut)) * (_SLOTS + _WORKSPACE) > room and cut != Cut(1, 1):
            continue
        part = plan(cut)
        if part.candidates[0].reason is not None:
            return None
        tiles = _tile_rows(part)
        if tiles is not None and tiles < cut.rows < problem.options.out_height:
            cut = cut._replace(rows=cut.rows // tiles * tiles)
            part = plan(cut)
        terms = _terms(problem, cut, part, name, constants, beside)
        choice = Choice(cut, part, terms)
        if terms is None:
            return choice
        if best is None or sum(terms.values()) < sum(best.terms.values()):
            best = choice
    return best


def _tile_rows(part: Plan) -> int | None:
    """Rows of the results that a row of tiles makes; None where there are no tiles."""
    if part.chosen.method != "overlap_save":
        return None
    axes = tiles_device.tiles(part.problem.options)
    return axes and axes[0].step


def _terms(
    problem: Problem, cut: Cut, part: Plan, name: str, constants: Profile, beside: str
) -> dict[str, float] | None:
    """Seconds of copies and computation, and what is saved by doing them at once."""
    seconds = part.chosen.seconds
    if seconds is None:
        return None
    rows, moved = part.problem.options.out_height, (problem.inputs[0], problem.output)
    try:
        links = [constants.link(name, way, beside=beside) for way in ("upload", "download")]
    except KeyError:
        return None
    images, height = problem.batch, problem.options.out_height
    parts = list(itertools.islice(cut.parts(images, height), _LOOKED_AT))
    rates = [link(o.nbytes) / o.nbytes for link, o in zip(links, moved, strict=True)]
    up, computed, free, down = 0.0, 0.0, [0.0] * _SLOTS, [0.0] * _SLOTS
    sums, halfway = [0.0, 0.0, 0.0], 0.0
    for number, (first, last, begin, end) in enumerate(parts):
        slot, some = number % _SLOTS, Cut(last - first, end - begin)
        share = some.images * some.rows / (cut.images * rows)
        sizes = _nbytes(problem, some)
        each = sizes[0] * rates[0] + _STEP, seconds * share + _STEP, sizes[1] * rates[1] + _STEP
        up = max(up, free[slot]) + each[0]
        computed = free[slot] = max(up, computed, down[slot]) + each[1]
        down[slot] = max(computed, down[slot - 1]) + each[2]
        sums = [one + more for one, more in zip(sums, each, strict=True)]
        halfway = down[slot] if number == len(parts) // 2 - 1 else halfway
    whole, left = max(down), cut.number(images, height) - len(parts)
    if left:  # as they go on
        whole += (whole - halfway) / (len(parts) - len(parts) // 2) * left
        sums = [one * (1.0 + left / len(parts)) for one in sums]
    terms = dict(zip(("upload", "compute", "download"), sums, strict=True))
    return terms | {"overlap": whole - sum(sums)}


def room(info: dict[str, Any]) -> float:
    """Bytes of a device that a call may use."""
    return _ROOM * info["memory_bytes"]


def price(
    problem: Problem, name: str, info: dict[str, Any], constants: Profile, beside: str
) -> tuple[dict[str, float] | None, str]:
    """``price`` of the method's rows."""
    choice = choose(problem, name, info, constants, room(info), beside)
    return (None, "") if choice is None else (choice.terms, choice.told(problem))


_choices = call_cache.new_table()


def _cut(problem: Problem, device: Device) -> Cut:
    """That of `choose` with this machine's constants, remembered."""
    most = room(device.describe())
    key = problem, device.name, most
    found = _choices.get(key)
    if found is None:
        now = call_cache.generation()
        info, constants = inventory.devices()[device.name], profile.current()
        choice = choose(problem, device.name, info, constants, most, planner.beside())
        if choice is None:
            raise DeviceMemoryError(f"{device.name} has no room for a row of the image")
        found = choice.cut
        call_cache.remember(_choices, key, found, now)
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
    with device.active():
        cut = _cut(problem, device)
        while True:
            try:
                _stream(device, problem, cut, stack, options, results)
                return
            except DeviceMemoryError:
                if cut == Cut(1, 1):
                    raise
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
    parts = list(cut.parts(len(stack), problem.options.out_height))
    number = min(_SLOTS, len(parts))
    sources, targets = (pipeline.slots(device, size, number) for size in _nbytes(problem, cut))
    options = options._replace(filter=options.filter.held())

    def step(at: int) -> Step:
        first, last, begin, end = parts[at]
        where = sources[at % number], targets[at % number]
        return _step(
            device,
            problem,
            stack[first:last],
            options,
            results[first:last, begin:end],
            (begin, end),
            where,
        )

    pipeline.run(device, map(step, range(len(parts))))


def _step(
    device: Device,
    problem: Problem,
    images: np.ndarray,
    options: FilterOptions,
    out: np.ndarray,
    rows: tuple[int, int],
    where: tuple[Slot, Slot],
) -> Step:
    """What the pipeline does for a part."""
    whole = problem.options
    source, target = where
    window, views = whole, [images]
    if rows != (0, whole.out_height):
        window, views = bands.band(whole, *rows), bands.views(images[0], whole, *rows)
    loads, offset = [], 0
    for view in views:
        loads.append(Load(view, source, offset))
        offset += view.nbytes

    def compute() -> None:
        plan = planner.plan(_part(problem, device.name, len(images), window), device.name)
        if plan.chosen.method in TRANSFORMS:
            pixels = views[0] if len(views) == 1 else np.concatenate(views)
            wide = is_wide(pixels, options.filter, window, options.fillvalue)
            if wide is not False:
                seen = window._replace(finite=wide is not None, wide_range=bool(wide))
                plan = planner.plan(_part(problem, device.name, len(images), seen), device.name)
        given = Arguments((source.buffer,), target.buffer, options)
        plan.chosen.implementation.run((device,), plan.problem, given)

    return Step(compute, tuple(loads), (Store(target, out),))
