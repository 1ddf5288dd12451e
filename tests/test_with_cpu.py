"""Calls on host arrays that the CPU and one device share: who does what, prices, failures."""

from __future__ import annotations

import contextlib
import copy
import ctypes
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
from hetero.arrays import Spec, pinned
from hetero.blocks import beside_cpu, with_cpu
from hetero.calling import planner
from hetero.devices import at_once
from hetero.errors import DeviceMemoryError, DeviceNotAvailable, MethodNotAvailable
from hetero.evaluation.draws import Arrays
from hetero.evaluation.verify import measure_candidates
from hetero.host import limits
from hetero.ops import matmul, matvec
from hetero.ops.benchmark import Trial
from hetero.ops.products.operands import build
from hetero.profile import inventory
from hetero.profile.constants import UNKNOWN_CONTENTION

BOTH = "cpu+cuda:0"
NAMES = ("matmul", "matvec")
HANDOVER = 1e-4
SIZES = [2**n for n in range(4, 15)]


def contending(constants, cpu, device, way="pageable", spared=0):
    """A profile in which both were measured to take so many times as long together."""
    data = copy.deepcopy(constants.data)
    lost = {"cpu": cpu, "device": device, "spared": spared, "handover": HANDOVER}
    known = {name: {way: lost} for name in NAMES}
    data["host"]["contention"] = {"cuda:*": known}
    for ways in data["links"].values():
        for kinds in ways.values():  # profiles of old machines have no other
            kinds.setdefault("pinned", kinds["pageable"])
    return profile.parse(profile.encode(data))


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
@pytest.mark.parametrize("case", ["rows", "columns", "matvec"])
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
    for name, operands in (("matvec", (A, B[:, 0])), ("matmul", (A, B))):
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

    A, B, x = made(3000, 2100), made(2100, 1500), made(2100)
    for name, operands in (("matmul", (A, B)), ("matvec", (A, x))):
        for method in ("tiled", "streamed", None):
            plan = hetero.plan(name, *operands, device=BOTH, method=method)
            assert [s.plan.chosen.device for s in plan.chosen.shares] == ["cpu", "cuda:0"]
            found = getattr(hetero, name)(*operands, device=BOTH, method=method)
            np.testing.assert_array_equal(found, getattr(np, name)(*operands))
    assert not devices.troubles()


def test_both_work_at_the_same_time(two, monkeypatch):  # noqa: F811
    """They meet: neither is done before the other has begun."""
    barrier, threads = threading.Barrier(2, timeout=20.0), {}

    def upload(*arguments, real=two[0].upload, **options):
        if "device" not in threads:
            threads["device"] = threading.current_thread().name
            barrier.wait()
        return real(*arguments, **options)

    def run(used, problem, arguments):
        threads["cpu"] = threading.current_thread().name
        barrier.wait()
        np.matmul(*arguments.inputs, out=arguments.output)

    monkeypatch.setattr(two[0], "upload", upload)
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


@pytest.mark.parametrize("what", ["upload", "allocate", "download"])
@pytest.mark.parametrize("case", ["rows", "columns", "matvec"])
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


# -- Enqueued first -------------------------------------------------------------------------------


def in_pinned(array):
    made = pinned.known(np.empty(array.shape, array.dtype), "tests")
    made[...] = array
    return made


@pytest.fixture
def enqueuing(two, monkeypatch):  # noqa: F811
    """The first device takes copies on its queue; the CPU's work is in its log."""
    device = two[0]

    def enqueue(source, target):
        device.log.append(f"enqueue {source.nbytes}")
        ctypes.memmove(target, source.ctypes.data, source.nbytes)

    def noting(row):
        def run(used, problem, arguments):
            device.log.append("the CPU")
            return row.run(used, problem, arguments)

        return dataclasses.replace(row, run=run) if row.kind == "cpu" else row

    device.enqueues, device.enqueue_upload = True, enqueue
    for name in NAMES:
        rows = [noting(row) for row in registry.lookup(name)]
        monkeypatch.setitem(registry._implementations, name, rows)
    inventory.changed()
    return device


