"""Plans: priced term by term, the cheapest chosen, each loser with its reason."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from made_up import (
    CPU,
    GPU,
    TWO,
    WITH_LIBRARY,
    candidate,
    machine,
    priced,
    reason,
    roofline,
    square,
)

import hetero
from hetero import devices, profile, registry, tables
from hetero.arrays import Spec
from hetero.calling import planner
from hetero.errors import NotPriced
from hetero.ops import matmul, matvec
from hetero.pricing import pricing
from hetero.pricing.plan import Plan


def test_terms_by_hand():
    plan = priced(square(100))
    nbytes, flops = 4e4, 2e6
    cpu = candidate(plan, "cpu")
    assert cpu.terms == pytest.approx({"overhead": 1e-6, "compute": flops / 1e10})
    gpu = candidate(plan, "cuda:0", "tiled")
    assert gpu.terms == pytest.approx(
        {
            "upload": 2 * (1e-5 + nbytes / 1e9),
            "overhead": 5e-6 + 7e-6,
            "compute": flops / 1e12,
            "download": 2e-5 + nbytes / 5e8,
        }
    )


def test_operands_that_are_there_cost_nothing_to_move():
    plan = priced(square(100, "cuda:0"))
    gpu = candidate(plan, "cuda:0", "tiled")
    assert gpu.terms == pytest.approx({"overhead": 5e-6 + 4e-6, "compute": 2e6 / 1e12})
    cpu = candidate(plan, "cpu")
    assert cpu.terms == pytest.approx(
        {
            "download": 2 * (2e-5 + 4e4 / 5e8),
            "overhead": 1e-6 + 1e-6,
            "compute": 2e6 / 1e10,
            "upload": 1e-5 + 4e4 / 1e9,
        }
    )


def test_operands_with_gaps_are_packed_first():
    gaps = np.zeros((100, 200), np.float32)[:, ::2]
    plan = priced(matmul.problem(gaps, np.zeros((100, 100), np.float32).T))
    gpu = candidate(plan, "cuda:0", "tiled")
    assert gpu.terms["pack"] == pytest.approx(3e-6 + 4e4 / 2e9)


def test_mixed_places():
    one = matmul.problem(Spec((100, 100), "float32", on="cuda:0"), Spec((100, 100), "float32"))
    gpu = candidate(priced(one), "cuda:0", "tiled")
    assert gpu.terms["upload"] == pytest.approx(1e-5 + 4e4 / 1e9), "one operand of two"
    assert "download" not in gpu.terms, "the result stays beside the operand"


@pytest.mark.parametrize("on", ["host", "cuda:0"])
@pytest.mark.parametrize("n", [10, 100, 1000, 5000])
def test_terms_add_up_and_the_cheapest_comes_first(n, on):
    plan = priced(square(n, on), WITH_LIBRARY)
    possible = [c for c in plan.candidates if c.reason is None]
    for c in possible:
        assert c.seconds == pytest.approx(sum(c.terms.values()), rel=1e-12)
        assert all(seconds >= 0 for seconds in c.terms.values())
    assert len(possible) == (4 if (n, on) == (5000, "host") else 3), "large ones in tiles too"
    assert [c.seconds for c in possible] == sorted(c.seconds for c in possible)
    assert plan.chosen is plan.candidates[0]
    assert plan.seconds == plan.chosen.seconds


@pytest.mark.parametrize("calls", [1.0, 1.15, 3.0])
def test_an_implementation_of_several_calls_pays_for_each(calls, monkeypatch):
    def several(implementation):
        def work(problem, info):
            return implementation.work(problem, info)._replace(calls=calls)

        return dataclasses.replace(implementation, work=work)

    once = candidate(priced(square(100)), "cuda:0", "tiled")
    found = tuple(map(several, registry.lookup("matmul")))
    monkeypatch.setattr(registry, "lookup", lambda operation: found)
    plan = priced(square(100))
    assert candidate(plan, "cpu").terms["overhead"] == pytest.approx(calls * 1e-6)
    gpu = candidate(plan, "cuda:0", "tiled")
    assert gpu.terms["overhead"] == pytest.approx(calls * 5e-6 + 7e-6)
    for term in ("upload", "compute", "download"):
        assert gpu.terms[term] == once.terms[term]


@pytest.mark.parametrize("number", [1, 2, 3])
def test_equal_gpus_together_are_a_candidate(number):
    here = {"cpu": CPU, "cuda:0": GPU}
    for n in range(1, number):
        here[f"cuda:{n}"] = {**GPU, "same_as": "cuda:0"}
    found = pricing.groups(here)
    if number == 1:
        assert not found
        return
    (group,) = found.values()
    assert list(found) == ["cuda:*"]
    assert group["members"] == tuple(name for name in here if name != "cpu")
    assert group["constants"] == f"cuda*{number}"
    assert group["memory_bytes"] == number * GPU["memory_bytes"]
    limited = {name: {**info, "memory_limit": 1000} for name, info in here.items()}
    assert pricing.groups(limited)["cuda:*"]["memory_limit"] == number * 1000
    together = dataclasses.replace(
        next(i for i in registry.lookup("matmul") if i.kind == "cuda"),
        excludes=registry.Can(registry.no_obstacle, shared=lambda problem: True),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(registry, "lookup", lambda operation: (together,))
        constants = machine(
            models={f"cuda*{number}|matmul|tiled|float32|*": roofline(1e-6, 1e12, 1e12)}
        )
        plan = priced(square(100), here, constants)
        assert candidate(plan, "cuda:*").terms["overhead"] == pytest.approx(1e-6)
        here["cuda:1"]["set_aside"] = "it failed twice"
        left = pricing.groups(here)
        assert list(left) == (["cuda:*"] if number > 2 else [])


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


def test_batches():
    one, many = (
        matmul.problem(Spec((*b, 64, 64), "float32"), Spec((*b, 64, 64), "float32"))
        for b in ((), (10,))
    )
    assert candidate(priced(many), "cpu").terms["compute"] == pytest.approx(
        10 * candidate(priced(one), "cpu").terms["compute"]
    )
    uploads = [candidate(priced(p), "cuda:0", "tiled").terms["upload"] for p in (one, many)]
    assert uploads[1] - uploads[0] == pytest.approx(9 * 2 * 64 * 64 * 4 / 1e9)


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


def test_of_several_reasons_against_a_device_the_first_is_shown():
    """That it failed, that it is another one again, that it has no room, what a method lacks."""
    info = {**GPU, "same_as": "cuda:1", "is_host_cpu": True, "set_aside": "it failed twice"}
    reasons = {
        "set_aside": "it failed twice",
        "is_host_cpu": "this machine's CPU again",
        "same_as": "the same as cuda:1",
        "memory_bytes": "3.0 GiB",
        "library": "cuBLAS",
    }
    for key, text in reasons.items():
        plan = priced(square(2**14), {"cpu": CPU, "cuda:0": info})
        assert text in reason(plan, "cuda:0", "library")
        info[key] = 2**40 if key == "memory_bytes" else None


@pytest.mark.parametrize(("n", "keepable"), [(20, False), (300, True)])
def test_what_is_moved_is_worth_keeping_where_it_decides(n, keepable):
    """A small product takes longer on the GPU even with its operands there."""
    assert priced(square(n)).keepable == keepable
    assert not priced(square(n, "cuda:0")).keepable


def test_a_filter_of_unknown_values_is_of_no_known_rank():
    plan = hetero.plan("convolve2d", Spec((512, 512), "float32"), Spec((15, 15), "float32"))
    assert plan.problem.options.rank == 0
    separable = candidate(plan, "cpu", "separable")
    assert "not known to be of low rank" in separable.reason
    assert plan.chosen.method != "separable"


def test_a_twin_that_holds_the_operands_is_considered():
    twins = {**TWO, "cuda:1": {**GPU, "same_as": "cuda:0"}}
    plan = priced(square(999, "cuda:1"), twins)
    assert plan.chosen.device == "cuda:1"


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


def test_a_priced_candidate_goes_before_one_without_constants():
    some = {k: m for k, m in machine().data["models"].items() if "blas" in k}
    plan = priced(square(999), constants=machine(models=some))
    assert (plan.chosen.device, plan.chosen.method) == ("cpu", "blas")
    assert candidate(plan, "cuda:0", "tiled").reason == pricing.UNKNOWN


def test_nothing_possible():
    plan = Plan(square(8), (), "made up")
    with pytest.raises(NotPriced, match="matmul float32"):
        _ = plan.chosen
    assert plan.to_dict()["chosen"] is None


@pytest.mark.parametrize(
    ("a", "b", "operation", "dims"),
    [
        ((3, 4), (4, 5), "matmul", (3, 5, 4)),
        ((3, 4), (4,), "matvec", (3, 4)),
        ((4,), (4, 5), "matvec", (5, 4)),
        ((1, 4), (4, 5), "matvec", (5, 4)),
        ((3, 4), (4, 1), "matvec", (3, 4)),
        ((4,), (4,), "matvec", (1, 4)),
    ],
)
def test_products_with_a_vector_are_matvecs(a, b, operation, dims):
    found = matmul.problem(Spec(a), Spec(b))
    assert (found.operation, found.dims) == (operation, dims)


def test_matvec_problem():
    found = matvec.problem(Spec((7, 3, 4)), Spec((4,)))
    assert (found.operation, found.dims, found.batch) == ("matvec", (3, 4), 7)
    with pytest.raises(ValueError, match="do not fit"):
        hetero.plan("matvec", Spec((3, 4)), Spec((3,)))
    with pytest.raises(ValueError, match=r"'solve_cg', 'solve_poisson', .*got 'sort'"):
        hetero.plan("sort", Spec((3, 4)))


def test_host_products_need_no_plan_where_the_cpu_is_alone(monkeypatch):
    monkeypatch.setattr(devices.here, "found", {})
    tables.forget()
    monkeypatch.setattr(planner, "plan", None)
    A = np.ones((3, 4))
    np.testing.assert_array_equal(hetero.matmul(A, A.T), A @ A.T)
    np.testing.assert_array_equal(hetero.matvec(A, A[0]), A @ A[0])
    tables.forget()


@pytest.mark.parametrize(
    ("shape", "dims"),
    [
        ((16384, 4), (16384, 4)),  # measured itself
        ((16385, 4), (16384, 4)),
        ((16, 262144), (256, 16384)),
        ((1_000_000, 64), (16384, 3906)),
        ((4, 1 << 30), (16384, 262144)),  # more elements than any that is measured
        ((20000, 16385), (20000, 16385)),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_a_long_matrix_is_priced_as_one_of_as_many_elements(shape, dims, turned):
    m, k = shape[::-1] if turned else shape
    problem = hetero.ops.plan("matvec", hetero.spec((m, k)), hetero.spec((k,))).problem
    for row in registry.lookup("matvec"):
        if row.kind == "cuda" and row.prepare is not None:
            work = row.work(problem, {"kind": "cuda", "arch": "sm_90"})
            assert work.dims == (dims[::-1] if turned else dims)
            assert work.flops == 2.0 * m * k
