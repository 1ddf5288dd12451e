"""From measurements to constants: the models of `hetero.registry.models`, each with its residuals.

Every fit minimises relative errors, since a microsecond matters at ten and not at ten thousand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from hetero.ops.cases import Dims, grid
from hetero.registry import growth
from hetero.registry.models import Work, bind, bind_link

Model = dict[str, Any]
_LEAST_POINTS, _MOST = 3, 8  # of a segment of a link; segments
_PENALTY = 4e-4  # mean squared relative error that one more segment must save
_MANY = 10.0  # overheads: the time of a longer call grows in proportion to its work


def residuals(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """Relative errors |predicted - measured| / measured: mean, p95, worst."""
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1.0)
    return {
        "mean": float(errors.mean()),
        "p95": float(np.percentile(errors, 95)),
        "worst": float(errors.max()),
        "count": int(errors.size),
    }


def surface(
    axes: Sequence[Sequence[int]],
    seconds: dict[Dims, float],
    held_out: dict[Dims, float],
    among: Callable[[list[float]], float] = max,
) -> Model:
    """A "surface" model: measured seconds on a grid, missing knots filled at constant rate.

    ``axes`` have the knots of each dimension, increasing; of ``seconds`` knots may be missing that
    would have taken too long; ``held_out`` are shapes that are no knots, for the residuals;
    ``among`` combines the seconds of a missing knot that each axis gives. The constants are the
    samples themselves, within what the others allow.
    """
    knots = grid(axes)
    known = growth.bounded(axes, [seconds.get(d, inf) for d in knots], [1] * len(axes)).tolist()
    seconds = {dims: value for dims, value in zip(knots, known, strict=True) if dims in seconds}
    overhead = 0.95 * min(seconds.values())
    table = dict(seconds)
    rate = max(
        prod(dims) / (value - overhead if value > 2.0 * overhead else value)
        for dims, value in seconds.items()
    )
    for dims in knots:
        if dims not in table:
            table[dims] = _extended(dims, axes, table, seconds, overhead, rate, among)
    return _with_residuals(_surface(axes, table, overhead), held_out)


def _surface(axes: Sequence[Sequence[int]], table: dict[Dims, float], overhead: float) -> Model:
    seconds = [float(f"{table[dims]:.5g}") for dims in grid(axes)]
    constants = {"overhead": overhead, "axes": [list(axis) for axis in axes], "seconds": seconds}
    return {"form": "surface", "constants": constants}


def _with_residuals(
    model: Model, held_out: dict[Dims, float], estimate: Callable[[Dims], float] | None = None
) -> Model:
    """The model, with its errors at shapes that are no knots; of estimates their own share."""
    if held_out:
        cost = bind(model)
        predicted = []
        for dims in held_out:
            own = estimate(dims) if estimate else 0.0
            overhead, compute = cost(Work(dims, 0.0, 0.0, estimate=own))
            predicted.append(compute if estimate else overhead + compute)
        model["residuals"] = residuals(predicted, list(held_out.values()))
    return model


def surface_by_ratio(
    reference: Model, seconds: dict[Dims, float], held_out: dict[Dims, float]
) -> Model:
    """A "surface" model on the knots of another one, measured on only some of them, which form a
    grid that may lack the largest ones.

    What is interpolated between the measured knots is the ratio to the other model, so that the
    steps both have in common stay where they are.
    """
    axes = reference["constants"]["axes"]
    other = bind(reference)
    known = [sorted(set(sizes)) for sizes in zip(*seconds, strict=True)]

    def of_reference(dims: Dims) -> float:
        return sum(other(Work(dims, 0.0, 0.0)))

    ratios = _all_ratios(known, {d: value / of_reference(d) for d, value in seconds.items()})
    ratio = bind(_surface(known, ratios, 0.0))

    def filled(dims: Dims) -> float:
        inside = tuple(min(size, axis[-1]) for size, axis in zip(dims, known, strict=True))
        return of_reference(dims) * sum(ratio(Work(inside, 0.0, 0.0)))

    table = {dims: seconds.get(dims) or filled(dims) for dims in grid(axes)}
    return surface(axes, table, held_out)


def waves(
    axes: Sequence[Sequence[int]],
    seconds: dict[Dims, float],
    held_out: dict[Dims, float],
    overhead: float,
    estimate: Callable[[Dims], float],
) -> Model:
    """A "waves" model: ratios of measured seconds to an implementation's own estimate.

    ``seconds`` and ``held_out`` are as in `surface`, but of the device alone; ``overhead`` is the
    host's share; ``estimate`` gives the seconds that the implementation expects of the device.
    """
    ratios = _all_ratios(axes, {dims: value / estimate(dims) for dims, value in seconds.items()})
    constants = {
        "overhead": overhead,
        "axes": [list(axis) for axis in axes],
        "ratios": [float(f"{ratios[dims]:.4g}") for dims in grid(axes)],
    }
    return _with_residuals({"form": "waves", "constants": constants}, held_out, estimate)


def _all_ratios(axes: Sequence[Sequence[int]], measured: dict[Dims, float]) -> dict[Dims, float]:
    """Ratios of all knots; one too slow to measure gets that of its largest smaller neighbour."""
    ratios: dict[Dims, float] = {}
    for dims in grid(axes):
        ratio = measured.get(dims)
        ratios[dims] = ratio or max(
            ratios[(*dims[:i], axis[list(axis).index(dims[i]) - 1], *dims[i + 1 :])]
            for i, axis in enumerate(axes)
            if list(axis).index(dims[i])
        )
    return ratios


def _extended(
    dims: Dims,
    axes: Sequence[Sequence[int]],
    table: dict[Dims, float],
    measured: dict[Dims, float],
    overhead: float,
    rate: float,
    among: Callable[[list[float]], float],
) -> float:
    """Seconds of a knot from its nearest smaller neighbours.

    A neighbour that takes many times the overhead gives the rate for the knot. A shorter one gives
    none; then the best rate of all knots counts. If larger knots were measured, this one was not
    too slow, but does not occur in problems: it gets the least of their seconds.
    """
    larger = [v for other, v in measured.items() if np.all(np.array(other) >= dims)]
    if larger:
        return min(larger)
    guesses = []
    for axis in range(len(dims)):
        position = list(axes[axis]).index(dims[axis])
        if position:
            smaller = axes[axis][position - 1]
            seconds = table[(*dims[:axis], smaller, *dims[axis + 1 :])]
            if seconds > _MANY * overhead:
                guesses.append(overhead + (seconds - overhead) * dims[axis] / smaller)
            else:
                guesses.append(max(seconds, overhead + prod(dims) / rate))
    return among(guesses)


def passes(
    form: str,
    block: int,
    seconds: dict[Dims, float],
    held_out: dict[Dims, float],
    knots: Sequence[Dims],
) -> Model:
    """A "surface" or, of a ``block``, a "filter" model on the grid that the knots span, measured
    or not."""
    axes = [sorted(set(sizes)) for sizes in zip(*knots, strict=True)]
    # A filter of one tap only moves memory: 25 times as many taps take 2 to 5 times as long.
    model = surface(axes, seconds, held_out, min if form == "filter" else max)
    if form == "filter":
        model["form"] = form
        model["constants"]["block"] = block
    return model


def solve(
    axes: Sequence[Sequence[int]], setup: dict[Dims, float], step: dict[Dims, float]
) -> Model:
    """A "solve" model; sizes of the first axis that were not measured are left out."""
    axes = [sorted({dims[0] for dims in step}), *axes[1:]]
    constants = {}
    for part, values in (("setup", setup), ("step", step)):
        seconds = [float(f"{values[dims]:.5g}") for dims in grid(axes)]
        constants[part] = {"axes": [list(axis) for axis in axes], "seconds": seconds}
    model = {"form": "solve", "constants": constants}
    bind(model)
    return model


# -- Links -----------------------------------------------------------------------------------------


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """(slope, intercept, squared relative error) of the line with the least relative error; neither
    constant is negative."""
    (slope, intercept), *_ = np.linalg.lstsq(np.column_stack([x / y, 1.0 / y]), np.ones_like(y))
    if slope < 0:
        slope, intercept = 0.0, np.sum(1.0 / y) / np.sum(1.0 / y**2)
    elif intercept < 0:
        slope, intercept = np.sum(x / y) / np.sum((x / y) ** 2), 0.0
    errors = np.abs((slope * x + intercept) / y - 1.0)
    return float(slope), float(intercept), float(np.sum(np.minimum(errors, 0.3) ** 2))


def segments(sizes: Sequence[float], seconds: Sequence[float]) -> Model:
    """White's link model with fitted breakpoints (eq. 3.14-3.15), with residuals and samples.

    ``sizes`` are bytes, increasing. The breakpoints are those with the smallest sum of squared
    relative errors; a segment more must pay for itself.
    """
    x, y = np.asarray(sizes, float), np.asarray(seconds, float)
    count = len(x)
    fits = {
        (i, j): line(x[i:j], y[i:j])
        for i in range(count)
        for j in range(i + 1, count + 1)
        if j - i >= min(_LEAST_POINTS, count)
    }
    # best[s][j]: least error of the first j points by s segments, and where the last one starts
    best: list[dict[int, tuple[float, int]]] = [{0: (0.0, 0)}]
    for _ in range(_MOST):
        row: dict[int, tuple[float, int]] = {}
        for (i, j), (_, _, error) in fits.items():
            if i in best[-1]:
                total = best[-1][i][0] + error
                if j not in row or total < row[j][0]:
                    row[j] = (total, i)
        best.append(row)
    number = min(
        (s for s in range(1, _MOST + 1) if count in best[s]),
        key=lambda s: best[s][count][0] / count + s * _PENALTY,
    )
    cuts, end = [count], count
    for s in range(number, 0, -1):
        end = best[s][end][1]
        cuts.insert(0, end)
    pieces = list(itertools.pairwise(cuts))
    lines = [fits[piece][:2] for piece in pieces]
    fastest = max(float(np.max(x / y)), *(1.0 / slope for slope, _ in lines if slope > 0), 1.0)
    constants = []
    for position, ((_, j), (slope, intercept)) in enumerate(zip(pieces, lines, strict=True)):
        last = position == len(pieces) - 1
        constants.append(
            {
                "below": None if last else float(np.sqrt(x[j - 1] * x[j])),
                "bytes_per_second": fastest,
                "seconds_per_byte": max(slope - 1.0 / fastest, 0.0 if last else -1.0 / fastest),
                "seconds": intercept,
            }
        )
    model = {"form": "segments", "constants": constants}
    cost = bind_link(model)
    model["residuals"] = residuals([cost(size) for size in x], y)
    model["samples"] = {"bytes": x.tolist(), "seconds": y.tolist()}
    return model
