"""What the CPU and a device lose to one another, as calibration measures it."""

from __future__ import annotations

import copy
import dataclasses
import math

import numpy as np
import pytest
from made_up import link, machine
from test_loaded_links import calibrated  # noqa: F401  # a fixture
from test_shares import several, two  # noqa: F401  # fixtures

from hetero import devices, profile, registry
from hetero.arrays import pinned
from hetero.blocks import with_cpu
from hetero.calibration.environment import contention
from hetero.errors import ProfileError
from hetero.evaluation import report
from hetero.host import limits
from hetero.ops.cases import Place
from hetero.profile import inventory


@pytest.mark.parametrize("slow", [False, True])
def test_medians_of_each_alone_and_of_both_in_each_way(monkeypatch, slow):
    """In turn, the second time of each; what comes first is left out, and who is slower soon."""
    clock, log = [0.0], []
    monkeypatch.setattr(contention, "_ENOUGH", 1.0 if slow else 1e6)
    monkeypatch.setattr(contention.time, "perf_counter", lambda: clock[0])
    names = ["cpu", "device", "all threads", "fewer", "too few"]

    def is_second(name):
        log.append(name)
        return log.count(name) % 2 and log.count(name) > 1

    def task(name, seconds):
        def run():
            clock[0] += seconds if is_second(name) else 100.0

        return run

    def both(name, pair):
        return lambda: pair if is_second(name) else (99.0, 99.0)

    ways = [both("all threads", (4.0, 6.0)), both("fewer", (3.0, 5.0)), both("too few", (9.0, 2.0))]
    found = contention.times(task("cpu", 2.0), task("device", 5.0), ways)
    assert found == ([2.0, 5.0], [[4.0, 6.0], [3.0, 5.0], [9.0, 2.0]])
    turn = [name for name in names for _ in range(2)]
    rounds = contention._ROUNDS[not slow]
    assert log == names + turn + turn[:-2] * (rounds - 1)


@pytest.mark.parametrize(
    ("beside", "lost"),
    [
        ([[4, 6, 1], [3, 5.5, 0.5], [3.5, 7, 0]], {"cpu": 1.5, "device": 1.1, "spared": 1}),
        ([[1, 5, 1], [3, 5.5, 1], [9, 5, 0]], {"cpu": 1.0, "device": 1.0, "handover": 1.0}),
        ([[7, 5, 0]], {"cpu": 3.5, "device": 1.0, "handover": 0}),
    ],
)
def test_the_number_of_threads_that_ends_soonest_is_kept(opencl, monkeypatch, beside, lost):
    monkeypatch.setattr(contention, "times", lambda *_: ([2.0, 5.0], beside))
    operation, device = registry.operation("matmul"), devices.get(opencl)
    dims = (256, 256, 256)
    shared, *_ = contention._shared(operation, dims, device, "pageable", profile.current())
    shared._spared = [0, 1, 2][: len(beside)]
    assert shared.measured() == {"handover": 0.5} | lost


def test_of_a_device(opencl, monkeypatch):
    """Every operation that has a size for it, in both kinds of memory; sizes that are quick."""
    monkeypatch.setattr(contention, "_LONGEST", 2e-4)
    monkeypatch.setattr(contention, "_ROUNDS", (1, 1))
    place = Place(opencl, {"is_host_cpu": False}, (devices.get(opencl),))
    failures = []
    found = contention.measured([place], registry.operations(), profile.current(), failures)
    assert not failures
    assert found[opencl].keys() == {"matvec", "matmul"}
    for ways in found[opencl].values():
        assert {"pageable"} <= ways.keys() <= {"pageable", "pinned"}  # none is enqueued there
        for one in ways.values():
            assert all(1.0 <= one[place] < math.inf for place in ("cpu", "device"))
    data = copy.deepcopy(profile.shipped("conservative").data)
    data["host"]["contention"] = found
    read = profile.parse(profile.encode(data))
    times = found[opencl]["matmul"]["pageable"]
    lost = read.contention(opencl, "matmul", "pageable")
    assert lost._asdict() == {"spared": 0} | times


@pytest.fixture
def enqueuing(two, monkeypatch):  # noqa: F811
    """A fake GPU with pinned memory that takes copies on its queue, and BLAS with 16 threads."""
    device = two[0]

    def pinned_memory(nbytes):
        return pinned.known(np.empty(nbytes, np.uint8), "tests")

    device.enqueues, device.enqueue_upload, device.pinned = True, device.upload, pinned_memory
    monkeypatch.setattr(contention, "_LONGEST", 2e-4)
    monkeypatch.setattr(contention, "_ROUNDS", (1, 1))
    monkeypatch.setattr(limits, "state", lambda: limits.State(True, 16))
    here = inventory.devices()
    here = {**here, "cpu": {**here["cpu"], "blas_threads": 16}}
    monkeypatch.setattr(inventory, "devices", lambda: here)
    return device


