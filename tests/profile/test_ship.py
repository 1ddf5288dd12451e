"""Profiles that come with hetero: without raw samples, and the same constants."""

from __future__ import annotations

import copy
from importlib import resources

import pytest

from hetero import profile
from hetero.calibration import ship
from hetero.profile import parse


def test_shipped_ones_hold_the_same_constants():
    data = copy.deepcopy(profile.shipped("h100").data)
    for model in data["models"].values():
        model["samples"] = {"seconds": [1.0]}
    found = parse(ship.shipped(data, "mine"))
    assert found.name == "mine"
    assert found.data["models"] == profile.shipped("h100").data["models"]


def shipped():
    folder = resources.files("hetero.profile.data")
    return [f.name.removesuffix(".json") for f in folder.iterdir() if f.name.endswith(".json")]


@pytest.mark.parametrize("name", shipped())
def test_what_comes_with_hetero_has_no_samples(name):
    file = resources.files("hetero.profile.data") / f"{name}.json"
    assert len(file.read_bytes()) <= 400_000
    data = profile.shipped(name).data
    links = [m for d in data["links"].values() for kinds in d.values() for m in kinds.values()]
    for model in (*data["models"].values(), *links, data["host"]["pack"]):
        assert "samples" not in model
