"""A card's figures for matrix products: tiles are timed, and the formula of `tiles` is fitted."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ..common.launch import ELEMENT_BYTES, LaunchPlan
from ..common.refit import Clock, Limits
from ..common.tuning import Table, parse
from . import tiles
from .plan import plan_matmul
from .tiles import Product, Tile

__all__ = ["Sample", "candidates", "cases", "fit", "refit"]

_SHARED = ("launch", "second_launch", "latency", "read", "written", "summed")
_SQUARES = (
    64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 1000, 1024, 1536, 2048, 3000, 4096, 8192
)  # fmt: skip
_SHAPES = (
    (8192, 64, 8192), (64, 8192, 8192), (8192, 8192, 64), (64, 64, 65536), (32, 4096, 4096),
    (4096, 32, 4096), (16, 8192, 8192), (128, 4096, 4096), (4096, 128, 4096), (256, 256, 16384),
    (512, 512, 8192), (100, 100, 100_000), (1024, 1024, 128), (2048, 2048, 256), (4096, 4096, 32),
    (256, 8192, 1024), (8192, 128, 512), (2048, 512, 2048), (700, 5000, 300), (1000, 300, 4000),
    (64, 2048, 2048), (2048, 64, 2048), (192, 3072, 1024), (3072, 3072, 128),
)  # fmt: skip
_LAYOUTS = ((True, False), (False, False))  # A by rows, and by columns; B by rows
_WORTH_TIMING = 1.6  # times the best predicted time: tiles far behind it need no exact figures
_LONG = 1e12  # flops, from which on only those near the best are timed
_WORTH_LONG = 1.25
_RATE_K = 2048  # of the products that show what blocks make of a multiprocessor
_SHORT_K = 64  # and of those that show what a wave takes beside
_LATE = 1.1  # times what the figures give
_TIMED_AGAIN = 2
_WORTHWHILE = 0.01  # of the time that the tiles chosen take; for less no figure is changed
_WRONG = 0.1  # of the times that a table predicts, from which on it is not this card's
_ERRORS = 4.0  # standard errors by which a figure must differ from the table's
_VAGUE = 0.15  # a figure whose logarithm has a larger standard error stays
_FTOL, _STEPS, _STEP = 1e-5, 50, 1e-6  # of the least squares
_ALIKE = 0.05  # sustained shares that differ by less are the same
_FAITH = 0.05  # how far a figure is drawn to the table's: as far as a sample is wrong by 0.05


class Sample(NamedTuple):
    """A product, done with one tile and about so many parts of k."""

    product: Product
    tile: Tile
    split_k: int


def refit(table: Table, limits: Limits, clock: Clock) -> dict[str, Any]:
    """The values of this family's figures on a device, from the nearest table's.

    What takes longer than the figures can explain is timed again: whatever disturbs a device adds
    to its times. A dtype's figures stay if no better tiles are chosen by those that were fitted,
    and the times predicted were about right.
    """
    found = table
    for dtype in ELEMENT_BYTES:
        samples = list(cases(dtype, limits, table))
        seconds = [clock(*launches(sample)) for sample in samples]
        for _ in range(_TIMED_AGAIN):
            fitted = _fitted(found, dtype, limits, samples, seconds)
            for i, sample in enumerate(samples):
                if seconds[i] > _LATE * tiles.seconds(*sample, fitted)[1]:
                    seconds[i] = min(seconds[i], clock(*launches(sample)))
        fitted = _fitted(found, dtype, limits, samples, seconds)
        if _is_better(fitted, found, samples, seconds):
            found = fitted
    return {name: found[name] for name in table.data["figures"] if name.startswith("matmul.")}


def candidates(table: Table, limits: Limits) -> Iterator[LaunchPlan]:
    """All that is timed."""
    for dtype in ELEMENT_BYTES:
        for sample in cases(dtype, limits, table):
            yield launches(sample)[0]


def _fitted(
    table: Table, dtype: str, limits: Limits, samples: Sequence[Sample], seconds: Sequence[float]
) -> Table:
    """The table with the figures of `fit`."""
    values = fit(table, dtype, limits, samples, seconds)
    return parse(
        table.replaced({name: {**table[name], dtype: v} for name, v in values.items()}), table.name
    )


def _is_better(
    fitted: Table, table: Table, samples: Sequence[Sample], seconds: Sequence[float]
) -> bool:
    """Whether by one table better tiles are chosen than by another, or that one is far off."""
    timed: dict[Product, list[tuple[Sample, float]]] = {}
    for sample, each in zip(samples, seconds, strict=True):
        timed.setdefault(sample.product, []).append((sample, each))

    def chosen(by: Table, tried: list[tuple[Sample, float]]) -> float:
        return min(tried, key=lambda one: tiles.seconds(*one[0], by)[1])[1]

    gains = np.array([np.log(chosen(table, t) / chosen(fitted, t)) for t in timed.values()])
    wrong = [
        abs(np.log(tiles.seconds(*sample, table)[1] / each))
        for sample, each in zip(samples, seconds, strict=True)
    ]
    error = gains.std() / np.sqrt(len(gains))
    return bool(gains.mean() > max(_WORTHWHILE, 3.0 * error) or np.median(wrong) > _WRONG)


def cases(dtype: str, limits: Limits, table: Table) -> Iterator[Sample]:
    """What is timed: the best tiles of many shapes, and each tile on whole waves of blocks."""
    shapes = (*((n, n, n) for n in _SQUARES), *_SHAPES)
    for (m, n, k), layout in itertools.product(shapes, _LAYOUTS):
        product = Product(m, n, k, 1, dtype, layout, *limits)
        tried = {
            (tile, split_k): seconds
            for tile, wanted in tiles.candidates(product)
            for split_k, seconds in [tiles.seconds(product, tile, wanted, table)]
        }
        worth = _WORTH_LONG if 2.0 * m * n * k > _LONG else _WORTH_TIMING
        least = min(tried.values())
        for (tile, split_k), seconds in tried.items():
            if seconds <= worth * least:
                yield Sample(product, tile, split_k)
    for tile in tiles.tiles(dtype, limits.capability):
        blank = Product(1, 1, 1, 1, dtype, (True, False), *limits)
        if not tiles.fits(blank, tile):
            continue
        for blocks in range(1, tiles.resident(blank, tile) + 1):
            for k in (_RATE_K, _SHORT_K):
                down, across = _factors(blocks * limits.multiprocessors)
                shape = {"m": down * tile.m, "n": across * tile.n, "k": k}
                yield Sample(blank._replace(**shape), tile, 1)


def _factors(number: int) -> tuple[int, int]:
    """Two factors of a number, as near each other as can be."""
    low = next(d for d in range(int(number**0.5), 0, -1) if number % d == 0)
    return low, number // low


def launches(sample: Sample) -> tuple[LaunchPlan, dict[str, int]]:
    """The launches of a sample, and the bytes of their operands."""
    p = sample.product
    launch_plan = plan_matmul(
        m=p.m, n=p.n, k=p.k, batch=1, dtype=p.dtype,
        a_strides=(0, p.k, 1) if p.layout[0] else (0, 1, p.m), b_strides=(0, p.n, 1),
        c_strides=(0, p.n, 1), alignment=16,
        multiprocessors=p.multiprocessors, block_limit=p.block_limit,
        shared_limit=p.shared_limit, capability=p.capability,
        candidate=(sample.tile, sample.split_k),
    )  # fmt: skip
    element = ELEMENT_BYTES[p.dtype]
    extents = {"A": p.m * p.k, "B": p.k * p.n, "C": p.m * p.n}
    return launch_plan, {name: size * element for name, size in extents.items()}


def fit(
    table: Table, dtype: str, limits: Limits, samples: Sequence[Sample], seconds: Sequence[float]
) -> dict[str, Any]:
    """Figure name -> its value for a dtype, by which the predicted times are the measured ones.

    Least squares of the logarithms, few outliers counting less; a figure that the samples do not
    tell stays as in the table.
    """
    names = [tile.name for tile in tiles.tiles(dtype, limits.capability)]
    known = _Vector(table, dtype, names)
    short = [s for s, each in zip(samples, seconds, strict=True) if each <= tiles.SUSTAINED]
    measured = np.log([each for each in seconds if each <= tiles.SUSTAINED])
    squares = _Squares(short, measured, known)
    free = _told(squares.least(np.ones(len(known.values), bool)), squares.start)
    x = squares.start.copy()
    x[free] = squares.least(free).x
    found = known.figures(np.exp(x))
    sustained = "matmul.tile_sustained"
    own = table[sustained][dtype]
    at_first = {**found, sustained: dict.fromkeys(own, 1.0)}
    fitted = parse(table.replaced({n: {**table[n], dtype: value} for n, value in at_first.items()}))
    shares: dict[str, list[float]] = {}
    for sample, each in zip(samples, seconds, strict=True):
        if each > tiles.SUSTAINED:
            share = tiles.seconds(*sample, fitted)[1] / each
            shares.setdefault(sample.tile.name, []).append(share)
    means = {name: _mean(several) for name, several in shares.items()}
    clear = {name: m for name, m in means.items() if abs(m / own[name] - 1.0) > _ALIKE}
    return {**found, sustained: {**own, **clear}}


class _Squares:
    """The least squares of the logarithms of predicted and measured times.

    Attributes
    ----------
    start : (figures,) array
        Logarithms of the table's own.
    """

    def __init__(self, samples: Sequence[Sample], measured: np.ndarray, known: _Vector) -> None:
        self.start = np.log(known.values)
        self._measured = measured
        self._predict = _predictor(samples, known)
        # A sample depends on what all share, and on its own tile's figures: these are told apart
        # in one go for all tiles.
        rows = np.arange(len(samples))
        place = np.array([known.places[s.tile.name] for s in samples])
        count = np.array([2 + known.rates[s.tile.name] for s in samples])
        self._groups = [(rows, np.full(len(rows), shared)) for shared in range(len(_SHARED))]
        for k in range(count.max(initial=0)):
            self._groups.append((rows[k < count], place[k < count] + k))

    def least(self, free: np.ndarray) -> Any:
        """SciPy's result with some figures free, the others as they were."""
        from scipy.optimize import least_squares

        def whole(x: np.ndarray) -> np.ndarray:
            found = self.start.copy()
            found[free] = x
            return found

        def errors(x: np.ndarray) -> np.ndarray:
            faith = _FAITH * (x - self.start[free])
            return np.concatenate((self._logs(whole(x)) - self._measured, faith))

        def jacobian(x: np.ndarray) -> np.ndarray:
            return np.vstack((self._jacobian(whole(x))[:, free], _FAITH * np.eye(len(x))))

        return least_squares(
            errors, self.start[free], jacobian, loss="soft_l1", f_scale=0.05, ftol=_FTOL,
            max_nfev=_STEPS,
        )  # fmt: skip

    def _logs(self, x: np.ndarray) -> np.ndarray:
        return np.log(self._predict(np.exp(x)))

    def _jacobian(self, x: np.ndarray) -> np.ndarray:
        """By differences."""
        here = self._logs(x)
        found = np.zeros((len(here), len(x)))
        for rows, columns in self._groups:
            moved = x.copy()
            moved[np.unique(columns)] += _STEP
            found[rows, columns] = (self._logs(moved) - here)[rows] / _STEP
        return found


