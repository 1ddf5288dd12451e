"""method="streamed": a call on host arrays in ranges that move while others are computed.

An operation says how its calls are cut (`registry.Cut`). A range reads a part of each array; ranges
that read the same part share it, so that a product's tiles of C share panels of A and of B. Parts
lie in slots on the device. Where there is room for all, each goes up once; else as many parts of
one array are held as have room, and those of the others go by. A part replaces the one that was
used first: in the order of the ranges that moves the fewest. What computes a range is what its plan
on the device chooses; that and the links make the price.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import product
from math import inf, prod
from typing import Any, NamedTuple

from hetero import registry
from hetero.arrays import HOST, Operand
from hetero.devices.storage import rounded
from hetero.pricing import places, pricing
from hetero.pricing.plan import Plan
from hetero.profile import PINNED, STAGED, Profile
from hetero.registry import Cut, Price, Problem

Index = tuple[int, ...]
Box = tuple[tuple[int, int], ...]
ROOM = 0.95  # of a call's: a range's method may allocate memory, too
_MOST = 1 << 14  # ranges; more take longer to begin than the CPU takes for the call
_IN_WORK = 3  # parts of an array, or results: one moves, one is computed with, one waits
_LOAD = 2e-5  # seconds of the host for a copy that is begun; H100, 16 cores
_COMPUTING = "pack", "upload", "overhead", "compute", "download"  # others are the operation's own
_SIZES = (1 << 30, 256 << 20, 64 << 20, 16 << 20, 4 << 20)  # bytes of a range and its result
_FINEST = 4  # times as many ranges as the fastest, of which more are not tried


def price(problem: Problem, name: str, info: dict[str, Any], constants: Profile) -> Price:
    """``price`` of the method's rows: that of the fastest ranges."""
    ranges = choose(problem, name, info, constants, ROOM * places.room(info))
    if ranges is None:
        return Price(None, reason="there is no room for the smallest range")
    if ranges.plan.candidates[0].reason is not None:
        return Price(None, reason=pricing.UNKNOWN_THERE)
    return Price(ranges.terms, str(ranges))


# -- Which ranges ----------------------------------------------------------------------------------


