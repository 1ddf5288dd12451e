"""Calls on host arrays that the CPU and one device share: who does what, prices, failures."""

from __future__ import annotations

import dataclasses
import threading

import numpy as np
import pytest
from fakes import Cupy
from layouts import LAYOUTS
from made_up import CPU, GPU, TWO, link, machine, roofline, square
from scipy import signal
from test_shares import PRODUCTS, broken, several, two, used, values  # noqa: F401  # fixtures

import hetero
from hetero import cli, devices, profile, registry
from hetero.arrays import Spec
from hetero.blocks import with_cpu
from hetero.calling import planner
from hetero.devices import at_once
from hetero.errors import DeviceNotAvailable, MethodNotAvailable
from hetero.ops import matmul
from hetero.profile import inventory

BOTH = "cpu+cuda:0"
SIZES = [2**n for n in range(4, 15)]


def priced(problem, constants, here=TWO, **forced):
    return planner.price(problem, constants, here, **forced)


def pinned_operands(problem):
    """The problem, its operands in pinned memory."""
    inputs = tuple(operand._replace(pinned=True) for operand in problem.inputs)
    return dataclasses.replace(problem, inputs=inputs)


def both(plan, method="tiled"):
    found = [c for c in plan.candidates if c.device == BOTH and c.method == method]
    return found[0] if found else None


# -- Results --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("case", PRODUCTS)
def test_products(two, case, dtype):  # noqa: F811
    name, *shapes = PRODUCTS[case]
    A, B = (values(*shape, dtype=dtype) for shape in shapes)
    plan = hetero.plan(name, A, B, device=BOTH)
    assert (plan.chosen.device, plan.chosen.method) == (BOTH, "tiled"), plan
    own, other = plan.chosen.shares
    assert (own.plan.chosen.device, other.plan.chosen.device) == ("cpu", "cuda:0")
    assert 0 == own.begin < own.end == other.begin < other.end
    assert f"blas on cpu: {own.along} 0:{own.end}" in str(plan)
    assert f"tiled on cuda:0: {own.along} {own.end}:{other.end}" in str(plan)
    assert [leaf.chosen.device for leaf in plan.leaves()] == ["cpu", "cuda:0"]
    found = getattr(hetero, name)(A, B, device=BOTH)
    assert used(two) == ["cuda:0"]
    np.testing.assert_array_equal(found, getattr(np, name)(A, B))
    assert found.dtype == dtype


def test_each_does_its_own_range(two, monkeypatch):  # noqa: F811
    """What is printed is what runs."""
    done = []

    def noting(row):
        def run(used, problem, arguments):
            done.append((row.method, problem.dims))
            return row.run(used, problem, arguments)

        return dataclasses.replace(row, run=run)

    for name in ("matmul", "matvec"):  # a single row is another operation's
        monkeypatch.setitem(
            registry._implementations, name, [noting(row) for row in registry.lookup(name)]
        )
    inventory.changed()
    A, B = values(80, 30), values(30, 20)
    plan = hetero.plan("matmul", A, B, device=BOTH)
    np.testing.assert_array_equal(hetero.matmul(A, B, device=BOTH), A @ B)
    expected = [(s.plan.chosen.method, s.plan.problem.dims) for s in plan.chosen.shares]
    assert sorted(done) == sorted(expected)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("case", ["rows", "columns"])
def test_layouts_and_out(two, case, layout):  # noqa: F811
    name, *shapes = PRODUCTS[case]
    A, B = (values(*shape) for shape in shapes)
    operands = LAYOUTS[layout](A), LAYOUTS[layout](B) if B.ndim > 1 else B
    expected = getattr(np, name)(*operands)
    np.testing.assert_array_equal(getattr(hetero, name)(*operands, device=BOTH), expected)
    if layout == "repeated":  # nothing can be written there
        return
    out = LAYOUTS[layout](np.zeros_like(expected)) if expected.ndim > 1 else expected * 0
    assert getattr(hetero, name)(*operands, out=out, device=BOTH) is out
    np.testing.assert_array_equal(out, expected)