def _told(result: Any, start: np.ndarray) -> np.ndarray:
    """Which figures the samples tell to be others than the table's.

    One after the other, the figure that is the fewest standard errors away from where it started
    is put back there, the rest follow as the linearised problem says, until all that are left are
    far enough away. What the samples tell only vaguely counts as none.
    """
    normal = result.jac.T @ result.jac
    variance = 2.0 * result.cost / max(len(result.fun) - 2 * len(start), 1)
    apart = result.x - start
    free = np.ones(len(start), bool)
    while free.any():
        inverse = np.linalg.inv(normal[np.ix_(free, free)])
        errors = np.sqrt(variance * np.diag(inverse))
        far = np.where(errors > _VAGUE, 0.0, np.abs(apart[free]) / errors)
        nearest = int(far.argmin())
        if far[nearest] >= _ERRORS:
            break
        place = np.flatnonzero(free)[nearest]
        # Conditional on the figure put back: each other moves along with it.
        apart[free] -= inverse[:, nearest] * (apart[place] / inverse[nearest, nearest])
        free[place] = False
    return free


def _mean(shares: list[float]) -> float:
    """Geometric mean."""
    return float(f"{np.exp(np.mean(np.log(shares))):.3g}")


class _Vector:
    """The figures of a dtype as one vector, and back."""

    def __init__(self, table: Table, dtype: str, names: list[str]) -> None:
        self._table, self._dtype = table, dtype
        self.names = names
        self.rates = {name: len(table["matmul.tile_rates"][dtype][name]) for name in names}
        values = [table[f"matmul.{name}"][dtype] for name in _SHARED]
        self.places: dict[str, int] = {}
        for name in names:
            self.places[name] = len(values)
            values += [table[f"matmul.tile_{what}"][dtype][name] for what in ("start", "stored")]
            values += table["matmul.tile_rates"][dtype][name]
        self.values = np.array(values)

    def figures(self, values: np.ndarray) -> dict[str, Any]:
        found: dict[str, Any] = {
            f"matmul.{name}": float(f"{value:.3g}")
            for name, value in zip(_SHARED, values, strict=False)
        }
        for what in ("start", "stored", "rates"):
            found[f"matmul.tile_{what}"] = dict(self._table[f"matmul.tile_{what}"][self._dtype])
        for name, place in self.places.items():
            own = [float(f"{v:.3g}") for v in values[place : place + 2 + self.rates[name]]]
            found["matmul.tile_start"][name], found["matmul.tile_stored"][name] = own[:2]
            found["matmul.tile_rates"][name] = own[2:]
        return found


