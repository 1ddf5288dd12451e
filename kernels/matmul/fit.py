"""Least squares of the formula of `tiles`: the figures by which it gives the times measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from ..common.launch import ELEMENT_BYTES
from ..common.refit import Limits
from ..common.tuning import Table, parse
from . import tiles
from .tiles import Product, Tile

__all__ = ["Sample", "fit"]

_SHARED = ("launch", "second_launch", "latency", "read", "written", "summed")
_ERRORS = 4.0  # standard errors by which a figure must differ from the table's
_VAGUE = 0.15  # a figure stays if its logarithm has a larger standard error
_FTOL, _STEPS, _STEP = 1e-5, 50, 1e-6  # of the least squares
_ALIKE = 0.05  # sustained shares that differ by less are the same
_FAITH = 0.05  # how far a figure is drawn to the table's: as far as a sample is wrong by 0.05


class Sample(NamedTuple):
    """A product, done with one tile and about ``split_k`` parts of k."""

    product: Product
    tile: Tile
    split_k: int


def fit(
    table: Table, dtype: str, limits: Limits, samples: Sequence[Sample], seconds: Sequence[float]
) -> dict[str, Any]:
    """Figure name -> its value for a dtype, by which the predicted times are the measured ones.

    Least squares of the logarithms, few outliers counting less; a figure that the samples do not
    determine stays as in the table.
    """
    names = [tile.name for tile in tiles.tiles(dtype, limits.capability)]
    known = _Vector(table, dtype, names)
    short = [s for s, each in zip(samples, seconds, strict=True) if each <= tiles.SUSTAINED]
    measured = np.log([each for each in seconds if each <= tiles.SUSTAINED])
    squares = _Squares(short, measured, known)
    free = _significant(squares.least(np.ones(len(known.values), bool)), squares.start)
    x = squares.start.copy()
    x[free] = squares.least(free).x
    fitted_figures = known.figures(np.exp(x))
    sustained = "matmul.tile_sustained"
    own = table[sustained][dtype]
    at_first = {**fitted_figures, sustained: dict.fromkeys(own, 1.0)}
    fitted = parse(table.replaced({n: {**table[n], dtype: value} for n, value in at_first.items()}))
    shares: dict[str, list[float]] = {}
    for sample, each in zip(samples, seconds, strict=True):
        if each > tiles.SUSTAINED:
            share = tiles.seconds(*sample, fitted)[1] / each
            shares.setdefault(sample.tile.name, []).append(share)
    means = {name: _mean(several) for name, several in shares.items()}
    clear = {name: m for name, m in means.items() if abs(m / own[name] - 1.0) > _ALIKE}
    return {**fitted_figures, sustained: {**own, **clear}}


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
        # A sample depends on what all share, and on its own tile's figures: the derivatives
        # by the latter are taken for all tiles at once.
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
            values = self.start.copy()
            values[free] = x
            return values

        def errors(x: np.ndarray) -> np.ndarray:
            faith = _FAITH * (x - self.start[free])
            return np.concatenate((self._logs(whole(x)) - self._measured, faith))

        def jacobian(x: np.ndarray) -> np.ndarray:
            return np.vstack((self._jacobian(whole(x))[:, free], _FAITH * np.eye(len(x))))

        return least_squares(
            errors, self.start[free], jacobian, loss="soft_l1", f_scale=0.05, ftol=_FTOL,
            max_nfev=_STEPS, tr_solver="lsmr",
        )  # fmt: skip

    def _logs(self, x: np.ndarray) -> np.ndarray:
        return np.log(self._predict(np.exp(x)))

    def _jacobian(self, x: np.ndarray) -> np.ndarray:
        """Derivatives of the predicted logarithms, by finite differences."""
        here = self._logs(x)
        jacobian = np.zeros((len(here), len(x)))
        for rows, columns in self._groups:
            moved = x.copy()
            moved[np.unique(columns)] += _STEP
            jacobian[rows, columns] = (self._logs(moved) - here)[rows] / _STEP
        return jacobian


def _significant(result: Any, start: np.ndarray) -> np.ndarray:
    """Which figures differ significantly from the table's, by the samples.

    One after the other, the figure that is the fewest standard errors away from where it started
    is put back there, the rest follow as the linearised problem says, until all that are left are
    far enough away. A figure with too large an error counts as not different.
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
        figures: dict[str, Any] = {
            f"matmul.{name}": float(f"{value:.3g}")
            for name, value in zip(_SHARED, values, strict=False)
        }
        for what in ("start", "stored", "rates"):
            figures[f"matmul.tile_{what}"] = dict(self._table[f"matmul.tile_{what}"][self._dtype])
        for name, place in self.places.items():
            own = [float(f"{v:.3g}") for v in values[place : place + 2 + self.rates[name]]]
            figures["matmul.tile_start"][name], figures["matmul.tile_stored"][name] = own[:2]
            figures["matmul.tile_rates"][name] = own[2:]
        return figures


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
        seconds = launch + np.hypot(computing, moving)
        return seconds + (split > 1) * (second_launch + (split + 1) * outputs / summed)

    return predict


class _Row(NamedTuple):
    """The variables of a sample in the formula of `tiles.seconds`."""

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
