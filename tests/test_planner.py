"""Plans: priced term by term, the cheapest chosen, remembered; forced placement."""

from __future__ import annotations

import contextvars
import copy
import dataclasses
import importlib
import math
import pickle
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

import hetero
from hetero import devices
from hetero.arrays import Operand, Spec
from hetero.errors import DeviceError, DeviceNotAvailable, MethodNotAvailable, NotPriced
from hetero.ops import matmul, matvec
from hetero.runtime import call_cache, inventory, planner, pricing, profile, registry
from hetero.runtime.plan import Plan, readable

# -- A machine made up: numbers that can be added up by hand -------------------------------------


def roofline(overhead, flops, nbytes):
    return {
        "form": "roofline",
        "constants": {"overhead": overhead, "flops_per_second": flops, "bytes_per_second": nbytes},
    }


def link(seconds, rate):
    one = {"below": None, "bytes_per_second": rate, "seconds_per_byte": 0.0, "seconds": seconds}
    return {"pageable": {"form": "segments", "constants": [one]}}


def machine(**changes):
    """A CPU of 10 GFLOP/s and a GPU of 1 TFLOP/s behind a bus of 1 GB/s."""
    models = {}
    for operation in ("matvec", "matmul"):
        models[f"cpu|{operation}|blas|float32|*"] = roofline(1e-6, 1e10, 1e10)
        models[f"cuda:*|{operation}|tiled|float32|*"] = roofline(5e-6, 1e12, 1e12)
        models[f"cuda:*|{operation}|library|float32|*"] = roofline(9e-6, 4e12, 4e12)
    content = {
        "schema_version": 2,
        "name": "made up",
        "fingerprint": {},
        "devices": {},
        "links": {"cuda:*": {"upload": link(1e-5, 1e9), "download": link(2e-5, 5e8)}},
        "host": {
            "pack": link(3e-6, 2e9)["pageable"],
            "dispatch": {"cuda:*": {"host": 7e-6, "device": 4e-6, "detour": 1e-6}},
        },
        "models": models,
        **changes,
    }
    return profile.parse(profile.encode(content))


CPU = {"kind": "cpu", "name": "made up"}
GPU = {
    "kind": "cuda",
    "name": "made up",
    "multiprocessors": 8,
    "block_limit": 1024,
    "memory_bytes": 2**30,
    "library": None,
}
TWO = {"cpu": CPU, "cuda:0": GPU}
WITH_LIBRARY = {"cpu": CPU, "cuda:0": {**GPU, "library": "13.0"}}


def square(n, on="host", dtype="float32"):
    return matmul.problem(Spec((n, n), dtype, on=on), Spec((n, n), dtype, on=on))


def priced(problem, here=TWO, constants=None, **forced):
    return planner.price(problem, constants or machine(), here, **forced)


def candidate(plan, device, method=None):
    return next(c for c in plan.candidates if c.device == device and method in (None, c.method))


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
@pytest.mark.parametrize("n", [1, 10, 100, 1000, 5000])
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


def test_crossover():
    """CPU: 2n^3/1e10; GPU: 12 n^2 bytes up and down, 52 us of overheads: even near n = 110."""
    assert priced(square(64)).chosen.device == "cpu"
    assert priced(square(400)).chosen.device == "cuda:0"
    previous = "cpu"
    for n in range(16, 512, 16):
        now = priced(square(n)).chosen.device
        assert (previous, now) != ("cuda:0", "cpu"), "there is one crossover"
        previous = now


def test_library_wins_where_it_is_faster():
    assert priced(square(64, "cuda:0"), WITH_LIBRARY).chosen.method == "tiled"
    assert priced(square(4096, "cuda:0"), WITH_LIBRARY).chosen.method == "library"


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
        next(i for i in registry.lookup("matmul") if i.kind == "cuda"), shared=lambda problem: True
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


# -- Reasons -------------------------------------------------------------------------------------


def reason(plan, device, method=None):
    return candidate(plan, device, method).reason


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


def test_without_constants_the_cpu_is_taken_unpriced():
    plan = priced(square(999), constants=machine(models={}))
    assert plan.chosen.device == "cpu"
    assert plan.seconds is None
    assert "not priced" in str(plan)
    on_device = priced(square(999, "cuda:0"), constants=machine(models={}, links={}))
    assert on_device.chosen.device == "cpu"


