"""Which parts a convolution is streamed in: groups of images, or bands of one, by their times."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from math import inf
from typing import Any, NamedTuple

import numpy as np

from hetero.arrays import dense
from hetero.ops.convolve2d import bands, tiles, value_ranges
from hetero.ops.convolve2d.operands import described
from hetero.ops.convolve2d.window import FFT, Window
from hetero.pricing import pricing
from hetero.pricing.plan import Plan
from hetero.profile import Profile
from hetero.registry.problem import Problem

SLOTS = 3  # for bands, and as many for results: moving, computed and moving
# Bytes of a part with its result, that are tried.
SIZES = (1 << 30, 256 << 20, 64 << 20, 16 << 20, 4 << 20)
_TIMES = (3, 9, 33)  # likewise, times what a band reads beside its own rows
_WORKSPACE = 4  # times a band and its result, for transforms
_STEP = 3e-4  # seconds of the host for a part; H100, 16 cores
_TOGETHER = 0.7  # of the time of copies up and down one after the other, where both go on at once


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
    problem : Problem
        Of the whole.
    cut : Cut
    part : Plan
        Of a part in the middle.
    terms : dict or None
        Seconds, which add up to those of the whole; None where they are not known.
    """

    problem: Problem
    cut: Cut
    part: Plan
    terms: dict[str, float] | None

    def __str__(self) -> str:
        height, rows = self.problem.options.out_height, self.cut.rows
        number, images = self.cut.number(self.problem.batch, height), self.cut.images
        size = f"{rows} row{'s' * (rows > 1)}"
        if rows == height:
            size = f"{images} image{'s' * (images > 1)}"
        return f"{number} part{'s' * (number > 1)} of {size} by {self.part.chosen.method}"

    @property
    def nbytes(self) -> int:
        """Of the device's memory, with what transforms take."""
        return _room_of(self.problem, self.cut)


def part_problem(problem: Problem, name: str, images: int, window: Window) -> Problem:
    """The convolution of some images, or of a band of one, that lie on a device."""
    image, filter = problem.inputs
    stack = (images,) if len(image.shape) > 2 else ()
    dtype = np.dtype(problem.dtype)
    there = dense((*stack, window.height, window.width), dtype, name)
    return described(there, filter, dtype, window)


def nbytes_of(problem: Problem, cut: Cut) -> tuple[int, int]:
    """Bytes of the largest part, and of its result."""
    w, size = problem.options, np.dtype(problem.dtype).itemsize
    read = w.height
    if cut.rows < w.out_height:
        read = cut.rows + w.filter_height - 1
        if w.boundary == "fill":
            read = min(read, w.height)
    part, result = read * w.width, cut.rows * w.out_width
    return cut.images * part * size, cut.images * result * size


def _room_of(problem: Problem, cut: Cut) -> int:
    """Bytes of a device that streaming takes; a single row is summed up without workspace."""
    return sum(nbytes_of(problem, cut)) * (SLOTS + (0 if cut == Cut(1, 1) else _WORKSPACE))


def _cuts(problem: Problem, room: float) -> Iterator[Cut]:
    """Ways to cut a stack so that its parts have room, and read not much more than they must."""
    w = problem.options
    whole, ends = (sum(nbytes_of(problem, Cut(1, rows))) for rows in (w.out_height, 1))
    most = room / (SLOTS + _WORKSPACE)
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
    problem: Problem, name: str, info: dict[str, Any], constants: Profile, room: float
) -> Choice | None:
    """The fastest way to stream a convolution with that many bytes; None where there is no room.

    Parameters
    ----------
    problem : Problem
    name, info
        The device.
    constants : Profile
    room : float
        Bytes.
    """

    def plan(cut: Cut) -> Plan:
        part = part_problem(problem, name, cut.images, _middle(problem, cut))
        made = pricing.price(part, constants, {name: info}, name)
        return value_ranges.priced(made, value_ranges.seconds(part, constants.machine()))

    best: Choice | None = None
    least = inf
    for cut in dict.fromkeys(_cuts(problem, room)):
        if _room_of(problem, cut) > room:
            continue
        part = plan(cut)
        if part.candidates[0].reason is not None:
            return None
        tile = _tile_rows(part)
        if tile is not None and tile < cut.rows < problem.options.out_height:
            cut = cut._replace(rows=cut.rows // tile * tile)
            part = plan(cut)
        terms = _terms(problem, cut, part, name, constants)
        if terms is None:
            return Choice(problem, cut, part, None)
        if sum(terms.values()) < least:
            best, least = Choice(problem, cut, part, terms), sum(terms.values())
    return best


def _tile_rows(part: Plan) -> int | None:
    """Rows of the results that a row of tiles makes; None where there are no tiles."""
    if part.chosen.method != FFT:
        return None
    return tiles.on_device(part.problem.options)[0].step


def _terms(
    problem: Problem, cut: Cut, part: Plan, name: str, constants: Profile
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
    sizes = nbytes_of(problem, cut)
    moved = problem.inputs[0], problem.output
    ways = "upload", "download"
    try:
        up, down = (
            _moving(constants.link(name, way, o.memory), o.nbytes)(nbytes)
            for way, o, nbytes in zip(ways, moved, sizes, strict=True)
        )
    except KeyError:
        return None
    share = problem.batch * height / (cut.images * rows)  # of a part in the middle
    look = part.chosen.terms.get(value_ranges.TERM, 0.0)
    compute = part.chosen.seconds - look
    pinned = all(o.pinned for o in moved)
    if pinned or all(constants.least_staged(name, way) < inf for way in ways):
        bus = max(up, down) if pinned else _TOGETHER * (up + down)
        waited = max(bus - compute - _STEP, 0.0) / (up + down) * max(share - 1.0, 0.0)
        up, down = up * (1.0 + waited), down * (1.0 + waited)
    else:
        up, down = up * share, down * share
    return {
        **({value_ranges.TERM: look * share} if look else {}),
        "upload": up,
        "overhead": _STEP * number + constants.dispatch(name, "host"),
        "compute": compute * share,
        "download": down,
    }


def _moving(link: Callable[[int], float], whole: int) -> Callable[[int], float]:
    """Seconds of a part's copy: by its own size, and no less than its share of the whole's."""
    rate = link(whole) / whole
    return lambda nbytes: max(link(nbytes), nbytes * rate)
