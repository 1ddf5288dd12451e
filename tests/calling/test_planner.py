"""Plans: priced term by term, the cheapest chosen, each loser with its reason; forced by device=,
method= and `use`; remembered until something changes that they depend on."""

from __future__ import annotations

import contextlib
import copy
import pickle
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
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
    asked = {"maxiter": 5, "rtol": 0.0, "method": "jacobi"}
    sweeps = registry.operation("poisson").problem(Spec((9, 9)), **asked)
    unknown = priced(sweeps, constants=machine(models={}))
    chosen = unknown.chosen
    assert (chosen.device, chosen.method, chosen.seconds) == ("cpu", "jacobi", None)
    assert "not priced" in str(unknown)
    on_device = priced(square(999, "cuda:0"), constants=machine(models={}, links={}))
    assert on_device.chosen.device == "cpu"


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_without_a_profile_a_gpu_computes_with_what_lies_there(dtype):
    here = {"cpu": CPU, "cuda:0": GPU | {"memory_bytes": 1 << 38, "elsewhere": True}}
    for name, *sizes in (
        ("matvec", (64, 64), (20000, 20000)),
        ("matmul", (64, 64, 64), (8192, 8192, 8192)),
        ("convolve2d", (64, 64, 3, 3), (4096, 4096, 63, 63)),
        ("solve_cg", (64, 64), (1024, 1024), (300,)),
        ("solve_poisson", (512, 512), (64, 64, 64)),
        ("kmeans", (1000, 2, 8), (1000000, 32, 64)),
    ):
        for dims in sizes:
            problem = registry.operation(name).from_dims(dims, dtype, "cuda:0")
            plan = pricing.price(problem, profile.shipped("conservative"), here)
            assert plan.chosen.device == "cuda:0", plan


# -- Forced ----------------------------------------------------------------------------------------


def test_the_calls_own_placement_counts_before_the_innermost_blocks(cuda):
    """What a block leaves out is that of the block around it."""
    A = np.ones((5, 5), np.float32)
    for blocks, own, on_device in (
        ([{"device": "cuda"}, {"device": "cpu"}], {}, False),
        ([{"device": "cuda"}, {"results": "host"}], {}, True),
        ([{"device": "cuda"}], {"device": "cpu"}, False),
        ([{"device": "cpu"}], {"device": "cuda"}, True),
        ([{"method": "tiled"}], {}, True),
        ([{"method": "tiled"}], {"method": "blas"}, False),
        ([{"method": "blas"}, {"method": "tiled"}], {}, True),
    ):
        for _ in range(2):  # then remembered
            cuda.log.clear()
            with contextlib.ExitStack() as stack:
                for block in blocks:
                    stack.enter_context(hetero.use(**block))
                np.testing.assert_array_equal(hetero.matmul(A, A, **own), A @ A)
            assert ("compute" in cuda.log) == on_device, (blocks, own)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"device": "nonsense"}, "'cpu'.*got 'nonsense'"),
        ({"device": "gpu"}, "'cpu'.*got 'gpu' .*'hetero info'"),  # and no guess that it was "cpu"
        ({"method": "magic"}, "'blas'.*'multigrid'.*got 'magic'"),
        ({"device": "cpu", "method": "tiled"}, "'blas'.*got 'tiled'"),
        ({"results": "gpu"}, "'host', 'device', got 'gpu'$"),
        ({"watch": "no"}, "True or False, got 'no'"),
    ],
    ids=str,
)
def test_use_refuses_an_argument_at_once(given, message):
    with pytest.raises(ValueError, match=message):
        hetero.use(**given)


@pytest.mark.parametrize(
    "copied", [copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))]
)
def test_a_block_can_be_copied_and_pickled(copied):
    """The copy asks for the same, and is not entered where the original is."""
    block = hetero.use(device="cpu", results="host", memory_limit="1 GB")
    before = copied(block)
    with block:
        inside = copied(block)
    for one in (before, inside):
        with one:
            assert tables.forced.get() == ("cpu", None, "host", 10**9, None)
        assert tables.forced.get() is None


def test_a_block_around_a_function_is_one_for_each_call():
    @hetero.use(device="cpu")
    def depth(left):
        assert planner.placement(None, None)[0] == "cpu"
        return left and depth(left - 1)

    assert depth(3) == 0
    assert tables.forced.get() is None
    block = hetero.use(device="cpu")
    with block, pytest.raises(RuntimeError, match="entered already"), block:
        pass
    assert tables.forced.get() is None


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


def test_threads_that_plan_while_things_change():
    rng = np.random.default_rng(0)
    pairs = [(rng.random((n, n + 1)), rng.random((n + 1, 3))) for n in range(1, 30)]

    def work():
        for A, B in 4 * pairs:
            np.testing.assert_array_equal(hetero.matmul(A, B), A @ B)
            planner.plan(matmul_problem(A, B))

    with ThreadPoolExecutor() as pool:
        running = [pool.submit(work) for _ in range(4)]
        while not all(one.done() for one in running):
            profile.set_current(profile.shipped("conservative"))
            inventory.changed()
    for one in running:
        one.result()