@pytest.fixture
def alone(enqueuing, monkeypatch):
    monkeypatch.setattr(at_once, "side_by_side", broken("no threads here"))
    return enqueuing


def steps(device):
    found = [line for line in device.log if line != "allocate"]
    device.log.clear()
    return found


@pytest.mark.parametrize("timed", [False, True])
def test_copies_and_kernel_are_on_the_queue_before_the_cpu_begins(alone, timed):
    """From the caller's own thread, and what is small first: a driver lets ordinary memory wait."""
    A, x = in_pinned(values(300, 200)), values(200)
    other = hetero.plan("matvec", A, x, device=BOTH).chosen.shares[1]
    alone.log.clear()
    with beside_cpu.timed() if timed else contextlib.nullcontext({}) as seconds:
        np.testing.assert_array_equal(hetero.matvec(A, x, device=BOTH), A @ x)
    sizes = x.nbytes, (other.end - other.begin) * 200 * 4
    copies = [f"enqueue {size}" for size in sizes]
    assert steps(alone) == [*copies, "compute", "the CPU", "download"]
    assert set(seconds) == ({"cpu", "device"} if timed else set())
    assert all(0.0 < taken < 1.0 for taken in seconds.values())


def test_each_range_is_timed_by_itself(alone, monkeypatch):
    """The device's by its own clock, and with the way home, which begins when the CPU is done."""
    clock = [0.0]

    def taking(seconds, function):
        def run(*arguments, **options):
            clock[0] += seconds
            return function(*arguments, **options)

        return run

    for name, seconds in (("allocate", 100.0), ("enqueue_upload", 2.0), ("download", 5.0)):
        monkeypatch.setattr(alone, name, taking(seconds, getattr(alone, name)))
    monkeypatch.setattr(alone, "event", lambda: clock[0])
    rows = [
        dataclasses.replace(i, run=taking(30.0, i.run)) if i.kind == "cpu" else i
        for i in registry.lookup("matvec")
    ]
    monkeypatch.setitem(registry._implementations, "matvec", rows)
    inventory.changed()
    monkeypatch.setattr(beside_cpu.time, "perf_counter", lambda: clock[0])
    with beside_cpu.timed() as seconds:
        hetero.matvec(in_pinned(values(300, 200)), values(200), device=BOTH)
    assert seconds == {"cpu": 30.0, "device": 3 * 100.0 + 2 * 2.0 + 5.0}


def test_an_operand_given_twice_is_copied_once_and_out_may_be_anything(alone):
    A = in_pinned(values(60, 60))
    out = np.zeros((120, 60), np.float32)[::2]
    for _ in range(2):
        assert hetero.matmul(A, A, out=out, device=BOTH) is out
        np.testing.assert_array_equal(out, A @ A)
    expected = A @ A
    assert hetero.matmul(A, A, out=A, device=BOTH) is A
    np.testing.assert_array_equal(A, expected)


def test_an_operation_with_options(alone):
    image, filter = in_pinned(values(41, 30)), values(4, 3)
    found = hetero.convolve2d(image, filter, device=BOTH, method="direct")
    np.testing.assert_array_equal(found, signal.convolve2d(image, filter))
    assert any(line.startswith("enqueue") for line in steps(alone))


def test_what_a_thread_does_all_the_same(enqueuing, monkeypatch):
    """Operands in ordinary memory, with gaps, in blocks, under a limit, on a device without."""
    called = []
    real = at_once.side_by_side
    monkeypatch.setattr(
        at_once, "side_by_side", lambda tasks: (called.append(len(tasks)), real(tasks))
    )
    A, x = in_pinned(values(300, 200)), values(200)
    ordinary = np.array(A), in_pinned(x)
    limit = hetero.use(memory_limit="1 GB")
    columns = in_pinned(np.ascontiguousarray(A.T)).T  # rows of that lie apart
    cases = [(ordinary, limit, False), ((A, x), limit, True), ((columns, x), limit, False)]
    for operands, block, inside in cases:
        with block if inside else contextlib.nullcontext():
            found = hetero.matvec(*operands, device=BOTH)
        np.testing.assert_array_equal(found, A @ x)
    B = in_pinned(values(200, 100))
    found = hetero.matmul(A, B, device=BOTH, method="streamed")
    np.testing.assert_array_equal(found, A @ B)
    assert called == [2] * 4
    assert not any(line.startswith("enqueue") for line in steps(enqueuing))
    enqueuing.enqueues = False
    np.testing.assert_array_equal(hetero.matvec(A, x, device=BOTH), A @ x)
    assert called == [2] * 5