@pytest.mark.parametrize("failing", [False, True])
def test_out_that_is_an_operand(two, failing, monkeypatch):  # noqa: F811
    A = values(40, 40)
    expected = A @ A
    if failing:
        monkeypatch.setattr(two[0], "download", broken("gone"))
    assert hetero.matmul(A, A, out=A, device=BOTH) is A
    np.testing.assert_array_equal(A, expected)


def test_convolutions(two):  # noqa: F811
    image, filter = values(41, 30), values(4, 3)
    found = hetero.convolve2d(image, filter, device=BOTH, method="direct")
    np.testing.assert_array_equal(found, signal.convolve2d(image, filter))
    assert used(two) == ["cuda:0"]
    plan = hetero.plan("convolve2d", image, filter, device=BOTH, method="direct")
    assert [s.plan.chosen.device for s in plan.chosen.shares] == ["cpu", "cuda:0"]


def test_on_an_opencl_device(opencl):
    """Real kernels."""
    rng = np.random.default_rng(0)
    A, B = rng.random((300, 96)), rng.random((96, 80))
    for name, operands in (("matmul", (A, B)),):
        call, place = getattr(hetero, name), f"cpu+{opencl}"
        plan = hetero.plan(name, *operands, device=place)
        assert [s.plan.chosen.device for s in plan.chosen.shares] == ["cpu", opencl]
        np.testing.assert_allclose(call(*operands, device=place), call(*operands, device="cpu"))
        with hetero.use(device=place):
            assert str(hetero.plan(name, *operands)) == str(plan)
    assert not devices.troubles()


