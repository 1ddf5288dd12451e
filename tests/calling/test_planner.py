"""Plans: priced term by term, the cheapest chosen, each loser with its reason; remembered until
something changes that they depend on."""

from __future__ import annotations

import threading

import numpy as np
from fakes import in_threads
from made_up import CPU, GPU, TWO, machine, priced, reason, roofline, square

import hetero
from hetero import profile, registry, tables
from hetero.arrays import Spec
from hetero.calling import planner
from hetero.ops.products.public import matmul_problem
from hetero.pricing import pricing
from hetero.profile import inventory


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


# -- Remembered ------------------------------------------------------------------------------------


def test_calls_follow_the_profile(cuda):
    """A remembered call is forgotten with the plan behind it."""
    A = np.ones((64, 64), np.float32)
    profile.set_current(machine())
    hetero.matmul(A, A)
    hetero.matmul(A, A)
    assert "compute" not in cuda.log
    fast = machine().data["models"] | {"cpu|matmul|blas|float32|*": roofline(1.0, 1e10, 1e10)}
    profile.set_current(machine(models=fast))
    np.testing.assert_array_equal(hetero.matmul(A, A), A @ A)
    assert "compute" in cuda.log


def test_memory_is_bounded():
    A = np.ones((3, 3))
    for n in range(2 * tables._MOST // 100):
        planner.plan(square(n + 1))
    table = {}
    for n in range(tables._MOST + 10):
        tables.remember(table, n, A, tables.generation())
    assert len(table) <= tables._MOST
    # A plan made before a change is not kept.
    before = tables.generation()
    profile.set_current(machine())
    table = {}
    tables.remember(table, "key", "old", before)
    assert not table


def test_threads_that_plan_while_things_change():
    wrong, stop = [], threading.Event()
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, n + 1)), rng.random((n + 1, 3))) for n in range(1, 30)]

    def work():
        try:
            while not stop.is_set():
                for A, B in pairs:
                    if not np.array_equal(hetero.matmul(A, B), A @ B):
                        wrong.append("value")
                    planner.plan(matmul_problem(A, B))
        except Exception as error:
            wrong.append(error)

    def change():
        for _ in range(30):
            profile.set_current(profile.shipped("conservative"))
            inventory.changed()
        stop.set()

    in_threads(*[work] * 4, change)
    assert not wrong