@pytest.mark.parametrize("what", ["enqueue_upload", "allocate", "download"])
def test_the_cpu_does_what_failed_on_the_queue(alone, what, monkeypatch, warnings_of):
    A, x = in_pinned(values(50, 30)), values(30)
    monkeypatch.setattr(alone, what, broken("gone"))
    for _ in range(2):
        np.testing.assert_array_equal(hetero.matvec(A, x, device=BOTH), A @ x)
        # Nothing of it is under way when the CPU does what is left.
        assert [line for line in steps(alone) if line != "compute"].count("the CPU") == 2
    first, second = warnings_of()
    assert "cuda:0 failed (gone); the CPU does its rows" in first
    assert "set aside" in second


def test_nothing_is_dropped_before_the_device_has_done_with_it(alone, monkeypatch):
    for error in (MemoryError("none left"), KeyboardInterrupt()):

        def run(used, problem, arguments, error=error):
            alone.log.append("the CPU")
            raise error

        rows = [
            dataclasses.replace(i, run=run) if i.method == "blas" else i
            for i in registry.lookup("matvec")
        ]
        monkeypatch.setitem(registry._implementations, "matvec", rows)
        inventory.changed()
        alone.log.clear()
        with pytest.raises(type(error)):
            hetero.matvec(in_pinned(values(50, 30)), values(30), device=BOTH)
        assert steps(alone)[-3:] == ["compute", "the CPU", "synchronize"]


def test_a_result_that_cannot_be_fetched_is_not_under_way_when_the_cpu_makes_it(alone, monkeypatch):
    monkeypatch.setattr(alone, "download", broken("gone"))
    A, x = in_pinned(values(50, 30)), values(30)
    np.testing.assert_array_equal(hetero.matvec(A, x, device=BOTH), A @ x)
    assert steps(alone)[-4:] == ["compute", "the CPU", "synchronize", "the CPU"]


def test_a_device_without_room_makes_some(enqueuing, monkeypatch):
    """Its range is done as any other then, which frees what is kept, or takes blocks."""
    real, tried = enqueuing.allocate, []

    def allocate(nbytes):
        tried.append(nbytes)
        if len(tried) == 1:
            raise DeviceMemoryError("out of device memory")
        return real(nbytes)

    monkeypatch.setattr(enqueuing, "allocate", allocate)
    A, x = in_pinned(values(50, 30)), values(30)
    np.testing.assert_array_equal(hetero.matvec(A, x, device=BOTH), A @ x)
    assert {"compute", "the CPU"} < set(steps(enqueuing))


# -- Threads of BLAS ------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["alone", "others run", "number unknown", "another BLAS"])
def test_the_cpus_range_on_threads_fewer(monkeypatch, case):
    """As it was measured; where they cannot be spared, it counts as not measured."""
    state = None if case == "another BLAS" else limits.State(case != "others run", 16)
    monkeypatch.setattr(limits, "state", lambda: state)
    cpu = CPU if case == "number unknown" else {**CPU, "blas_threads": 16}
    constants = contending(machine(), 1.2, 1.1, spared=4)
    found = both(priced(square(4096), constants, {**TWO, "cpu": cpu}, device=BOTH))
    own, other = (share.plan.chosen for share in found.shares)
    if case != "number unknown":
        assert (own.threads.number, own.threads.of) == (12 if case == "alone" else 16, 16)
    lost = (1.2, 1.1, 4, HANDOVER) if case == "alone" else UNKNOWN_CONTENTION
    slower = max(lost[0] * own.seconds, lost[1] * other.seconds)
    assert found.seconds == pytest.approx(lost[3] + slower)


