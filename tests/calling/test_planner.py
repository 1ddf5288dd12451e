"""Plans: priced term by term, the cheapest chosen, each loser with its reason."""

from __future__ import annotations

import pytest
from made_up import CPU, GPU, TWO, machine, priced, reason, square

import hetero
from hetero import profile, registry
from hetero.arrays import Spec
from hetero.pricing import pricing


@pytest.mark.parametrize("number", [2, 3])
def test_equal_gpus_together_have_the_memory_of_all(number):
    assert not pricing.groups(TWO)
    here = {name: {**info, "memory_limit": 1000} for name, info in TWO.items()}
    here |= {f"cuda:{n}": {**here["cuda:0"], "same_as": "cuda:0"} for n in range(1, number)}
    group = pricing.groups(here)["cuda:*"]
    assert (group["members"], group["constants"]) == (tuple(here)[1:], f"cuda*{number}")
    assert group["memory_bytes"] == number * GPU["memory_bytes"]
    assert group["memory_limit"] == number * 1000
    here["cuda:1"]["set_aside"] = "it failed twice"
    assert list(pricing.groups(here)) == (["cuda:*"] if number > 2 else [])


def test_what_several_gpus_cannot_do_together_the_first_of_them_does_where_asked_for_all():
    h200 = profile.shipped("h200")
    here = h200.machine()
    here["cuda:1"] = {**here["cuda:0"], "same_as": "cuda:0"}
    data = h200.data | {"models": dict(h200.data["models"])}
    key = "poisson|jacobi|float64|2d"
    data["models"][f"cuda*2|{key}"] = data["models"][f"cuda:0|{key}"]
    problem = registry.operation("poisson").from_dims((2048, 2048), "float64", "host")

    def chosen(method=None):
        plan = pricing.price(problem, profile.Profile(data), here, "cuda:*", method)
        assert {c.device for c in plan.candidates if c.method == "jacobi"} <= {"cuda:*"}
        return plan.chosen

    together, one = chosen("jacobi"), chosen()
    assert (together.device, one.device) == ("cuda:*", "cuda:0")
    assert one.method in ("dst", "multigrid")
    assert one.seconds < together.seconds / 10
    assert chosen("dst").device == "cuda:0"


def test_every_excluded_candidate_has_its_reason():
    assert "cuBLAS" in reason(priced(square(64)), "cuda:0", "library")
    assert "int32" in reason(priced(square(64, dtype="int32")), "cuda:0")
    large = priced(square(2**14))
    assert "3.0 GiB" in reason(large, "cuda:0", "tiled")
    assert "1.0 GiB" in reason(large, "cuda:0", "tiled")
    here = {"cpu": CPU, "cuda:0": {**GPU, "set_aside": "it failed twice"}}
    assert reason(priced(square(999), here), "cuda:0", "tiled") == "it failed twice"
    twins = {**TWO, "cuda:1": {**GPU, "same_as": "cuda:0"}}
    assert "cuda:0" in reason(priced(square(999), twins), "cuda:1", "tiled")
    pocl = {**TWO, "opencl:0": {**GPU, "kind": "opencl", "is_host_cpu": True}}
    assert "device=" in reason(priced(square(999), pocl), "opencl:0")
    bare = priced(square(999), constants=machine(models={}))
    assert "calibrate" in reason(bare, "cuda:0", "tiled")
    unlinked = priced(square(999), constants=machine(links={}))
    assert "upload of cuda:0" in reason(unlinked, "cuda:0", "tiled")


def test_without_constants_the_cpu_is_taken():
    """NumPy's method by conservative ones; what is compiled here has no price."""
    plan = priced(square(999), constants=machine(models={}))
    assert plan.chosen.device == "cpu"
    assert plan.seconds == priced(square(999), constants=profile.shipped("conservative")).seconds
    sweeps = hetero.plan("solve_poisson", Spec((9, 9)), maxiter=5, rtol=0.0, method="jacobi")
    unknown = priced(sweeps.problem, constants=machine(models={}))
    assert (unknown.chosen.device, unknown.chosen.method, unknown.seconds) == (
        "cpu",
        "jacobi",
        None,
    )
    assert "not priced" in str(unknown)
    on_device = priced(square(999, "cuda:0"), constants=machine(models={}, links={}))
    assert on_device.chosen.device == "cpu"