def test_of_a_device_that_enqueues(enqueuing, monkeypatch):
    """Pinned memory that way, and all of BLAS's threads; ordinary memory by threads of ours."""
    constants, tried = machine(), []
    links = {"upload": link(1e-5, 1e9), "download": link(2e-5, 5e8)}
    for kinds in links.values():
        kinds["pinned"] = kinds["pageable"]
    constants.data["links"] = {"cuda:*": links}
    real = contention._Shared.measured

    def measured(self):
        tried.append((self.way, self._spared))
        return real(self)

    monkeypatch.setattr(contention._Shared, "measured", measured)
    found = contention.beside_one_another(registry.operation("matvec"), enqueuing, constants)
    assert tried == [("pageable", [0, 2, 4]), ("enqueued", [0])]
    assert all(0.0 < lost["handover"] < 0.1 for lost in found.values())
    assert all(lost["cpu"] >= 1.0 and lost["device"] >= 1.0 for lost in found.values())


def test_of_each_way_its_best_method_is_measured(enqueuing, monkeypatch):
    monkeypatch.setattr(with_cpu, "way", lambda problem, row: f"by {row.method}")
    here = inventory.devices()
    here = {**here, "cuda:0": {**here["cuda:0"], "library": "13.0"}}
    monkeypatch.setattr(inventory, "devices", lambda: here)
    operation, dims = registry.operation("matvec"), (64, 64)
    calls = contention._shared(operation, dims, enqueuing, "pageable", machine())
    methods = [call._plan.chosen.method for call in calls]
    assert len(methods) > 1
    assert [call.way for call in calls] == [f"by {method}" for method in methods]


def test_of_no_device_that_is_this_cpu_and_of_no_several(opencl):
    device = devices.get(opencl)
    places = [Place(opencl, {"is_host_cpu": True}, (device,)), Place("both", {}, (device, device))]
    assert (
        contention.measured([*places, Place("cpu", {}, ())], registry.operations(), None, []) == {}
    )


def test_what_fails_is_left_out(opencl, monkeypatch):
    monkeypatch.setattr(contention, "times", lambda *_: 1 / 0)
    monkeypatch.setattr(contention, "_LONGEST", 2e-4)
    place = Place(opencl, {}, (devices.get(opencl),))
    failures = []
    found = contention.measured([place], registry.operations(), profile.current(), failures)
    assert found == {}
    assert {(f.operation, f.place) for f in failures} == {("matvec", opencl), ("matmul", opencl)}


@pytest.mark.parametrize("part", ["blas", "numpy", "device"])
def test_it_holds_as_long_as_what_it_depends_on(opencl, part):
    data = copy.deepcopy(profile.shipped("conservative").data)
    data["fingerprint"] = copy.deepcopy(inventory.fingerprint())
    data["devices"] = copy.deepcopy(inventory.devices())
    data["host"]["contention"] = {opencl: {"matmul": {"pinned": {"cpu": 1.5, "device": 1.25}}}}
    assert opencl in profile.holding(data).data["host"]["contention"]
    was = data["fingerprint"]
    if part == "device":
        was["devices"][opencl]["memory_bytes"] = 1
    elif part == "numpy":
        was["packages"]["numpy"] = "1.0"
    else:
        was["blas"]["blas_version"] = "another"
    held = profile.holding(data)
    assert held.data["host"]["contention"] == {}


def test_times_below_one_are_no_profile():
    data = copy.deepcopy(profile.shipped("conservative").data)
    data["host"]["contention"] = {"cuda:0": {"matmul": {"pinned": {"cpu": 0.5, "device": 1.0}}}}
    with pytest.raises(ProfileError, match="contention"):
        profile.parse(profile.encode(data))


def test_the_report_of_a_calibration_tells_of_it():
    data = machine().data
    known = {"pinned": {"cpu": 1.5, "device": 1.25}}
    known["pageable"] = known["pinned"] | {"spared": 2}
    data["host"]["contention"] = {"cuda:0": {"matmul": known}}
    told = report.calibration(profile.Profile(data))
    for way, more in (("pinned", ""), ("pageable", ", 2 of BLAS's threads spared")):
        line = f"matmul shared by cpu and cuda:0, {way}: times as long cpu 1.50 and device 1.25"
        assert line + more + "\n" in told


def test_a_full_calibration_keeps_it(calibrated, monkeypatch):  # noqa: F811
    known = {"toy:0": {"matvec": {"pinned": {"cpu": 1.5, "device": 1.25}}}}
    monkeypatch.setattr(contention, "measured", lambda *_: known)
    found, _ = calibrated()
    assert found.data["host"]["contention"] == known
    assert profile.current().contention("toy:0", "matvec", "pinned")[:3] == (1.5, 1.25, 0)
    monkeypatch.setattr(contention, "measured", lambda *_: 1 / 0)  # not asked
    again, _ = calibrated(only=["matvec"])
    assert again.data["host"]["contention"] == known
    quick, _ = calibrated(True)
    assert "contention" not in quick.data["host"]


def test_an_operation_that_says_nothing_of_cases(opencl):
    operation = dataclasses.replace(registry.operation("matmul"), cases="")
    place, failures = Place(opencl, {}, (devices.get(opencl),)), []
    assert contention.measured([place], [operation], profile.current(), failures) == {}
    assert not failures