# -- By itself ------------------------------------------------------------------------------------


@pytest.fixture
def winning(two):  # noqa: F811
    """A profile by which both together win, large operands on the host."""
    links = {"cuda:*": {way: link(1e-5, 1e10) for way in ("upload", "download")}}
    models = {f"cuda:*|{name}|tiled|float32|*": roofline(1e-6, 4e10, 1e11) for name in NAMES}
    models |= {f"cpu|{name}|blas|float32|*": roofline(1e-6, 2e10, 1e10) for name in NAMES}
    profile.set_current(contending(machine(models=models, links=links), 1.1, 1.1, "enqueued"))
    inventory.changed()
    yield two
    profile.set_current(None)


def test_taken_without_being_named(winning):
    A, B = in_pinned(values(700, 400)), in_pinned(values(400, 300))
    plan = hetero.plan("matmul", A, B)
    assert plan.chosen.device == BOTH
    for _ in range(3):
        np.testing.assert_array_equal(hetero.matmul(A, B), A @ B)
        assert used(winning) == ["cuda:0"]
    assert hetero.plan("matmul", A[:20], B).chosen.device != BOTH  # too small for two
    assert hetero.plan("matmul", A, B, device="cpu").chosen.device == "cpu"


def test_an_operand_that_does_not_change_is_moved_to_a_device_all_the_same(winning):
    """Once it lies there the device alone is faster than both are without."""
    A, x = hetero.keep(in_pinned(values(1500, 1000))), values(1000)
    assert hetero.plan("matvec", A, x).chosen.device == BOTH
    for _ in range(60):
        np.testing.assert_array_equal(hetero.matvec(A, x), A @ x)
    plan = hetero.plan("matvec", A, x)
    assert (plan.chosen.device, plan.chosen.shares) == ("cuda:0", ())
    used(winning)


def test_verify_measures_it_as_any_candidate(winning):
    trial = Trial((in_pinned(values(700, 400)), in_pinned(values(400, 300))))
    row = measure_candidates(registry.operation("matmul"), trial, Arrays("host"))
    assert (BOTH, "tiled") in row.measured
    assert row.chosen == (BOTH, "tiled")


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
    for text in (f"on {BOTH}", "contention", "blas on cpu: rows 0:", "on cuda:0: rows"):
        assert text in out


# -- Prices ---------------------------------------------------------------------------------------


def test_prices_by_hand():
    """Half and half of a call that takes both the same time."""
    n = 4096
    flops = 2.0 * n**3
    models = {
        "cuda:*|matmul|tiled|float32|*": roofline(0.0, 1e12, 1e15),
        "cpu|matmul|blas|float32|*": roofline(0.0, 1.25e12, 1e15),  # 1.5 / 1.2 times as fast
    }
    links = {"cuda:*": {way: link(0.0, 1e15) for way in ("upload", "download")}}
    constants = contending(machine(models=models, links=links), cpu=1.5, device=1.2)
    found = both(priced(square(n), constants, device=BOTH))
    own, other = found.shares
    assert own.end == n // 2
    assert own.plan.seconds == pytest.approx(flops / 2 / 1.25e12)
    assert other.plan.seconds == pytest.approx(7e-6 + flops / 2 / 1e12, rel=1e-4)  # the longer one
    assert found.terms["contention"] == pytest.approx(0.2 * other.plan.seconds)
    assert found.seconds == pytest.approx(HANDOVER + 1.2 * other.plan.seconds)
    assert found.seconds == pytest.approx(sum(found.terms.values()))