@pytest.mark.gpu
@pytest.mark.parametrize("pinned", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_on_a_gpu(dtype, pinned):
    """Ranges that are staged, and such that the bus takes as they are."""

    def made(*shape):
        array = hetero.empty_pinned(shape, dtype) if pinned else np.empty(shape, dtype)
        array[...] = values(*shape, dtype=dtype)
        return array

    A, B = made(3000, 2100), made(2100, 1500)
    for name, operands in (("matmul", (A, B)),):
        for method in ("tiled", "streamed", None):
            plan = hetero.plan(name, *operands, device=BOTH, method=method)
            assert [s.plan.chosen.device for s in plan.chosen.shares] == ["cpu", "cuda:0"]
            found = getattr(hetero, name)(*operands, device=BOTH, method=method)
            np.testing.assert_array_equal(found, getattr(np, name)(*operands))
    assert not devices.troubles()


def test_both_work_at_the_same_time(two, monkeypatch):  # noqa: F811
    """They meet: neither is done before the other has begun."""
    barrier, threads = threading.Barrier(2, timeout=20.0), {}

    def upload(*arguments, real=two[0].begin_upload, **options):
        if "device" not in threads:
            threads["device"] = threading.current_thread().name
            barrier.wait()
        return real(*arguments, **options)

    def run(used, problem, arguments):
        threads["cpu"] = threading.current_thread().name
        barrier.wait()
        np.matmul(*arguments.inputs, out=arguments.output)

    monkeypatch.setattr(two[0], "begin_upload", upload)
    entries = [
        dataclasses.replace(i, run=run) if i.method == "blas" else i
        for i in registry.lookup("matmul")
    ]
    monkeypatch.setitem(registry._implementations, "matmul", entries)
    inventory.changed()
    A, B = values(40, 30), values(30, 20)
    np.testing.assert_array_equal(hetero.matmul(A, B, device=BOTH), A @ B)
    assert threads == {"cpu": threading.current_thread().name, "device": at_once._NAME}


def test_one_after_the_other_where_the_context_is_this_threads(two, monkeypatch):  # noqa: F811
    monkeypatch.setattr(two[0], "same_in_threads", lambda: False)
    monkeypatch.setattr(at_once, "side_by_side", broken("no threads here"))
    A, B = values(40, 30), values(30, 20)
    np.testing.assert_array_equal(hetero.matmul(A, B, device=BOTH), A @ B)
    assert used(two) == ["cuda:0"]


# -- Failures -------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["begin_upload", "allocate", "download"])
@pytest.mark.parametrize("case", ["rows", "columns"])
def test_the_cpu_does_what_the_device_failed_to_do(two, case, what, monkeypatch, warnings_of):  # noqa: F811
    name, *shapes = PRODUCTS[case]
    A, B = (values(*shape) for shape in shapes)
    monkeypatch.setattr(two[0], what, broken("gone"))
    for _ in range(2):
        found = getattr(hetero, name)(A, B, device=BOTH)
        np.testing.assert_array_equal(found, getattr(np, name)(A, B))
    first, second = warnings_of()
    along = "columns" if case == "columns" else "rows"
    assert f"cuda:0 failed (gone); the CPU does its {along}" in first
    assert "set aside" in second
    plan = hetero.plan(name, A, B, device=BOTH)
    assert (plan.chosen.device, plan.chosen.shares) == ("cpu", ())


def test_an_error_of_the_cpus_share_waits_for_the_device(two, monkeypatch):  # noqa: F811
    def run(used, problem, arguments):
        raise MemoryError("none left")

    entries = [
        dataclasses.replace(i, run=run) if i.method == "blas" else i
        for i in registry.lookup("matmul")
    ]
    monkeypatch.setitem(registry._implementations, "matmul", entries)
    inventory.changed()
    with pytest.raises(MemoryError, match="none left"):
        hetero.matmul(values(40, 30), values(30, 20), device=BOTH)
    assert used(two) == ["cuda:0"]
    ours = {thread for thread in threading.enumerate() if thread.name == at_once._NAME}
    assert ours <= set(at_once._waiting), "the device's range is done with"


# -- Names ----------------------------------------------------------------------------------------


def test_names_that_are_none(two):  # noqa: F811
    A, B = values(40, 30), values(30, 20)
    for name in ("cpu+cpu", "cpu+", "cpu+cuda:7", "cpu+cuda:*", "cuda:0+cpu", "cpu+cuda:0+cuda:1"):
        with pytest.raises(DeviceNotAvailable, match=r"'cuda:1'.*, got .*'cpu\+cuda:0' is both"):
            hetero.matmul(A, B, device=name)
        with pytest.raises(DeviceNotAvailable), hetero.use(device=name):
            pass
    with pytest.raises(MethodNotAvailable, match="'tiled'"):
        hetero.matmul(A, B, device=BOTH, method="none")


def test_a_kind_names_each_of_its_devices(two):  # noqa: F811
    plan = hetero.plan("matmul", values(40, 30), values(30, 20), device="cpu+cuda")
    assert {c.device for c in plan.candidates} == {"cpu+cuda:0", "cpu+cuda:1"}
    assert len(plan.chosen.shares) == 2


def test_what_cannot_be_shared_is_done_by_one_of_them(two):  # noqa: F811
    for A, B in ((values(1, 30), values(30, 1)), (values(0, 5), values(5, 4))):
        plan = hetero.plan("matmul", A, B, device=BOTH)
        assert plan.chosen.device in ("cpu", "cuda:0")
        np.testing.assert_array_equal(hetero.matmul(A, B, device=BOTH), A @ B)
    integers = values(40, 30, dtype="int64"), values(30, 20, dtype="int64")
    assert hetero.plan("matmul", *integers, device=BOTH).chosen.device == "cpu"


def test_operands_on_a_device_stay_there(two):  # noqa: F811
    A, B = Cupy.of(values(40, 30), two[0]), values(30, 20)
    plan = hetero.plan("matmul", A, B, device=BOTH)
    assert not plan.chosen.shares
    assert type(hetero.matmul(A, B, device=BOTH)) is Cupy


def test_methods_that_only_stand_in_are_named(two):  # noqa: F811
    """Tiles of a small product are considered where they are asked for."""
    A, B = values(400, 300), values(300, 200)
    plan = hetero.plan("matmul", A, B, device=BOTH)
    assert "streamed" not in {c.method for c in plan.candidates}
    plan = hetero.plan("matmul", A, B, device=BOTH, method="streamed")
    assert [s.plan.chosen.method for s in plan.chosen.shares] == ["blas", "streamed"]
    large = Spec((8192, 8192), "float32")
    plan = hetero.plan("matmul", large, large, device=BOTH)
    assert "streamed" in {c.method for c in plan.candidates}


def test_without_constants_it_runs_half_and_half(two):  # noqa: F811
    profile.set_current(machine(models={}))
    A, B = values(40, 30), values(30, 20)
    plan = hetero.plan("matmul", A, B, device=BOTH)
    assert plan.chosen.seconds is None
    assert [(s.begin, s.end) for s in plan.chosen.shares] == [(0, 20), (20, 40)]
    np.testing.assert_array_equal(hetero.matmul(A, B, device=BOTH), A @ B)
    assert used(two) == ["cuda:0"]


def test_its_result_is_on_the_host(two):  # noqa: F811
    A, B = values(40, 30), values(30, 20)
    with hetero.use(results="device"):
        found = hetero.matmul(A, B, device=BOTH)
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, A @ B)


