"""Each method's predicted time over one size, and the samples it rests on."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from hetero import registry
from hetero.arrays import HOST
from hetero.calling.planner import OtherMachine
from hetero.evaluation.page.charts import Points
from hetero.ops.cases import grid
from hetero.ops.over_sizes import Line
from hetero.pricing.plan import CPU
from hetero.profile import Profile
from hetero.registry import Implementation, Operation
from hetero.registry.models import Cost, Work, bind

_NEAR = 0.03  # relative difference of a sample's work to that of the line's problem, at most
Devices = dict[str, dict[str, Any]]


class Curve(NamedTuple):
    """A method on a device, over a size; points and samples are pairs of a size and seconds."""

    device: str
    method: str
    points: Points  # predicted
    fitted: Points = ()  # measured samples that the prediction goes through
    held_out: Points = ()  # those that it does not know
    # Relative errors of the whole model at shapes not fitted: "mean", "p95", "worst"; or empty.
    error: Mapping[str, float] = MappingProxyType({})
    # Seconds predicted at any whole size, or None.
    priced: Callable[[int], float | None] | None = None

    @property
    def name(self) -> str:
        return f"{self.method}, {self.device}"

    def at(self, size: float) -> float | None:
        """Predicted seconds at a size; None where they are not known."""
        known = dict(self.points).get(size)
        return self.priced(size) if known is None and self.priced is not None else known


def alone(
    operation: Operation, line: Line, dtype: str, constants: Profile, devices: Devices
) -> list[Curve]:
    """Each method with its operands where it computes: nothing is moved.

    Methods that are made of others have no samples of their own, and are left out; of equal devices
    there is the one that was measured.
    """
    curves = (
        _curve(operation, line, dtype, constants, name, info, row)
        for name, info in devices.items()
        if not (info.get("is_host_cpu") or info.get("same_as"))
        for row in registry.lookup(operation.name)
        if row.kind == info["kind"] and row.price is None
    )
    return [curve for curve in curves if curve is not None]


def from_host(operation: Operation, line: Line, dtype: str, machine: OtherMachine) -> list[Curve]:
    """Each candidate of a call on host operands, what it moves included."""

    @functools.cache
    def priced(size: int) -> dict[tuple[str, str], float | None]:
        plan = machine.plan(operation.from_dims(line.dims(size), dtype, HOST))
        return {(c.device, c.method): c.seconds for c in plan.candidates if c.reason is None}

    points: dict[tuple[str, str], list[tuple[float, float]]] = {}
    for size in line.axis.sizes():
        for place, seconds in priced(size).items():
            if seconds is not None:
                points.setdefault(place, []).append((size, seconds))
    return [
        Curve(*place, known, priced=lambda size, place=place: priced(size).get(place))
        for place, known in points.items()
        if len(known) > 1
    ]


def _curve(
    operation: Operation,
    line: Line,
    dtype: str,
    constants: Profile,
    name: str,
    info: dict[str, Any],
    row: Implementation,
) -> Curve | None:
    on = HOST if name == CPU else name
    works, keys = {}, []
    for size in line.axis.sizes():
        problem = operation.from_dims(line.dims(size), dtype, on)
        if row.excludes(problem, info) is not None:
            continue
        key = name, row.kind, operation.name, row.method, dtype, problem.layout
        if constants.model(*key) is not None:
            works[size] = row.work(problem, info)
            keys.append(key)
    if len(works) < 2:
        return None
    key = keys[len(keys) // 2]
    model, cost = constants.model(*key), constants.cost(*key)
    try:
        points = [(size, _seconds(cost, work)) for size, work in works.items()]
    except (KeyError, ValueError):  # of other dimensions
        return None
    fitted, held_out = [*_fitted(model, works)], [*_held_out(model, works)]
    return Curve(name, row.method, points, fitted, held_out, model.get("residuals", {}))


def _seconds(cost: Cost, work: Work) -> float:
    overhead, compute = cost(work)
    return overhead * work.calls + compute


def _fitted(model: dict[str, Any], works: dict[int, Work]) -> Iterator[tuple[float, float]]:
    """The measured knots of a model that lie on a line, with the line's numbers of steps."""
    samples = model.get("samples")
    if not samples or "interpolated" in samples:
        return
    constants = model["constants"]
    axes = constants["step"]["axes"] if model["form"] == "solve" else constants.get("axes", [])
    missing = {tuple(dims) for dims in samples.get("extrapolated", ())}
    near = _Near(model, works)
    for index, dims in enumerate(grid(axes)):
        size = None if dims in missing else near.size(dims)
        if size is not None:
            yield size, _at_knot(model, index, near.work(size)._replace(dims=dims))


def _at_knot(model: dict[str, Any], index: int, work: Work) -> float:
    """Seconds of a knot, made those of the work's launches and steps."""
    constants = model["constants"]
    if model["form"] == "solve":  # the set-up may have fewer knots than a step
        return _seconds(bind(model), work)
    overhead = constants["overhead"]
    if model["form"] == "waves":
        compute = work.estimate * constants["ratios"][index]
    else:
        compute = constants["seconds"][index] - overhead
    return overhead * work.calls + max(compute, 0.0) * work.repeat


def _held_out(model: dict[str, Any], works: dict[int, Work]) -> Iterator[tuple[float, float]]:
    near = _Near(model, works)
    # Of these the device's share alone is measured.
    overhead = model["constants"]["overhead"] if model["form"] == "waves" else 0.0
    for dims, seconds in (model.get("samples") or {}).get("held_out", ()):
        size = near.size(tuple(dims))
        if size is not None and near.work(size).repeat == 1:
            yield size, overhead + seconds


class _Near:
    """Which size of a line has the work of a sample."""

    def __init__(self, model: dict[str, Any], works: dict[int, Work]) -> None:
        self._works = works
        self._sizes = np.log(list(works))
        coordinates = [_coordinates(model, work.dims) for work in works.values()]
        self._coordinates = np.log(np.asarray(coordinates, float)).T

    def size(self, dims: tuple[int, ...]) -> float | None:
        """The size whose problem is that of the dimensions; None if no problem of the line is."""
        if len(dims) != len(self._coordinates):
            return None
        wanted = np.log(np.asarray(dims, float))
        total = self._coordinates.sum(axis=0)
        if not total[0] - _NEAR <= wanted.sum() <= total[-1] + _NEAR:
            return None
        size = np.interp(wanted.sum(), total, self._sizes)
        there = [np.interp(size, self._sizes, row) for row in self._coordinates]
        if np.abs(there - wanted).max() > _NEAR:
            return None
        return float(np.exp(size))

    def work(self, size: float) -> Work:
        """Of the line's problem that is nearest."""
        return self._works[min(self._works, key=lambda n: abs(math.log(n / size)))]


def _coordinates(model: dict[str, Any], dims: tuple[int, ...]) -> tuple[int, ...]:
    """The dimensions as the model counts them."""
    if model["form"] != "filter":
        return dims
    h, w, fh, fw = dims
    block = model["constants"].get("block", 1)
    return h * -(-w // block) * block, fh * fw