@pytest.mark.parametrize("n", [512, 2048, 4096, 8192])
@pytest.mark.parametrize("times", [(1.0, 1.0), (1.5, 1.2), (1.0, 1.9)])
@pytest.mark.parametrize("operation", [matmul, matvec])
def test_both_end_together(operation, n, times):
    """But for the range's steps, on machines of any contention."""
    A = Spec((n, n), "float32")
    problem = operation.problem(A, A if operation is matmul else Spec((n,), "float32"))
    constants = contending(profile.shipped("tesla-t10"), *times)
    found = both(priced(problem, constants, constants.machine(), device=BOTH))
    seconds = [t * s.plan.seconds for t, s in zip(times, found.shares, strict=True)]
    step = 64 * max(s / (r.end - r.begin) for s, r in zip(seconds, found.shares, strict=True))
    assert abs(seconds[0] - seconds[1]) <= max(2 * step, 0.05 * max(seconds))
    assert found.seconds == pytest.approx(HANDOVER + max(seconds))


@pytest.mark.parametrize("name", ["tesla-t10", "h100", "h200"])
@pytest.mark.parametrize("operation", [matmul, matvec])
def test_taken_only_where_it_is_faster_than_either(operation, name):
    """With contention measured as none; and not listed where it cannot win."""
    constants = contending(profile.shipped(name), 1.0, 1.0, "enqueued")
    taken = []
    for n in SIZES:
        A = Spec((n, n), "float32")
        problem = operation.problem(A, A if operation is matmul else Spec((n,), "float32"))
        plan = priced(pinned_operands(problem), constants, constants.machine())
        alone = min(c.seconds for c in plan.candidates if c.seconds and not c.shares)
        assert plan.chosen.seconds <= alone
        if plan.chosen.shares:
            assert plan.chosen.device == BOTH
            assert plan.chosen.seconds < 0.85 * alone  # gains within the errors of prices are none
            taken.append(n)
        else:
            assert not any(c.shares for c in plan.candidates)
    assert taken or operation is matmul, "nowhere"
    assert not taken or taken[0] > 64


@pytest.mark.parametrize("name", ["tesla-t10", "h100", "h200", "conservative"])
@pytest.mark.parametrize("operation", [matmul, matvec])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_never_taken_where_contention_is_not_known(operation, name, dtype):
    constants = profile.shipped(name)
    data = copy.deepcopy(constants.data)
    data["host"].pop("contention", None)
    constants = profile.parse(profile.encode(data))
    for n in SIZES:
        A = Spec((n, n), dtype)
        problem = operation.problem(A, A if operation is matmul else Spec((n,), dtype))
        plan = priced(pinned_operands(problem), constants, constants.machine() or TWO)
        assert not any(c.device == BOTH for c in plan.candidates)


def test_contention_of_a_device_by_operation_and_memory():
    constants = machine()
    assert constants.contention("cuda:0", "matmul", "pageable") == UNKNOWN_CONTENTION
    known = contending(constants, 1.5, 1.25, "pinned", 2)
    assert known.contention("cuda:1", "matmul", "pinned") == (1.5, 1.25, 2, HANDOVER)
    assert known.contention("cuda:1", "matmul", "pageable") == UNKNOWN_CONTENTION
    assert known.contention("cuda:1", "convolve2d", "pinned") == UNKNOWN_CONTENTION
    assert known.contention("opencl:0", "matmul", "pinned") == UNKNOWN_CONTENTION


ROWS, COLUMNS = (4 * 16384, 4), (4, 4 * 16384)


@pytest.mark.parametrize(
    ("where", "strides", "way"),
    [
        ((True, True), ROWS, "enqueued"),
        ((True, False), ROWS, "enqueued"),
        ((True, False), COLUMNS, "pinned"),  # rows of that lie apart
        ((False, True), ROWS, "pageable"),
        ((False, False), ROWS, "pageable"),
    ],
)
def test_what_most_of_it_lies_in_and_how_tell_the_contention_that_counts(where, strides, way):
    problem = matvec.problem(Spec((16384, 16384), "float32"), Spec((16384,), "float32"))
    A, x = (o._replace(pinned=p) for o, p in zip(problem.inputs, where, strict=True))
    problem = build("matvec", A._replace(strides=strides), x, None)
    for known in ("enqueued", "pinned", "pageable"):
        constants = contending(profile.shipped("h100"), 1.0, 1.0, known)
        plan = priced(problem, constants, constants.machine(), device=BOTH)
        assert (both(plan).terms["contention"] == 0.0) == (known == way)


