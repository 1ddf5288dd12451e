"""Constants that cannot be, as of a machine that did something else: what plans make of them."""

from __future__ import annotations

import copy

import pytest

import hetero
from hetero import profile

FAR = 8.0  # times the unspoilt prediction
CALLS = {
    "cpu|matmul|blas|float64|*": ("matmul", ((700, 300), (300, 900)), ((8192, 8192),) * 2),
    "cpu|matvec|blas|float64|C": ("matvec", ((700, 500), (500,)), ((20000, 20000), (20000,))),
    "cpu|convolve2d|direct|float64|*": (
        "convolve2d",
        ((700, 500), (7, 7)),
        ((9000, 9000), (15, 15)),
    ),
    "cpu|poisson|multigrid|float64|2d": ("solve_poisson", ((300, 200),), ((4000, 4000),)),
    "cpu|kmeans|lloyd|float64|dense": ("kmeans", ((3000, 10), 12), ((400000, 64), 100)),
    "cpu|cg|blas|float64|dense": ("solve_cg", ((700, 700), (700,)), ((6000, 6000), (6000,))),
    "cuda:0|matmul|tiled|float64|CC aligned": (
        "matmul",
        ((704, 320), (320, 960)),
        ((9984, 9984),) * 2,
    ),
}


@pytest.fixture
def stored(tmp_path):
    """Stores a profile "h100", of which something is changed; gives its path."""

    def store(change):
        content = copy.deepcopy(profile.shipped("h100").data)
        change(content["models"])
        path = tmp_path / "spoilt.json"
        path.write_bytes(profile.encode(content))
        return str(path)

    return store


def seconds_of(key, name):
    """What a method is said to compute for, at a usual and at a large size."""
    place, _, method, dtype, _ = key.split("|")
    function, *sizes = CALLS[key]
    found = []
    for shapes in sizes:
        operands = [hetero.spec(s, dtype) if isinstance(s, tuple) else s for s in shapes]
        plan = hetero.plan(function, *operands, device=place, method=method, profile=name)
        found.append(plan.chosen.terms["compute"] + plan.chosen.terms["overhead"])
    return found


def curves(model):
    """The lists of its seconds or ratios."""
    constants = model["constants"]
    parts = [constants[part] for part in ("setup", "step")] if "step" in constants else [constants]
    return [part.get("seconds") or part["ratios"] for part in parts]


@pytest.mark.parametrize("key", CALLS)
@pytest.mark.parametrize("spoilt", ["largest", "every third"])
def test_a_profile_with_spoilt_knots_predicts_within_bounds(key, spoilt, stored):
    def change(models):
        for values in curves(models[key]):
            for number in range(len(values)):
                if number % 3 == 1 if spoilt == "every third" else number == len(values) - 1:
                    values[number] *= 1000.0

    for now, before in zip(seconds_of(key, stored(change)), seconds_of(key, "h100"), strict=True):
        assert before / FAR < now < FAR * before
