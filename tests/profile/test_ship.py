"""Profiles that come with hetero: without raw samples, and the same constants."""

from __future__ import annotations

import copy
import random
from importlib import resources

import pytest

from hetero import profile
from hetero.calibration import fit, ship
from hetero.calibration.sizes import grid
from hetero.profile import parse

FULL = [4, 16, 32, 48, 64, 96, 128, 256, 512, 1024]
FEW = [4, 16, 64, 256, 1024]


def seconds(dims, factor=1.0):
    m, n = dims
    return 1e-5 + factor * 3e-11 * m * n * (1.0 + 0.3 * (m % 64 > 0))


@pytest.fixture
def data():
    """A measured profile: one layout on all knots, two on some, as calibration measures them."""
    data = copy.deepcopy(profile.shipped("conservative").data)
    draw = random.Random(1)

    def noise():
        return draw.uniform(0.97, 1.03)

    axes = [FULL, FULL]
    first = fit.table(axes, {d: seconds(d) * noise() for d in grid(axes)}, {(20, 30): 1e-5})
    data["models"] = {"cuda:0|matvec|library|float32|C aligned": first}
    for layout, less in (("C odd", 1), ("F aligned", 0)):
        few = [[n - less for n in FEW]] * 2
        measured = {d: seconds(d, 1.4) * noise() for d in grid(few)}
        beside = fit.table(few, measured, {})
        data["models"][f"cuda:0|matvec|library|float32|{layout}"] = beside
    return data


def test_shipped_ones_hold_the_same_constants(data):
    content = ship.shipped(data, "mine")
    found = parse(content)
    assert found.name == "mine"
    for key, model in data["models"].items():
        assert found.data["models"][key]["constants"] == model["constants"]
        assert found.data["models"][key].get("residuals") == model.get("residuals")
        assert "samples" not in found.data["models"][key]


def shipped():
    folder = resources.files("hetero.profile.data")
    return [f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")]


@pytest.mark.parametrize("name", shipped())
def test_what_comes_with_hetero_has_no_samples(name):
    file = resources.files("hetero.profile.data") / f"{name}.json"
    assert len(file.read_bytes()) <= 200_000
    data = profile.shipped(name).data
    links = [m for d in data["links"].values() for kinds in d.values() for m in kinds.values()]
    for model in (*data["models"].values(), *links, data["host"]["pack"]):
        assert "samples" not in model