class Ranges(NamedTuple):
    """A call in ranges, and what of it lies on the device at once."""

    cut: Cut
    lengths: Index  # of a range along each axis; those at the end may be shorter
    slots: Index = ()  # for how many parts of each array there is room, and for how many results
    held: int = 0  # this array's parts stay while those of the others go by
    plan: Any = None  # the `Plan` of a range in the middle, on the device
    nbytes: int = 0  # of the device's memory
    terms: dict[str, float] | None = None  # predicted seconds; None where they are not known

    @property
    def counts(self) -> Index:
        """Ranges along each axis."""
        pairs = zip(self.lengths, self.cut.axes, strict=True)
        return tuple(-(-extent // length) for length, (_, extent) in pairs)

    def order(self) -> list[Index]:
        """Numbers of the ranges along each axis, in the order in which they are computed."""
        if not _is_tiled(self.cut):
            return list(product(*map(range, self.counts)))
        *outer, down, across = self.counts
        a, b, _ = self.slots
        tiles = _tiles(down, across, a, b)
        if self.held == 1:
            tiles = [(i, j) for j, i in _tiles(across, down, b, a)]
        return [(*index, *tile) for index in product(*map(range, outer)) for tile in tiles]

    def placed(self, order: list[Index]) -> list[list[tuple[int, bool]]]:
        """For each array and each range in turn: the slot of its part, and whether to load it."""
        return [
            _placed([tuple(index[axis] for axis in axes) for index in order], number)
            for axes, number in zip(self.cut.needs, self.slots, strict=False)
        ]

    def box(self, index: Sequence[int]) -> Box:
        """(begin, end) of a range along each axis."""
        return tuple(
            (i * length, min((i + 1) * length, extent))
            for i, length, (_, extent) in zip(index, self.lengths, self.cut.axes, strict=True)
        )

    def __str__(self) -> str:
        number, items = prod(self.counts), prod(self.lengths[:-2])
        is_cut = self.lengths[-1] < self.cut.axes[-1][1] or len(self.lengths) < 2
        length, (name, _) = self.lengths[-is_cut], self.cut.axes[-is_cut]
        what, size = "part", f"{length} {name if length > 1 else name[:-1]}"
        if _is_tiled(self.cut):
            what, size = "tile", "x".join(map(str, (items, *self.lengths[-2:])[items < 2 :]))
        method = self.plan.candidates[0].method
        return f"{number} {what}{'s' * (number > 1)} of {size} by {method}"


def choose(
    problem: Problem, name: str, info: dict[str, Any], constants: Profile, room: float
) -> Ranges | None:
    """The fastest ranges that fit ``room`` bytes of a device; None where none fit.

    The smallest are tried without memory for their method where they do not fit with it.
    """
    cut = registry.cut(problem)
    assert cut is not None
    for workspace in dict.fromkeys((cut.workspace, 0)):
        best, least = None, inf
        for lengths in dict.fromkeys(_cuts(cut, room / (_IN_WORK + workspace))):
            whole = Ranges(cut, lengths)
            if best is not None and prod(whole.counts) > _FINEST * prod(best.counts):
                break
            middle = cut.problem(whole.box([(n - 1) // 2 for n in whole.counts]), name)
            sizes = _sizes(cut, middle)  # where it reads most
            taken = workspace * sum(sizes)
            found = _slots(cut, lengths, sizes, room - taken)
            plan = planned(cut, middle, name, info, constants) if found else None
            for slots, held in found:
                ranges = Ranges(cut, lengths, slots, held, plan, taken + _taken(slots, sizes))
                terms = _terms(problem, ranges, sizes, name, info, constants)
                if terms is None:
                    return ranges
                if sum(terms.values()) < least:
                    best, least = ranges._replace(terms=terms), sum(terms.values())
        if best is not None:
            return best
    return None


def _is_tiled(cut: Cut) -> bool:
    """Whether the last two axes are cut together: no array's parts depend on both."""
    last = {len(cut.axes) - 2, len(cut.axes) - 1}
    return len(cut.axes) > 1 and not any(last <= set(axes) for axes in cut.needs)


def _cuts(cut: Cut, size: float) -> Iterator[Index]:
    """Lengths of ranges, longer ones first: of two axes by halves, both or one alone; else by the
    bytes of a range, ``size`` at most: some of the outer axis, or a part of the inner one."""
    extents = [extent for _, extent in cut.axes]
    if not _is_tiled(cut):
        yield from _by_bytes(cut, extents, size)
        return
    number = 1
    while number <= min(_MOST, 2 * prod(extents)):
        rest, outer = number, []
        for extent in extents[:-2]:
            outer.append(min(extent, rest))
            rest = -(-rest // outer[-1])
        side = 1 << rest.bit_length() // 2
        other = -(-rest // side)
        for way in sorted({(side, other), (other, side), (rest, 1), (1, rest)}):
            lengths = []
            for extent, count, step in zip(extents, (*outer, *way), cut.steps, strict=True):
                length = -(-extent // min(count, extent))
                length = -(-length // step) * step if extent > length > step else length
                lengths.append(min(length, extent))
            yield tuple(lengths)
        number *= 2


def _by_bytes(cut: Cut, extents: list[int], size: float) -> Iterator[Index]:
    """Lengths of ranges along one axis, or along the inner of two, by `_SIZES`."""
    *outer, extent = extents

    def nbytes(length: int) -> int:
        begin = (extent - length) // 2  # where it reads most
        box = (*((0, 1) for _ in outer), (begin, begin + length))
        return sum(_sizes(cut, cut.problem(box, HOST)))

    whole, least = nbytes(extent), nbytes(1)  # with what it reads of other ranges
    each = max((whole - least) / max(extent - 1, 1), 1)
    for most in (min(most, size) for most in _SIZES):
        if whole <= most:
            yield *(int(min(max(most // whole, 1), n)) for n in outer), extent
        else:
            yield *(1 for _ in outer), int(min(max((most - least) // each + 1, 1), extent))


def _sizes(cut: Cut, problem: Problem) -> list[int]:
    """Bytes of the part of each array that is cut, and of the result, of a range."""
    return [o.nbytes for o in problem.inputs[: len(cut.needs)]] + [problem.output.nbytes]


def _taken(slots: Sequence[int], sizes: Sequence[int]) -> int:
    return sum(number * rounded(size) for number, size in zip(slots, sizes, strict=True))


def _slots(cut: Cut, lengths: Index, sizes: list[int], room: float) -> list[tuple[Index, int]]:
    """(slots of each array and of results, the array that is held): all parts that are used again
    where they have room, else as many of one array as have; none where not even one of each has."""
    counts = Ranges(cut, lengths).counts
    number = prod(counts)
    parts = [prod(counts[axis] for axis in axes) for axes in cut.needs]
    again = [i for i, n in enumerate(parts) if n < number]
    every = [n if i in again else min(n, _IN_WORK) for i, n in enumerate((*parts, number))]
    if _taken(every, sizes) <= room:
        return [(tuple(every), 0)]
    found = []
    for held in again or [0]:
        for passing in range(_IN_WORK, 0, -1):  # with one there is no room to load ahead
            slots = [min(n, passing) for n in (*parts, number)]
            slots[held] = 0
            more = int((room - _taken(slots, sizes)) // rounded(sizes[held]))
            slots[held] = min(more, parts[held] if held in again else passing)
            if slots[held] >= min(parts[held], passing):
                found.append((tuple(slots), held))
                break
    return found


def _tiles(held: int, passing: int, a: int, b: int) -> list[tuple[int, int]]:
    """Tiles by numbers of a panel that is held and one that goes by, with slots for a and b.

    As soon as the first panels are there all their tiles are computed: what is computed grows with
    the square of what was moved. Each time the other way along, so that panels which are there come
    first.
    """
    together = held if a >= held else max(a - 1, 1)
    few = passing if b >= passing else max(b - 1, 1)
    found: list[tuple[int, int]] = []
    for group, begin in enumerate(range(0, held, together)):
        holding = range(begin, min(begin + together, held))
        tiles = [(h, p) for p in range(passing) for h in holding]
        tiles.sort(key=lambda at: held + at[1] if at[1] >= few else max(at) if not group else at[0])
        found += [(h, passing - 1 - p if group % 2 else p) for h, p in tiles]
    return found


def _placed(keys: Sequence[Index], slots: int) -> list[tuple[int, bool]]:
    """(slot, whether to load) of each key in turn."""
    where: dict[Index, int] = {}  # the one that was used first comes first
    steps = []
    for key in keys:
        load = key not in where
        is_full = load and len(where) == slots
        slot = where.pop(next(iter(where)) if is_full else key, len(where))
        where[key] = slot
        steps.append((slot, load))
    return steps


def planned(cut: Cut, part: Problem, name: str, info: dict[str, Any], constants: Profile) -> Plan:
    """The plan of a range on a device."""
    return cut.priced(pricing.price(part, constants, {name: info}, name), constants)


def _terms(
    problem: Problem,
    ranges: Ranges,
    sizes: list[int],
    name: str,
    info: dict[str, Any],
    constants: Profile,
) -> dict[str, float] | None:
    """Seconds of a call in ranges; None where they are not known.

    The parts of the first range go up alone, the last result comes down alone. Between them copies
    overlap with the computation, and what takes longer counts. Copies of both directions that the
    host's threads make are one after the other. Where the driver makes them nothing overlaps.
    """
    chosen, cut, counts = ranges.plan.candidates[0], ranges.cut, ranges.counts
    if chosen.reason is not None or chosen.seconds is None:
        return None
    axes = zip(cut.axes, ranges.lengths, counts, strict=True)
    full = [extent / (n * count) for (_, extent), n, count in axes]
    arrays = problem.inputs[: len(cut.needs)]
    loads = [sum(load for _, load in part) for part in ranges.placed(ranges.order())]
    number, beyond = prod(counts), {k: v for k, v in chosen.terms.items() if k not in _COMPUTING}
    share = number * prod(full)  # times what a range in the middle computes
    compute = chosen.seconds - sum(beyond.values())
    try:
        (*links, down), overlap = _links(arrays, problem.output, name, constants)
    except KeyError:
        return None
    (call, each), last = cut.seconds, down(sizes[-1])
    each_part = zip(loads, cut.needs, strict=True)
    times = [n * prod(full[axis] for axis in axes) for n, axes in each_part]
    first, up = _in_turn(links, sizes, [1] * len(times)), _in_turn(links, sizes, times)
    more, rest = max(up - first, 0.0), last * (share - 1.0)
    overhead = constants.dispatch(name, "host") + _LOAD * sum(loads) + each * number
    if overlap:
        overhead += call
        pinned = all(o.pinned for o in (*arrays, problem.output))
        bus = max(more, rest) if pinned else cut.both * (more + rest)
        hidden = (compute + each + _LOAD * len(links)) * max(share - 1.0, 0.0)
        waited = max(bus - hidden, 0.0) / ((more + rest) or 1.0)
        more, rest = waited * more, waited * rest
    return {
        **{name: seconds * share for name, seconds in beyond.items()},
        "upload": first + more,
        "overhead": overhead,
        "compute": compute * share,
        "download": last + rest,
    }


def _in_turn(links: list[Callable[[float], float]], sizes: list[int], times: list[float]) -> float:
    """Seconds of copies up that follow one another: one begins while the one before waits for the
    bus, so that they take less than alone, but more than a single copy of them all."""
    pairs = list(zip(sizes, times, strict=False))
    alone = sum(n * link(size) for link, (size, n) in zip(links, pairs, strict=True))
    together = max(link(sum(n * size for size, n in pairs)) for link in links)
    return alone if len(links) < 2 else (alone + min(alone, together)) / 2


def _links(
    arrays: Sequence[Operand], output: Operand, name: str, constants: Profile
) -> tuple[list[Callable[[float], float]], bool]:
    """Seconds of copies of each array and of the result by their bytes, and whether they overlap
    with the computation, as the driver's own do not. KeyError if the profile knows none."""
    moved = [*((o, "upload") for o in arrays), (output, "download")]
    with suppress(KeyError):
        ours = [constants.link(name, way, PINNED if o.pinned else STAGED) for o, way in moved]
        return ours, True
    return [constants.link(name, way, o.memory) for o, way in moved], False