def test_only_what_is_enqueued_is_taken_by_itself():
    """By a method that may be slower alone; whatever was measured of threads."""
    problem = matvec.problem(Spec((16384, 16384), "float32"), Spec((16384,), "float32"))
    here = profile.shipped("h100")
    for where in (problem, pinned_operands(problem)):
        for way in ("enqueued", "pinned", "pageable"):
            plan = priced(where, contending(here, 1.0, 1.0, way), here.machine())
            wins = way == "enqueued" and where is not problem
            assert plan.chosen.device == (BOTH if wins else "cpu")
            assert [c.method for c in plan.candidates if c.shares] == ["tiled"] * wins


def test_ranges_with_gaps_are_not_enqueued():
    """Rows of a matrix in Fortran's order."""
    problem = matvec.problem(Spec((16384, 16384), "float32"), Spec((16384,), "float32"))
    A, x = pinned_operands(problem).inputs
    problem = build("matvec", A._replace(strides=COLUMNS), x, None)
    data = copy.deepcopy(contending(profile.shipped("h100"), 1.0, 1.0, "enqueued").data)
    ways = data["host"]["contention"]["cuda:*"]["matvec"]
    ways["pinned"] = ways["enqueued"]
    data["host"]["pack"] = link(0.0, 1e15)["pageable"]
    constants = profile.parse(profile.encode(data))
    plan = priced(problem, constants, constants.machine())
    assert not any(c.shares for c in plan.candidates)
    named = both(priced(problem, constants, constants.machine(), device=BOTH))
    assert named.seconds < with_cpu.WORTH_IT * plan.chosen.seconds


def test_of_ranges_that_are_tried_those_that_end_soonest_are_taken(monkeypatch):
    tried, given = [], iter([[10.0, 1.0], [6.0, 5.0], [4.0, 12.0], [3.0, 9.0]])
    known: dict[int, list[float]] = {}

    def seconds(self, shares):
        if id(shares) not in known:
            known[id(shares)] = next(given)
            tried.append(shares)
        return known[id(shares)]

    monkeypatch.setattr(with_cpu._Pair, "_seconds", seconds)
    found = both(priced(square(4096), machine(), device=BOTH, method="tiled"))
    assert found.shares is tried[1]
    assert len(tried) == 4


def test_beside_all_gpus_together():
    """The pair, all GPUs, and each by itself stand side by side."""
    here = {"cpu": CPU, "cuda:0": GPU, "cuda:1": {**GPU, "same_as": "cuda:0"}}
    models = machine().data["models"] | {"cpu|matmul|blas|float32|*": roofline(0.0, 5e11, 1e12)}
    constants = contending(machine(models=models), 1.0, 1.0, "enqueued")
    plan = priced(pinned_operands(square(4096)), constants, here)
    places = [c.device for c in plan.candidates if c.reason is None]
    assert {"cuda:*", BOTH, "cpu", "cuda:0"} == set(places)
    assert places.count(BOTH) == 1


def test_results_that_stay_are_not_shared():
    constants = contending(profile.shipped("tesla-t10"), 1.0, 1.0, "enqueued")
    problem = matvec.problem(Spec((4096, 4096), "float32"), Spec((4096,), "float32"))
    problem = pinned_operands(problem)
    assert priced(problem, constants, constants.machine()).chosen.device == BOTH
    stays = dataclasses.replace(problem, next_device="cuda:0")
    plan = priced(stays, constants, constants.machine())
    assert plan.chosen.device == "cuda:0"


def test_a_device_that_is_this_cpu_again_is_taken_by_name_only():
    here = {"cpu": CPU, "cuda:0": {**GPU, "is_host_cpu": True}}
    constants, problem = contending(machine(), 1.0, 1.0, "enqueued"), pinned_operands(square(4096))
    assert both(priced(problem, constants, here)) is None
    assert both(priced(problem, constants, here, device=BOTH)).shares
