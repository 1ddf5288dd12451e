"""What the CPU and a device lose to one another, as calibration measures it."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
from test_loaded_links import calibrated  # noqa: F401  # a fixture
from test_planner import machine

from hetero import devices
from hetero.calibration import contention
from hetero.errors import ProfileError
from hetero.evaluation import report
from hetero.runtime import inventory, profile, registry
from hetero.runtime.cases import Place


@pytest.mark.parametrize("slow", [False, True])
def test_medians_of_each_alone_and_of_both_in_each_way(monkeypatch, slow):
    """In turn, the second time of each; the first round is left out."""
    clock, log = [0.0], []
    monkeypatch.setattr(contention, "_ENOUGH", 1.0 if slow else 1e6)
    monkeypatch.setattr(contention.time, "perf_counter", lambda: clock[0])

    def task(name, seconds):
        def run():
            log.append(name)
            clock[0] += 100.0 if len(log) <= 8 or len(log) % 2 else seconds

        return run

    def both(name, pair):
        def run():
            log.append(name)
            return (99.0, 99.0) if len(log) <= 8 or len(log) % 2 else pair

        return run

    ways = [both("all threads", (4.0, 6.0)), both("fewer", (3.0, 5.0))]
    found = contention.times(task("cpu", 2.0), task("device", 5.0), ways)
    assert found == ([2.0, 5.0], [[4.0, 6.0], [3.0, 5.0]])
    turn = [name for name in ("cpu", "device", "all threads", "fewer") for _ in range(2)]
    assert log == turn * (contention._ROUNDS[not slow] + 1)


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