def _predictor(samples: Sequence[Sample], known: _Vector) -> Any:
    """`tiles.seconds` of all samples at once, as a function of the figures' vector."""
    rows = [_Row.of(sample, known) for sample in samples]
    columns = (np.array(column) for column in zip(*rows, strict=True))
    place, rate_full, rate_rest, waves, most, rest, flops, stored, *moved, split = columns
    reading, read, outputs = moved

    def predict(x: np.ndarray) -> np.ndarray:
        launch, second_launch, latency, speed, written, summed = x[:6]
        start, stored_seconds = x[place], stored / x[place + 1]
        computing = waves * (start + most * (stored_seconds + flops / x[rate_full]))
        computing += (rest > 0) * (start + rest * (stored_seconds + flops / x[rate_rest]))
        moving = read / np.minimum(reading / latency, speed)
        moving = moving + (split == 1) * outputs / written
        found = launch + np.hypot(computing, moving)
        return found + (split > 1) * (second_launch + (split + 1) * outputs / summed)

    return predict


class _Row(NamedTuple):
    """What a sample is to the formula of `tiles.seconds`."""

    place: int
    rate_full: int
    rate_rest: int
    waves: int
    most: int
    rest: int
    flops: float
    stored: float
    reading: float
    read: float
    outputs: float
    split_k: int

    @classmethod
    def of(cls, sample: Sample, known: _Vector) -> _Row:
        p, tile, wanted = sample
        element = ELEMENT_BYTES[p.dtype]
        count = -(-p.m // tile.m) * -(-p.n // tile.n) * p.batch
        most = tiles.resident(p, tile)
        chunk = tiles.chunk_of(tile, p.k, wanted)
        split_k = -(-p.k // chunk)
        waves, rest = divmod(count * split_k, most * p.multiprocessors)
        blocks = -(-rest // p.multiprocessors)
        flops = 2.0 * tile.m * tile.n * tile.depth * -(-min(chunk, p.k) // tile.depth)
        busy = min(most, -(-count * split_k // p.multiprocessors))
        place = known.places[tile.name]
        return cls(
            place, place + 1 + most, place + 1 + max(blocks, 1), waves, most, blocks, flops,
            tile.m * tile.n * element, busy * tile.bytes_in_flight * p.multiprocessors,
            (p.m + p.n) * p.k * p.batch * element,
            p.m * p.n * p.batch * element, split_k,
        )  # fmt: skip