def test_explain(capsys):
    arguments = ["explain", "matmul", "4096", "4096", "4096", "--dtype", "float32"]
    assert cli.main([*arguments, "--profile", "h100", "--device", BOTH]) == cli.DONE
    out = capsys.readouterr().out
    for text in (f"on {BOTH}", "blas on cpu: rows 0:", "on cuda:0: rows"):
        assert text in out


# -- Prices ---------------------------------------------------------------------------------------


def test_prices_by_hand():
    """Two that are equally fast get a half each."""
    n = 4096
    flops = 2.0 * n**3
    models = {
        "cuda:*|matmul|tiled|float32|*": roofline(0.0, 1e12, 1e15),
        "cpu|matmul|blas|float32|*": roofline(0.0, 1e12, 1e15),
    }
    links = {"cuda:*": {way: link(0.0, 1e15) for way in ("upload", "download")}}
    found = both(priced(square(n), machine(models=models, links=links), device=BOTH))
    own, other = found.shares
    assert own.end == n // 2
    assert own.plan.seconds == pytest.approx(flops / 2 / 1e12)
    assert other.plan.seconds == pytest.approx(7e-6 + flops / 2 / 1e12, rel=1e-4)  # the longer one
    assert found.seconds == pytest.approx(other.plan.seconds)
    assert found.seconds == pytest.approx(sum(found.terms.values()))


def test_of_ranges_that_are_tried_those_that_end_soonest_are_taken(monkeypatch):
    tried, times = [], iter([[10.0, 1.0], [6.0, 5.0], [4.0, 12.0], [3.0, 9.0]])
    real = with_cpu._shares

    def shares(*given):
        found = []
        for share, seconds in zip(real(*given), next(times), strict=True):
            one = share.plan.candidates[0]._replace(seconds=seconds, terms={"compute": seconds})
            plan = dataclasses.replace(share.plan, candidates=(one,))
            found.append(share._replace(plan=plan))
        tried.append(tuple(found))
        return tried[-1]

    monkeypatch.setattr(with_cpu, "_shares", shares)
    found = both(priced(square(4096), machine(), device=BOTH, method="tiled"))
    assert found.shares is tried[1]
    assert len(tried) == 4


@pytest.mark.parametrize("name", ["tesla-t10", "h100", "h200", "conservative"])
@pytest.mark.parametrize("operation", [matmul])
def test_never_taken_unless_named(operation, name):
    """What both lose to one another is not in the price."""
    constants = profile.shipped(name)
    for n in SIZES:
        A = Spec((n, n), "float32")
        problem = operation.problem(A, A)
        plan = priced(pinned_operands(problem), constants, constants.machine() or TWO)
        assert not any(c.device == BOTH for c in plan.candidates)


def test_a_device_that_is_this_cpu_again_is_taken_by_its_name():
    here = {"cpu": CPU, "cuda:0": {**GPU, "is_host_cpu": True}}
    assert both(priced(square(4096), machine(), here, device=BOTH)).shares
