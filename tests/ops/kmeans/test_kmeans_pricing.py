"""Fits from k-means++ are priced by what the seeds take, measured beside the iterations."""

from __future__ import annotations

import math
import types

import pytest

import hetero
from hetero import profile
from hetero.calibration import fit, sizes
from hetero.calibration.fit import derived
from hetero.calibration.samples import Samples
from hetero.calibration.sizes import FIRST, Place, grid
from hetero.ops import kmeans
from hetero.ops.kmeans import operands
from hetero.pricing import pricing
from hetero.registry.models import ModelKey

AXES = [[1024, 131072], [2, 128], [2, 64]]
DEVICE = {"kind": "cuda", "name": "a GPU", "memory_bytes": 1 << 36, "multiprocessors": 100}
DEVICE |= {"block_limit": 1024, "shared_limit": 1 << 16, "library": "13.0"}
MACHINE = {"cpu": {"kind": "cpu", "cores": 2}, "cuda:0": DEVICE}
ROUND = {"cpu": 0.0, "cuda:0": 2e-4}  # seconds of a seed, beside the distances
SETUP, RATE = {"cpu": 1e-4, "cuda:0": 3e-4}, {"cpu": 1e9, "cuda:0": 1e11}


def step_of(place, dims):
    return 1e-5 + math.prod(dims) / RATE[place]


def whole(place, dims, iterations):
    """Seconds of a fit from k-means++: seeds, iterations, labels."""
    k = dims[-1]
    steps = operands.trials(k) + iterations + 1
    return SETUP[place] + k * ROUND[place] + steps * step_of(place, dims)


def solve(step, setup):
    """A model of a solve that takes what these functions of the dimensions say."""
    values = {name: [of(d) for d in grid(AXES)] for name, of in (("setup", setup), ("step", step))}
    constants = {name: {"axes": AXES, "seconds": found} for name, found in values.items()}
    return {"form": "solve", "constants": constants}


def priced(content, dims, place, **options):
    """Seconds of a fit of rows that lie there, less the host's work around a call."""
    n, d, k = dims
    constants = profile.Profile(
        {"name": "made", "models": {str(key): model for key, model in content.items()}}
        | {"devices": MACHINE, "links": {}, "host": {"dispatch": {"cuda:0": {"device": 0.0}}}}
    )
    on = "host" if place == "cpu" else place
    problem = kmeans.problem(hetero.spec((n, d), "float64", on=on), k, **options)
    return pricing.price(problem, constants, MACHINE, place, "lloyd").chosen.seconds


@pytest.mark.parametrize("place", MACHINE)
def test_seeds_are_in_the_price(place):
    key = ModelKey(place, "kmeans", "lloyd", "float64", operands.DENSE)
    content = {
        key: solve(lambda dims: step_of(place, dims), lambda dims: SETUP[place]),
        key._replace(layout=FIRST): solve(lambda dims: whole(place, dims, 1), lambda dims: 1e-7),
    }
    content |= derived(content)
    for dims in grid(AXES):
        for iterations in (1, 10):
            seconds = priced(content, dims, place, max_iter=iterations)
            assert seconds == pytest.approx(whole(place, dims, iterations), rel=0.021)
        again = priced(content, dims, place, max_iter=10, n_init=3)
        assert again == pytest.approx(3 * whole(place, dims, 10), rel=0.021), "each its own"


def test_what_several_devices_are_sent_is_no_part_of_a_whole_fit():
    """A fit that is timed as one step is less what is moved, as the set-up of others is."""
    device = types.SimpleNamespace(name="cuda:0")
    info = DEVICE | {"members": ("cuda:0", "cuda:1"), "constants": "cuda*2"}
    place = Place("cuda*2", info, (device, device))
    made = {c.layout: c for c in sizes.cases("kmeans", place, False) if c.dtype == "float64"}
    first, whole = made[FIRST], made[operands.DENSE]
    segment = {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": 0.0}
    link = {"pageable": {"form": "segments", "constants": [segment]}}
    links = {"cuda:0": {"upload": link, "download": link}}
    constants = profile.Profile({"name": "", "devices": {}, "links": links})
    dims = (131072, 128, 16)
    moved = math.prod(dims[:2]) * 8 / 1e9  # a half of X to each, by one bus
    for case, expected in ((first, (1.0 - moved, 1.0)), (whole, (1.0, 1.0 - moved))):
        left = fit.unmoved(case, Samples({dims: 1.0}, setup={dims: 1.0}), constants)
        assert (left.seconds[dims], left.setup[dims]) == pytest.approx(expected, rel=1e-3)
