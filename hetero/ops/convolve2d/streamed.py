"""method="streamed": images on the host in bands that move while others are convolved.

What convolves a band is what the plan of that convolution, with the band on the device, chooses.
Bands by transforms are whole rows of their tiles, so that these are those of the whole image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from hetero.arrays import HOST, dense
from hetero.errors import DeviceMemoryError
from hetero.ops.convolve2d import bands, looking, tiles_device
from hetero.ops.convolve2d.filters import FilterOptions
from hetero.ops.convolve2d.operands import described, is_wide
from hetero.ops.convolve2d.window import TRANSFORMS, Window
from hetero.runtime import (
    call_cache,
    failures,
    inventory,
    memory_limit,
    pipeline,
    planner,
    pricing,
    profile,
)
from hetero.runtime.pipeline import Load, Step, Store
from hetero.runtime.plan import CPU, Plan
from hetero.runtime.problem import Problem
from hetero.runtime.registry import Arguments, Price

if TYPE_CHECKING:
    from hetero.devices.base import Device
    from hetero.runtime.profile import Profile

# Bytes of a part with its result, that are tried.
SIZES = (1 << 30, 256 << 20, 64 << 20, 16 << 20, 4 << 20)
_SLOTS = 3  # for bands, and as many for results: moving, computed and moving
_WORKSPACE = 4  # times a band and its result, for transforms
_ROOM = 0.8  # of a device's memory: its pool rounds sizes up, and others use it too
_STEP = 3e-4  # seconds of the host for a part; H100, 16 cores
_TOGETHER = 0.7  # of the time of copies up and down one after the other, where both go on at once
_ALIGNED = 16  # bytes that divide the address of every buffer of a device
_TIMES = (3, 9, 33)  # likewise, times what a band reads beside its own rows
_LOOKED_AHEAD = 0.5  # of the host's memory: a larger image is a file, which is read but once
_LEAST_MOVED = 16 << 20  # bytes below which a call is over before a pipeline is full


Way = Callable[[Any, Any], object]  # ``way(part's buffer, result's buffer)`` begins a part


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
        made = pricing.price(part, constants, {name: info}, name)
        return looking.priced(made, looking.seconds(part, constants.machine()))

    best: Choice | None = None
    least = inf
    for cut in dict.fromkeys(_cuts(problem, room)):
        copies = _SLOTS + (0 if cut == Cut(1, 1) else _WORKSPACE)  # a row is summed up
        if sum(_nbytes(problem, cut)) * copies > room:
            continue
        part = plan(cut)
        if part.candidates[0].reason is not None:
            return None
        tiles = _tile_rows(part)
        if tiles is not None and tiles < cut.rows < problem.options.out_height:
            cut = cut._replace(rows=cut.rows // tiles * tiles)
            part = plan(cut)
        terms = _terms(problem, cut, part, name, constants, beside)
        if terms is None:
            return Choice(cut, part, None)
        if sum(terms.values()) < least:
            best, least = Choice(cut, part, terms), sum(terms.values())
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
    """Seconds of copies, of the host and of the computation; None where they are not known.

    The first part goes up alone, the last one comes down alone. Between them copies go on beside
    the computation, and what takes longer counts. Where a profile knows no copies that do, they
    count as if nothing went on beside them.
    """
    if part.chosen.seconds is None:
        return None
    height, rows = problem.options.out_height, part.problem.options.out_height
    number = cut.number(problem.batch, height)
    sizes = _nbytes(problem, cut)
    moved = problem.inputs[0], problem.output
    ways = "upload", "download"
    try:
        up, down = (
            _moving(constants.link(name, way, o.memory, beside), o.nbytes)(nbytes)
            for way, o, nbytes in zip(ways, moved, sizes, strict=True)
        )
    except KeyError:
        return None
    share = problem.batch * height / (cut.images * rows)  # of a part in the middle
    look = part.chosen.terms.get(looking.TERM, 0.0)
    compute = part.chosen.seconds - look
    pinned = all(o.pinned for o in moved)
    if pinned or all(constants.least_staged(name, way) < inf for way in ways):
        bus = max(up, down) if pinned else _TOGETHER * (up + down)
        waited = max(bus - compute - _STEP, 0.0) / (up + down) * max(share - 1.0, 0.0)
        up, down = up * (1.0 + waited), down * (1.0 + waited)
    else:
        up, down = up * share, down * share
    return {
        **({looking.TERM: look * share} if look else {}),
        "upload": up,
        "overhead": _STEP * number + constants.dispatch(name, "host"),
        "compute": compute * share,
        "download": down,
    }


def _moving(link: Callable[[int], float], whole: int) -> Callable[[int], float]:
    """Seconds of a part's copy: by its own size, and no less than its share of the whole's."""
    rate = link(whole) / whole
    return lambda nbytes: max(link(nbytes), nbytes * rate)


def room(info: dict[str, Any]) -> float:
    """Bytes of a device that a call may use."""
    return min(_ROOM * info["memory_bytes"], memory_limit.room(info))


def price(
    problem: Problem, name: str, info: dict[str, Any], constants: Profile, beside: str
) -> Price:
    """``price`` of the method's rows."""
    choice = choose(problem, name, info, constants, room(info), beside)
    if choice is None:
        return Price(None, reason="there is no room for a row of the image")
    return Price(choice.terms, choice.told(problem))


_choices = call_cache.new_table()


def _cut(problem: Problem, device: Device) -> Cut:
    """That of `choose` with this machine's constants, remembered."""
    most = room(memory_limit.of(device))
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
    number = min(_SLOTS, len(parts))
    sources, targets = (pipeline.slots(device, size, number) for size in _nbytes(problem, cut))
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
            problem = _part(self._problem, device.name, images, window)
            look = looking.seconds(problem, inventory.devices())
            chosen = looking.priced(planner.plan(problem, device.name), look).chosen
            row = chosen.implementation

            def way(source: Any, target: Any) -> None:
                row.run((device,), problem, Arguments((source,), target, options))

            if row.prepare is not None:  # which the host begins sooner
                launch = row.prepare(device, problem, _ALIGNED, options)

                def way(source: Any, target: Any) -> None:
                    launch(source, source, target)

            self._found[key] = way, chosen.method in TRANSFORMS
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
