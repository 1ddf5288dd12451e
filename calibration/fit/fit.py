"""From measurements to constants: the models of `hetero.registry.models`, each with its residuals.

Every fit minimises relative errors, since a microsecond matters at ten and not at ten thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, prod
from typing import Any

import numpy as np

from hetero.ops.cases import Dims, grid
from hetero.registry import growth
from hetero.registry.models import Work, bind

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
) -> dict[str, Any]:
    """A "surface" model: measured seconds on a grid, missing knots filled at constant rate.

    Parameters
    ----------
    axes : sequence of sequence of int
        Knots of each dimension, increasing.
    seconds : dict
        Dimensions -> measured seconds; knots that would have taken too long may be missing.
    held_out : dict
        Measured shapes that are no knots, for the residuals.
    among : callable
        Combines the seconds of a missing knot that each axis gives.

    The constants are the samples themselves, within what the others allow, but for those listed as
    extrapolated.
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
    constants = {
        "overhead": overhead,
        "axes": [list(axis) for axis in axes],
        "seconds": [float(f"{table[dims]:.5g}") for dims in knots],
    }
    model: dict[str, Any] = {"form": "surface", "constants": constants}
    cost = bind(model)
    predicted = [sum(cost(Work(dims, 0.0, 0.0))) for dims in held_out]
    if held_out:
        model["residuals"] = residuals(predicted, list(held_out.values()))
    model["samples"] = {
        "held_out": [[list(dims), value] for dims, value in held_out.items()],
        "extrapolated": [list(dims) for dims in knots if dims not in seconds],
    }
    return model


def surface_by_ratio(
    reference: dict[str, Any],
    seconds: dict[Dims, float],
    held_out: dict[Dims, float],
) -> dict[str, Any]:
    """A "surface" model on the knots of another one, measured on only some of them.

    What is interpolated between the measured knots is the ratio to the other model, so that the
    steps both have in common stay where they are.

    Parameters
    ----------
    reference : dict
        The other model.
    seconds, held_out : dict
        As in `surface`; the measured knots form a grid that may lack the largest ones.
    """
    axes = reference["constants"]["axes"]
    other = bind(reference)
    known = [sorted(set(sizes)) for sizes in zip(*seconds, strict=True)]

    def of_reference(dims: Dims) -> float:
        return sum(other(Work(dims, 0.0, 0.0)))

    ratios = _all_ratios(known, {d: value / of_reference(d) for d, value in seconds.items()})
    ratio = bind(
        {
            "form": "surface",
            "constants": {
                "overhead": 0.0,
                "axes": known,
                "seconds": [ratios[dims] for dims in grid(known)],
            },
        }
    )

    def filled(dims: Dims) -> float:
        inside = tuple(min(size, axis[-1]) for size, axis in zip(dims, known, strict=True))
        return of_reference(dims) * sum(ratio(Work(inside, 0.0, 0.0)))

    table = {dims: seconds.get(dims) or filled(dims) for dims in grid(axes)}
    model = surface(axes, table, held_out)
    model["samples"]["interpolated"] = "knots but those of every second size on each axis"
    return model


def waves(
    axes: Sequence[Sequence[int]],
    seconds: dict[Dims, float],
    held_out: dict[Dims, float],
    overhead: float,
    estimate: Callable[[Dims], float],
) -> dict[str, Any]:
    """A "waves" model: ratios of measured seconds to an implementation's own estimate.

    Parameters
    ----------
    axes, seconds, held_out
        As in `surface`, but of the device alone.
    overhead : float
        The host's share.
    estimate : callable
        Seconds that the implementation itself expects of the device, for dimensions.
    """
    ratios = {dims: value / estimate(dims) for dims, value in seconds.items()}
    ratios = _all_ratios(axes, ratios)
    constants = {
        "overhead": overhead,
        "axes": [list(axis) for axis in axes],
        "ratios": [float(f"{ratios[dims]:.4g}") for dims in grid(axes)],
    }
    model: dict[str, Any] = {"form": "waves", "constants": constants}
    if held_out:
        cost = bind(model)
        works = (Work(dims, 0.0, 0.0, estimate=estimate(dims)) for dims in held_out)
        predicted = [compute for _, compute in map(cost, works)]
        model["residuals"] = residuals(predicted, list(held_out.values()))
    model["samples"] = {
        "held_out": [[list(dims), value] for dims, value in held_out.items()],
        "extrapolated": [list(dims) for dims in grid(axes) if dims not in seconds],
    }
    return model


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
    larger = [value for other, value in measured.items() if _no_smaller(other, dims)]
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


def _no_smaller(dims: Dims, than: Dims) -> bool:
    return all(n >= m for n, m in zip(dims, than, strict=True))


def passes(
    form: str,
    block: int,
    seconds: dict[Dims, float],
    held_out: dict[Dims, float],
    knots: Sequence[Dims],
) -> dict[str, Any]:
    """A "surface" or "filter" model on the grid that the knots span.

    Parameters
    ----------
    form : str
    block : int
        Of a "filter" model.
    seconds, held_out
        As in `surface`.
    knots : sequence of tuple of int
        All of them, measured or not.
    """
    axes = [sorted(set(sizes)) for sizes in zip(*knots, strict=True)]
    # A filter of one tap only moves memory: 25 times as many taps take 2 to 5 times as long.
    model = surface(axes, seconds, held_out, min if form == "filter" else max)
    if form == "filter":
        model["form"] = form
        model["constants"]["block"] = block
    return model


def solve(
    axes: Sequence[Sequence[int]],
    setup: dict[Dims, float],
    step: dict[Dims, float],
    steps: tuple[int, int],
) -> dict[str, Any]:
    """A "solve" model; sizes of the first axis that were not measured are left out."""
    done = sorted({dims[0] for dims in step})
    axes = [done, *axes[1:]]
    model = {
        "form": "solve",
        "constants": {
            part: {
                "axes": [list(axis) for axis in axes],
                "seconds": [float(f"{values[dims]:.5g}") for dims in grid(axes)],
            }
            for part, values in (("setup", setup), ("step", step))
        },
        "samples": {"steps": list(steps)},
    }
    bind(model)
    return model
