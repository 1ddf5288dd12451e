"""When the copies and the products of a streamed product's tiles are done, by given rates."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from hetero.ops.products.tiling import Grid, Tiling

# Factor on the time of a copy during one the other way: both together move more than either alone.
# H100, 16 cores: 42 GB/s up or down, 50 both ways.
_BOTH_WAYS = 0.7


class Rates(NamedTuple):
    """Transfer and compute times of one device.

    Attributes
    ----------
    a, b, c : callable
        Seconds of a copy, by its bytes: of A and B up, of C down.
    product : float
        Seconds of a whole tile.
    call, step : float
        Seconds of the host for the whole, and for each copy or product that is begun.
    at_once : bool
        Whether copies go on while the device computes.
    shared : bool
        Whether the same threads of the host do copies of both directions.
    together : bool
        Whether copies up that follow one another take less than alone: one is begun while the one
        before waits for the bus.
    """

    a: Callable[[float], float]
    b: Callable[[float], float]
    c: Callable[[float], float]
    product: float
    call: float
    step: float
    at_once: bool
    shared: bool = False
    together: bool = False


class Times(NamedTuple):
    """Predicted seconds of a streamed product, which add up to the whole.

    Attributes
    ----------
    upload : float
        In which nothing is computed, since panels are under way.
    overhead : float
        Of the host.
    compute : float
    download : float
        After the last tile was computed, and while the next one waits for it.
    """

    upload: float
    overhead: float
    compute: float
    download: float

    @property
    def whole(self) -> float:
        return sum(self)


def predicted(tiling: Tiling, rates: Rates) -> Times:
    """The times of a product: copies up, products and copies down each one after another.

    A load waits until its slot is no longer used, a product for its loads and for its tile's slot.
    Where copies of both directions share what moves them, a store that is ready goes before the
    next load, and takes less than alone.
    """
    a_bytes, b_bytes, c_bytes = tiling.grid.panel_bytes
    by_item, by_row, by_column = _parts(tiling.grid)
    a_free, b_free = ([0.0] * number for number in tiling.slots[:2])
    bus = _Bus(rates.shared, rates.together)
    computed = uploads = compute = downloads = 0.0
    overhead = rates.call
    for visit in tiling.visits():
        items = by_item[visit.group[-1]] if visit.group else 1.0
        rows, columns = items * by_row[visit.row], by_column[visit.column]
        loaded = 0.0
        for load, nbytes, link, free in (
            (visit.load_a, a_bytes * rows, rates.a, a_free[visit.a]),
            (visit.load_b, b_bytes * items * columns, rates.b, b_free[visit.b]),
        ):
            if load and rates.at_once:
                loaded = bus.load(free, link, nbytes)
            elif load:
                uploads += link(nbytes)
            overhead += rates.step * load
        uploads += max(loaded - computed, 0.0)
        computed = max(computed, loaded)
        stored = bus.stored(visit.c) if rates.at_once else 0.0
        downloads += max(stored - computed, 0.0)
        computed = max(computed, stored) + rates.product * rows * columns
        compute += rates.product * rows * columns
        a_free[visit.a] = b_free[visit.b] = computed
        overhead += 2 * rates.step
        if rates.at_once:
            bus.store(visit.c, computed, rates.c(c_bytes * rows * columns))
        else:
            downloads += rates.c(c_bytes * rows * columns)
    return Times(uploads, overhead, compute, downloads + max(bus.last() - computed, 0.0))


class _Bus:
    """The schedule of the copies on the bus.

    Parameters
    ----------
    shared : bool
        Whether those of both directions go one after another.
    together : bool
        As `Rates` has it.
    """

    def __init__(self, shared: bool, together: bool) -> None:
        self._shared, self._together = shared, together
        self._row = 0.0  # bytes of loads that follow one another
        self._up = self._down = 0.0
        self._waiting: deque[tuple[int, float, float]] = deque()  # slot, from when on, how long
        self._done: dict[int, float] = {}

    def load(self, free: float, link: Callable[[float], float], nbytes: float) -> float:
        """When a load of ``nbytes`` is complete that may begin from ``free`` on."""
        while self._waiting and self._waiting[0][1] <= self._up:
            self._next(_BOTH_WAYS if self._shared else 1.0)
        seconds = link(nbytes)
        if self._together:
            before = self._row if free <= self._up else 0.0
            if before:
                seconds = 0.5 * (seconds + max(link(before + nbytes) - link(before), 0.0))
            self._row = before + nbytes
        self._up = max(self._up, free) + seconds
        return self._up

    def store(self, slot: int, ready: float, seconds: float) -> None:
        """A store from a slot that may begin from ``ready`` on."""
        self._waiting.append((slot, ready, seconds))

    def stored(self, slot: int) -> float:
        """When the last store from a slot is complete; 0 where there was none."""
        while any(waiting == slot for waiting, *_ in self._waiting):
            self._next()
        return self._done.get(slot, 0.0)

    def last(self) -> float:
        """When all stores are complete."""
        while self._waiting:
            self._next()
        return self._down

    def _next(self, times: float = 1.0) -> None:
        """Schedule the next waiting store, its time multiplied by ``times``."""
        slot, ready, seconds = self._waiting.popleft()
        seconds *= times
        begin = max(self._down, ready, self._up if self._shared else 0.0)
        self._down = self._done[slot] = begin + seconds
        if self._shared:
            self._up = self._down


def _parts(grid: Grid) -> tuple[dict[int, float], list[float], list[float]]:
    """How much of a whole tile each one is: by first item, by row and by column."""
    items, rows, columns = grid.lengths
    last = grid.batch[-1] if grid.batch else 1
    m, n, _ = grid.shape
    return (
        {at: min(items, last - at) / items for at in range(0, last, items)},
        [min(rows, m - at) / rows for at in range(0, m, rows)],
        [min(columns, n - at) / columns for at in range(0, n, columns)],
    )