def test_a_priced_candidate_goes_before_one_without_constants():
    some = {k: m for k, m in machine().data["models"].items() if k.startswith("cuda")}
    plan = priced(square(10), constants=machine(models=some))
    assert plan.chosen.device == "cuda:0"


def test_nothing_possible():
    plan = Plan(square(8), (), "made up")
    with pytest.raises(NotPriced, match="matmul float32"):
        _ = plan.chosen
    assert plan.to_dict()["chosen"] is None


# -- Forced placement ----------------------------------------------------------------------------


def test_forced_device_and_method():
    assert priced(square(8), device="cuda").chosen.device == "cuda:0"
    assert priced(square(8), device="cuda:0").chosen.method == "tiled"
    assert priced(square(4096), WITH_LIBRARY, method="tiled").chosen.method == "tiled"
    assert priced(square(4096), WITH_LIBRARY, device="cpu").chosen.device == "cpu"
    twins = {**TWO, "cuda:1": GPU}
    assert {c.device for c in priced(square(8), twins, device="cuda").candidates} == {
        "cuda:0",
        "cuda:1",
    }


def test_forced_placement_that_is_not_there():
    with pytest.raises(DeviceNotAvailable, match="'cpu', 'cuda:0', got 'cuda:1'"):
        priced(square(8), device="cuda:1")
    with pytest.raises(DeviceNotAvailable, match="got 'gpu'"):
        priced(square(8), device="gpu")
    with pytest.raises(DeviceNotAvailable, match="got 0"):
        priced(square(8), device=0)
    with pytest.raises(MethodNotAvailable, match=r"'blas', .*'tiled'.*got 'magic'"):
        priced(square(8), method="magic")
    with pytest.raises(MethodNotAvailable, match="'blas' on cpu, got 'tiled'"):
        priced(square(8), device="cpu", method="tiled")
    with pytest.raises(MethodNotAvailable, match="cuBLAS is not here"):
        priced(square(8), method="library")
    for error in (DeviceNotAvailable, MethodNotAvailable):
        assert issubclass(error, ValueError)


@pytest.mark.parametrize("shapes", [((0, 3), (3, 4)), ((2, 0), (0, 3)), ((0, 2, 3), (3,))])
@pytest.mark.parametrize("placed", [{}, {"device": "cpu"}, {"device": "cpu", "method": "tiled"}])
def test_the_plan_of_what_has_no_elements_is_refused_as_the_call_is(shapes, placed):
    A, B = map(np.zeros, shapes)
    if "method" in placed:
        with pytest.raises(MethodNotAvailable, match="'blas' on cpu, got 'tiled'"):
            hetero.matmul(A, B, **placed)
        with (
            pytest.raises(MethodNotAvailable, match="'blas' on cpu, got 'tiled'"),
            hetero.use(**placed),
        ):
            hetero.plan("matmul", A, B)
        return
    np.testing.assert_array_equal(hetero.matmul(A, B, **placed), A @ B)
    with hetero.use(**placed):
        assert hetero.plan("matmul", A, B).chosen.method == "blas"


@pytest.mark.parametrize("forced", [{"device": "cuda"}, {"method": "tiled"}])
def test_what_devices_cannot_do_goes_to_the_cpu_even_when_forced(forced):
    plan = priced(square(8, dtype="int32"), **forced)
    assert plan.chosen.device == "cpu"
    assert "int32" in reason(plan, "cuda:0")


def test_use_nests():
    problem_of = hetero.spec((64, 64)), hetero.spec((64, 64))

    def chosen():
        return hetero.plan("matmul", *problem_of).chosen.device

    name = next(iter(devices.available()), "cpu")
    with hetero.use(device=name):
        assert chosen() == name
        with hetero.use(device="cpu"):
            assert chosen() == "cpu"
            with hetero.use(method="blas"):
                assert planner.placement(None, None) == ("cpu", "blas")
                assert planner.placement(name, None) == (name, "blas"), "the call's own wins"
        assert chosen() == name
    assert chosen() == "cpu"
    assert planner.placement(None, None) == (None, None)


