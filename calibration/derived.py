"""Models that follow from others: of dense matrices too large to measure, and of k-means++."""

from __future__ import annotations

import copy
from typing import Any

from hetero.calibration.operands import FIRST
from hetero.calibration.sizes import grid
from hetero.ops.kmeans.methods import seeding_iterations
from hetero.ops.kmeans.operands import DENSE, SEEDED
from hetero.registry.models import ModelKey, Work, bind

Models = dict[ModelKey, dict[str, Any]]

_MATVEC = (("blas", "C"), ("tiled", "C aligned"))
_LONGER = (4096, 8192, 16384, 32768)
_LEAST = 0.02  # of a fit's time: its set-up, where the distances seem to take all


def derived(models: Models) -> Models:
    """What follows from these models."""
    found = {}
    first_of = {(key.place, key.dtype): key for key in models if key.layout == FIRST}
    for key, model in models.items():
        first = first_of.get((key.place, key.dtype))
        if (key.operation, key.layout) == ("cg", "dense"):
            kind, several, members = key.place.partition("*")  # such as "cuda*2"
            one = key._replace(operation="matvec", place=f"{kind}:0" if several else kind)
            keys = (one._replace(method=m, layout=at) for m, at in _MATVEC)
            matvec = next((models[k] for k in keys if k in models), None)
            if matvec is not None:
                found[key] = _longer(model, matvec, int(members or 1))
        elif (key.operation, key.layout) == ("kmeans", DENSE) and first is not None:
            measured = models.get(first._replace(layout=DENSE))
            if measured:
                found[key._replace(layout=SEEDED)] = _seeded(model, measured, models[first])
    return found


def _longer(model: dict[str, Any], matvec: dict[str, Any], members: int) -> dict[str, Any]:
    """The model with matrices that fit no cache and would take long to fill: longer by a
    matrix-vector product of each device's share of rows."""
    model, cost = copy.deepcopy(model), bind(matvec)

    def product(n: int) -> float:
        return sum(cost(Work((n // members, n), 0.0, 0.0)))

    for part in ("setup", "step"):
        (sizes,), seconds = (model["constants"][part][name] for name in ("axes", "seconds"))
        last, base = product(sizes[-1]), seconds[-1]
        for n in [n for n in _LONGER if n > sizes[-1]]:
            sizes.append(n)
            seconds.append(float(f"{base + max(product(n) - last, 0.0):.5g}"))
    return model


def _seeded(model: dict[str, Any], measured: dict[str, Any], first: dict[str, Any]) -> dict:
    """Iterations as of fits from given centroids, and the set-up that is left of fits from
    k-means++ with one iteration.

    With the rows on a GPU nearly all of it is k round trips for k seeds, of which the distances
    tell nothing. A method that was not measured gets the set-up of the one that was, and what its
    own takes more.
    """
    made, own, other = copy.deepcopy(model), bind(model), bind(measured)
    part = first["constants"]["step"]
    setup = []
    for dims, whole in zip(grid(part["axes"]), part["seconds"], strict=True):
        passes = Work(dims, 0.0, 0.0, repeat=2)  # an iteration, and the labels
        seconds = whole + sum(own(passes)) - sum(other(passes))
        _, priced = own(passes._replace(repeat=2 + seeding_iterations(dims[-1])))
        setup.append(float(f"{max(seconds - priced, _LEAST * whole):.5g}"))
    made["constants"]["setup"] = {"axes": part["axes"], "seconds": setup}
    return made
