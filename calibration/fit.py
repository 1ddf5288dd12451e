"""From samples to constants: the models of `hetero.registry.models`, each with its residuals; and
models that follow from others.

Every fit minimises relative errors, since a microsecond matters at ten and not at ten thousand.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np

from hetero.calibration.measure import monotone
from hetero.calibration.samples import Samples
from hetero.calibration.sizes import FIRST, Case, Dims, grid
from hetero.ops.kmeans.operands import DENSE, SEEDED, trials
from hetero.pricing import places
from hetero.profile import Profile
from hetero.registry.models import ModelKey, Work, bind, bind_link

Model = dict[str, Any]
# Times as long as a larger copy, and as a smaller one by its bytes, that a copy takes at most.
_DROP, _RISE = 2.0, 1.1
_LEAST_REST = 0.05  # of a set-up, that is left at least when moves are subtracted
_LEAST_SEEDED = 0.02  # of a fit's time: its set-up, where the distances seem to take all
_MATVEC = (("blas", "C"), ("tiled", "C aligned"))
_LONGER = (4096, 8192, 16384, 32768)  # rows of dense matrices that would take long to fill


def residuals(predicted: Sequence[float], measured: Sequence[float]) -> dict[str, float]:
    """Relative errors |predicted - measured| / measured: mean, p95, worst."""
    errors = np.abs(np.asarray(predicted) / np.asarray(measured) - 1.0)
    return {
        "mean": float(errors.mean()),
        "p95": float(np.percentile(errors, 95)),
        "worst": float(errors.max()),
        "count": int(errors.size),
    }


def model(case: Case, samples: Samples, constants: Profile, first: Model | None = None) -> Model:
    """The model of one case; ``constants`` has the links, by which those of several devices leave
    out what is moved, and ``first`` is the model of `Case.first`."""
    if case.steps is not None:
        still = unmoved(case, samples, constants)
        found = still or samples
        made = solve(case.axes, found.setup, found.seconds)
        return made if still is None else {**made, "moves_apart": True}
    known = samples.seconds
    if case.estimated:
        known = {
            dims: took / case.row.work(case.problem(*dims), case.place.info).estimate
            for dims, took in known.items()
        }
    if first is not None:
        return over(first, case.axes, known)
    if case.estimated:
        return by_estimate(case.axes, known)
    return table(case.axes, known, case.block)


# -- Tables ----------------------------------------------------------------------------------------


def table(
    axes: Sequence[Sequence[int]], seconds: dict[Dims, float], block: int | None = None
) -> Model:
    """A "table": measured seconds on a grid, missing knots filled at constant rate.

    ``axes`` have the knots of each dimension, increasing; of ``seconds`` knots may be missing that
    would have taken too long. A ``block`` makes it one over the points of an image and of a
    filter.
    """
    knots = grid(axes)
    known = monotone(axes, [seconds.get(dims, inf) for dims in knots])
    whole = {dims: value for dims, value in zip(knots, known, strict=True) if dims in seconds}
    overhead = 0.95 * min(whole.values())
    measured = dict(whole)
    for dims in (dims for dims in knots if dims not in measured):
        larger = [v for other, v in measured.items() if np.all(np.array(other) >= dims)]
        # What larger knots were measured does not occur in problems; the others were too slow.
        guesses = [
            overhead + (whole[one] - overhead) * dims[i] / one[i] for i, one in _smaller(dims, axes)
        ]
        # A filter of one tap only moves memory: 25 times as many taps take 2 to 5 times as long.
        whole[dims] = min(larger) if larger else (max if block is None else min)(guesses)
    of_filters = {} if block is None else {"block": block}  # it takes four extents
    return _table(axes, whole, "seconds", overhead=overhead, **of_filters)


def _table(axes: Any, known: dict[Dims, float], kind: str, **more: Any) -> Model:
    """A "table" of "seconds" or "ratios"."""
    values = [_short(known[dims]) for dims in grid(axes)]
    constants = {"overhead": 0.0, "axes": [list(axis) for axis in axes], kind: values}
    return {"form": "table", "constants": constants | more}


def over(first: Model, axes: Sequence[Sequence[int]], known: dict[Dims, float]) -> Model:
    """A "table" of the knots of ``first``, which are even, less one where ``axes`` are odd: what
    ``first`` has there, times the ratio of ``known`` to it; both are seconds, or ratios.

    That changes less from knot to knot than the seconds do: of cuBLAS's products of matrices in
    other orders 27 of them are 5 to 15 % off in between, and 64 knots of seconds 20 to 30 %.
    """
    cost, knots = bind(first), first["constants"]["axes"]
    kind = "ratios" if "ratios" in first["constants"] else "seconds"

    def of_first(dims: Dims) -> float:
        return sum(cost(Work(dims, 0.0, 0.0, estimate=1.0)))

    scaled = bind(by_estimate(axes, {dims: one / of_first(dims) for dims, one in known.items()}))
    knots = [[size - axes[0][0] % 2 for size in axis] for axis in knots]
    works = [Work(dims, 0.0, 0.0, estimate=of_first(dims)) for dims in grid(knots)]
    found = {work.dims: sum(scaled(work)) for work in works}
    overhead = 0.95 * min(found.values()) if kind == "seconds" else 0.0
    return _table(knots, found, kind, overhead=overhead)


def by_estimate(axes: Sequence[Sequence[int]], ratios: dict[Dims, float]) -> Model:
    """A "table" of ratios of measured seconds to an implementation's own estimate.

    A knot too slow to measure gets the ratio of its largest smaller neighbour.
    """
    known = dict(ratios)
    for dims in grid(axes):
        if dims not in known:
            known[dims] = max(known[one] for _, one in _smaller(dims, axes))
    return _table(axes, known, "ratios")


def _short(seconds: float) -> float:
    return float(f"{seconds:.5g}")


def _smaller(dims: Dims, axes: Sequence[Sequence[int]]) -> list[tuple[int, Dims]]:
    """(axis, knot) of the nearest smaller knot along each axis."""
    smaller = [[n for n in axis if n < size] for axis, size in zip(axes, dims, strict=True)]
    return [(i, (*dims[:i], found[-1], *dims[i + 1 :])) for i, found in enumerate(smaller) if found]


# -- Solves ----------------------------------------------------------------------------------------


def solve(
    axes: Sequence[Sequence[int]], setup: dict[Dims, float], step: dict[Dims, float]
) -> Model:
    """A "solve" model."""
    constants = {
        part: {"axes": [list(axis) for axis in axes], "seconds": [_short(v[d]) for d in grid(axes)]}
        for part, v in (("setup", setup), ("step", step))
    }
    return {"form": "solve", "constants": constants}


def unmoved(case: Case, samples: Samples, constants: Profile) -> Samples | None:
    """Samples of several devices without the moves of operands, which their links predict better.

    The sum of both stays as measured. None where the samples contain no moves, and where the links
    are not known.
    """
    if len(case.place.devices) < 2 or case.steps is None:
        return None
    part = "seconds" if case.steps[0] == case.steps[1] else "setup"  # where a solve is one step
    left = {}
    for dims, seconds in getattr(samples, part).items():
        try:
            moved = places.to_all(case.problem(*dims), case.place.info, constants)
        except KeyError:
            return None
        whole = sum(sum(each.values()) for each in moved)
        left[dims] = max(seconds - whole, _LEAST_REST * seconds)
    return replace(samples, **{part: left})


def derived(models: dict[ModelKey, Model]) -> dict[ModelKey, Model]:
    """What follows from these models: dense matrices too large to measure, and k-means++."""
    found = {}
    for key, one in models.items():
        if (key.operation, key.layout) == ("cg", "dense"):
            kind, several, members = key.place.partition("*")  # such as "cuda*2"
            other = key._replace(operation="matvec", place=f"{kind}:0" if several else kind)
            keys = (other._replace(method=m, layout=at) for m, at in _MATVEC)
            matvec = next((models[k] for k in keys if k in models), None)
            if matvec is not None:
                found[key] = _longer(one, matvec, int(members or 1))
        first = models.get(key._replace(layout=FIRST))
        if (key.operation, key.layout) == ("kmeans", DENSE) and first is not None:
            found[key._replace(layout=SEEDED)] = _seeded(one, first)
    return found


def _longer(made: Model, matvec: Model, members: int) -> Model:
    """The model with matrices that fit no cache and would take long to fill: longer by a
    matrix-vector product of each device's share of rows."""
    made, cost = copy.deepcopy(made), bind(matvec)
    for part in ("setup", "step"):
        (sizes,), seconds = (made["constants"][part][name] for name in ("axes", "seconds"))
        longer = [sizes[-1], *(n for n in _LONGER if n > sizes[-1])]
        products = [sum(cost(Work((n // members, n), 0.0, 0.0))) for n in longer]
        base = seconds[-1]
        seconds += [_short(base + max(one - products[0], 0.0)) for one in products[1:]]
        sizes += longer[1:]
    return made


def _seeded(made: Model, first: Model) -> Model:
    """Iterations as of fits from given centroids, and the set-up that is left of ``first``, fits
    from k-means++ with one iteration.

    With the rows on a GPU nearly all of it is k round trips for k seeds, of which the distances
    tell nothing.
    """
    made, cost = copy.deepcopy(made), bind(made)
    part = first["constants"]["step"]
    setup = []
    for dims, whole in zip(grid(part["axes"]), part["seconds"], strict=True):
        # Seeds, an iteration, and the labels.
        _, priced = cost(Work(dims, 0.0, 0.0, repeat=2 + trials(dims[-1])))
        setup.append(_short(max(whole - priced, _LEAST_SEEDED * whole)))
    made["constants"]["setup"] = {"axes": part["axes"], "seconds": setup}
    return made


# -- Links -----------------------------------------------------------------------------------------


def segments(sizes: Sequence[float], seconds: Sequence[float]) -> Model:
    """White's link model (eq. 3.14-3.15) with a range between each two sizes, residuals, samples.

    ``sizes`` are bytes, increasing. What other copies rule out was disturbed, and is shortened; a
    copy that takes less than a smaller one begins a range below it. The first range goes on below
    the first size, and the last one beyond the last.
    """
    x, y = np.asarray(sizes, float), np.asarray(monotone([sizes], seconds, _DROP, _RISE))
    slopes = np.maximum(np.diff(y) / np.diff(x), 0.0).tolist()
    slopes = [*slopes, slopes[-1] if any(slopes[-1:]) else float(y[-1] / x[-1])]
    slopes = [min(slopes[0], float(y[0] / x[0])), *slopes]
    fastest, constants = float(np.max(x / y)), []
    for end, slope in enumerate(slopes):
        begin = max(end - 1, 0)
        constants.append(
            {
                "below": float(x[end]) if end < len(x) else None,
                "bytes_per_second": fastest,
                "seconds_per_byte": slope - 1.0 / fastest,
                "seconds": float(y[begin] - slope * x[begin]),
            }
        )
    model: Model = {"form": "segments", "constants": constants}
    model["residuals"] = residuals(list(map(bind_link(model), sizes)), seconds)
    model["samples"] = {"bytes": x.tolist(), "seconds": [float(s) for s in seconds]}
    return model