def test_use_is_undone_by_an_exception():
    with pytest.raises(RuntimeError), hetero.use(device="cpu"):
        raise RuntimeError
    assert planner.placement(None, None) == (None, None)


def test_use_may_end_in_another_thread():
    """As where a generator is closed there; the block holds in the thread that it began in."""

    def generator():
        with hetero.use(device="cpu"):
            yield

    blocks, failed = generator(), []

    def close():
        try:
            blocks.close()
        except ValueError as error:
            failed.append(error)

    context = contextvars.copy_context()
    context.run(next, blocks)
    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    assert not failed
    assert planner.placement(None, None) == (None, None)


def test_use_names_what_is_there_at_once():
    with pytest.raises(DeviceNotAvailable, match=r"'cpu'.*got 'nonsense'"), hetero.use("nonsense"):
        pytest.fail("the block must not run")


def test_use_names_methods_at_once():
    with (
        pytest.raises(MethodNotAvailable, match=r"'blas'.*'multigrid'.*got 'magic'"),
        hetero.use(method="magic"),
    ):
        pytest.fail("the block must not run")
    with hetero.use(method="multigrid"):  # of some operation: a call of another one says so
        assert planner.placement(None, None) == (None, "multigrid")


def test_use_holds_in_its_own_thread_only(opencl):
    seen = {}

    def look(name):
        seen[name] = planner.placement(None, None)

    with hetero.use(device=opencl):
        thread = threading.Thread(target=look, args=("other",))
        thread.start()
        thread.join()
        look("own")
    assert seen == {"other": (None, None), "own": (opencl, None)}


def test_calls_obey_use(opencl, monkeypatch):
    A = np.ones((8, 8), np.float32)
    hetero.matmul(A, A)  # remembered for the CPU: the call cache must look at `use` too
    device = devices.get(opencl)
    uploads = []
    upload = device.upload
    monkeypatch.setattr(device, "upload", lambda *a: (uploads.append(1), upload(*a)))
    hetero.matmul(A, A)
    assert not uploads
    with hetero.use(device=opencl):
        hetero.matmul(A, A)
    assert len(uploads) == 1
    hetero.matmul(A, A)
    assert len(uploads) == 1


# -- Memory --------------------------------------------------------------------------------------


def test_plans_are_remembered_until_something_changes():
    problem = square(64)
    first = planner.plan(problem)
    assert planner.plan(square(64)) is first
    assert planner.plan(square(65)) is not first
    assert planner.plan(square(64, dtype="float64")) is not first
    assert planner.plan(problem, "cpu") is not first
    profile.set_current(profile.shipped("conservative"))
    second = planner.plan(problem)
    assert second is not first
    inventory.changed()
    assert planner.plan(problem) is not second


CHANGED = {
    "operation": "matvec",
    "dims": (9, 9, 9),
    "dtype": "float64",
    "inputs": (),
    "output": square(9).output,
    "batch": 3,
    "strides": ((1, 2, 3),),
    "layout": "F",
    "function": "vecmat",
    "device_obstacle": "because",
    "rtol": 1e-3,
    "iterations": 17,
    "window": "another",
}
UNPRICED = {"pointer", "readonly", "stream", "kept"}  # of an operand: no price depends on them


def test_a_plan_is_remembered_by_every_field():
    """One that is forgotten would give a problem another one's plan."""
    problem = square(8)
    key = planner._key(problem)
    assert planner._key(square(8)) == key
    for field in dataclasses.fields(problem):
        changed = dataclasses.replace(problem, **{field.name: CHANGED.get(field.name, "changed")})
        assert planner._key(changed) != key, field.name
    values = {"shape": (9, 9), "strides": (4, 32), "dtype": np.dtype("float64"), "location": "x"}
    for name in Operand._fields:
        for which in ("first", "second", "output"):
            one = {name: values.get(name, 7)}
            a, b, c = *problem.inputs, problem.output
            a = a._replace(**one) if which == "first" else a
            b = b._replace(**one) if which == "second" else b
            c = c._replace(**one) if which == "output" else c
            changed = dataclasses.replace(problem, inputs=(a, b), output=c)
            unpriced = name in UNPRICED or (name, which) == ("copies", "output")
            assert (planner._key(changed) == key) == unpriced, (name, which)


def test_another_tolerance_is_another_plan():
    f = np.ones((40, 40))
    loose = hetero.plan("poisson", f, rtol=1e-2)
    tight = hetero.plan("poisson", f, rtol=1e-9)
    assert (loose.problem.options.rtol, tight.problem.options.rtol) == (1e-2, 1e-9)
    assert hetero.plan("poisson", f, rtol=1e-2) is loose


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
    for n in range(2 * call_cache._MOST // 100):
        planner.plan(square(n + 1))
    table = {}
    for n in range(call_cache._MOST + 10):
        call_cache.remember(table, n, A, call_cache.generation())
    assert len(table) <= call_cache._MOST


def test_a_plan_made_before_a_change_is_not_kept():
    before = call_cache.generation()
    profile.set_current(machine())
    table = {}
    call_cache.remember(table, "key", "old", before)
    assert not table


CHANGES = {
    "forgetting": (lambda: call_cache._all.lock, lambda: call_cache.forget()),
    "remembering": (
        lambda: call_cache._all.lock,
        lambda: call_cache.remember({}, "key", "value", call_cache.generation()),
    ),
    "another profile": (lambda: profile.finding._lock, lambda: profile.set_current(None)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_waits_for_another_ones_end(change):
    lock, act = CHANGES[change]
    thread = threading.Thread(target=act)
    with lock():
        thread.start()
        thread.join(0.1)
        assert thread.is_alive(), "it came in between"
    thread.join(30)
    assert not thread.is_alive()


def test_threads_that_need_the_profile_read_it_once(monkeypatch):
    read, found = [], []
    together = threading.Barrier(4)

    def slowly():
        read.append(1)
        time.sleep(0.05)
        return machine()

    def look():
        together.wait()
        found.append(profile.current())

    monkeypatch.setattr(profile.finding, "_load", slowly)
    profile.set_current(None)
    threads = [threading.Thread(target=look) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(read) == 1
    assert all(one is found[0] for one in found)


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
                    planner.plan(matmul.problem(A, B))
        except Exception as error:
            wrong.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for _ in range(30):
        profile.set_current(profile.shipped("conservative"))
        inventory.changed()
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


# -- Showing -------------------------------------------------------------------------------------


def test_a_plan_prints_every_candidate():
    text = str(priced(square(999)))
    lines = text.splitlines()
    assert lines[0].startswith("matmul float32")
    assert "made up" in lines[0]
    assert sum(line.startswith("->") for line in lines) == 1
    for word in ("tiled on cuda:0", "blas on cpu", "library on cuda:0", "upload", "cuBLAS is not"):
        assert word in text


def test_a_prompt_shows_the_table():
    plan = priced(square(999))
    assert repr(plan) == str(plan)
    assert len(repr(plan).splitlines()) == 1 + len(plan.candidates)


def every_plan():
    A = np.arange(64.0).reshape(8, 8) + 30 * np.eye(8)
    return [
        hetero.plan("matmul", A, A),
        hetero.plan("matvec", A, A[0]),
        hetero.plan("convolve2d", A, A[:3, :3]),
        hetero.plan("cg", A, A[0]),
        hetero.plan("poisson", A),
        hetero.plan("kmeans", A, 2),
    ]


UNPICKLE = """
import pickle, sys
plan = pickle.load(sys.stdin.buffer)
print(plan.chosen.method, plan.chosen.implementation.run.__module__)
"""


def test_plans_can_be_pickled_and_copied():
    plans = every_plan()
    assert {plan.problem.operation for plan in plans} == {o.name for o in registry.operations()}
    for plan in plans:
        for again in (pickle.loads(pickle.dumps(plan)), copy.copy(plan), copy.deepcopy(plan)):
            assert again == plan
            assert again.chosen.implementation is plan.chosen.implementation


def test_plans_can_be_unpickled_in_another_process():
    plan = every_plan()[2]
    done = subprocess.run(
        [sys.executable, "-c", UNPICKLE],
        input=pickle.dumps(plan),
        capture_output=True,
        timeout=120,
        check=True,
    )
    chosen = plan.chosen
    expected = f"{chosen.method} {chosen.implementation.run.__module__}"
    assert done.stdout.decode().strip() == expected


def test_an_implementation_of_ones_own_is_copied_as_it_is():
    own = dataclasses.replace(registry.lookup("matmul")[0], method="mine")
    again = copy.copy(own)
    assert again == own
    assert again is not own


def test_two_implementations_of_one_name():
    (blas, *others) = registry.lookup("matmul")
    with pytest.raises(ValueError, match="'blas' on cpu already"):
        registry.register(dataclasses.replace(blas, work=lambda problem, info: None))
    with pytest.raises(ValueError, match="'blas' on cpu already"):
        registry.register(dataclasses.replace(blas, falls_short=lambda problem: None))
    assert registry.lookup("matmul") == (blas, *others)


def test_a_module_can_be_reloaded():
    before = registry.lookup("matvec")
    operation = registry.operation("matvec")
    state, rows = dict(vars(matvec)), dict(vars(matvec.methods))
    try:
        importlib.reload(matvec.methods)
        importlib.reload(matvec)
        assert registry.operation("matvec").call is matvec.matvec
        after = registry.lookup("matvec")
        assert [(i.method, i.kind) for i in after] == [(i.method, i.kind) for i in before]
        assert after[0].run is matvec.methods._run_blas
        A = np.ones((3, 3))
        assert matvec.matvec(A, A[0])[0] == 3.0
    finally:
        vars(matvec).update(state)
        vars(matvec.methods).update(rows)
        registry.register_operation(operation)
        for implementation in before:
            registry.register(implementation)
    assert registry.lookup("matvec") == before


def test_operations_by_either_name():
    for operation in registry.operations():
        assert registry.operation(operation.name) is operation
        assert registry.operation(operation.function) is operation
        assert getattr(hetero, operation.function) is operation.call
    with pytest.raises(ValueError, match=r"'matvec', 'matmul', .*'solve_poisson', got 'fft'"):
        registry.operation("fft")
    with pytest.raises(ValueError, match="an operation 'cg' already"):
        registry.register_operation(dataclasses.replace(operation, name="cg"))


def test_a_plan_as_plain_data():
    data = priced(square(999)).to_dict()
    assert data["operation"] == "matmul"
    assert data["dims"] == [999, 999, 999]
    assert data["chosen"].keys() == {"device", "method", "seconds"}
    for row in data["candidates"]:
        named = {"device", "method", "seconds", "terms", "reason", "threads", "links", "made_of"}
        assert row.keys() == named
        if row["reason"] is None:
            assert math.isclose(sum(row["terms"].values()), row["seconds"])


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.0, "0 us"), (1.5e-6, "1.5 us"), (9.994e-4, "999 us"), (9.996e-4, "1 ms"), (2.5, "2.5 s")],
)
def test_readable_seconds(seconds, text):
    assert readable(seconds) == text


# -- What problems are ---------------------------------------------------------------------------


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
    with pytest.raises(ValueError, match=r"'convolve2d', 'cg', 'poisson', .*got 'sort'"):
        hetero.plan("sort", Spec((3, 4)))


def test_only_choice(cuda):
    """One where the CPU is all that plans would take; asked again when devices change."""
    assert planner.only_choice("matmul") is None
    devices.count_failure("cuda:0", DeviceError("gone"))
    devices.count_failure("cuda:0", DeviceError("gone"))
    inventory.changed()
    assert planner.only_choice("matmul").method == "blas"
    assert planner.only_choice("convolve2d") is None, "several methods on the CPU"
    devices.here.first_failure.clear()
    devices.here.reasons.clear()
    inventory.changed()
    assert planner.only_choice("matmul") is None


def test_host_products_need_no_plan_where_the_cpu_is_alone(monkeypatch):
    alone = {"cpu": inventory.devices()["cpu"]}
    monkeypatch.setattr(inventory, "devices", lambda: alone)
    call_cache.forget()
    monkeypatch.setattr(planner, "plan", None)
    A = np.ones((3, 4))
    np.testing.assert_array_equal(hetero.matmul(A, A.T), A @ A.T)
    np.testing.assert_array_equal(hetero.matvec(A, A[0]), A @ A[0])
    call_cache.forget()


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
