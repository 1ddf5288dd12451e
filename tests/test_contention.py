"""What the CPU and a device lose to one another, as calibration measures it."""

from __future__ import annotations

import copy
import dataclasses
import math
import threading
import time

import pytest
from test_loaded_links import calibrated  # noqa: F401  # a fixture
from test_planner import machine

from hetero import devices
from hetero.calibration import contention
from hetero.errors import ProfileError
from hetero.evaluation import report
from hetero.runtime import inventory, profile, registry
from hetero.runtime.cases import Place


def test_times_of_tasks_that_slow_one_another():
    """The first takes 10 ms, twice that while the second runs; the second 20 ms in any case."""
    busy = threading.Event()

    def own():
        time.sleep(0.01)
        if busy.is_set():
            time.sleep(0.01)

    def other():
        busy.set()
        time.sleep(0.02)
        busy.clear()

    first, second = contention.times(own, other)
    assert 1.6 < first < 2.6
    assert 1.0 <= second < 1.4


def test_both_are_alone_first_and_then_together():
    log, lock = [], threading.Lock()

    def task(name):
        def run():
            with lock:
                log.append((name, threading.current_thread() is threading.main_thread()))

        return run

    assert all(found >= 1.0 for found in contention.times(task("cpu"), task("device")))
    assert log[:2] == [("cpu", True), ("device", True)]
    assert set(log[2:4]) == {("cpu", True), ("device", False)}


def test_of_a_device(opencl, monkeypatch):
    """Every operation that has a size for it, in both kinds of memory; sizes that are quick."""
    monkeypatch.setattr(contention, "_LONGEST", 2e-4)
    monkeypatch.setattr(contention, "_ROUNDS", 1)
    place = Place(opencl, {"is_host_cpu": False}, (devices.get(opencl),))
    failures = []
    found = contention.measured([place], registry.operations(), profile.current(), failures)
    assert not failures
    assert found[opencl].keys() == {"matvec", "matmul"}
    for kinds in found[opencl].values():
        assert kinds.keys() == {"pageable", "pinned"}
        assert all(1.0 <= times < math.inf for one in kinds.values() for times in one.values())
    data = copy.deepcopy(profile.shipped("conservative").data)
    data["host"]["contention"] = found
    read = profile.parse(profile.encode(data))
    times = found[opencl]["matmul"]["pinned"]
    assert read.contention(opencl, "matmul", "pinned") == (times["cpu"], times["device"])


def test_of_no_device_that_is_this_cpu_and_of_no_several(opencl):
    device = devices.get(opencl)
    places = [Place(opencl, {"is_host_cpu": True}, (device,)), Place("both", {}, (device, device))]
    assert (
        contention.measured([*places, Place("cpu", {}, ())], registry.operations(), None, []) == {}
    )


def test_what_fails_is_left_out(opencl, monkeypatch):
    monkeypatch.setattr(contention, "times", lambda *tasks: 1 / 0)
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
    data["host"]["contention"] = {"cuda:0": {"matmul": {"pinned": {"cpu": 1.5, "device": 1.25}}}}
    told = report.calibration(profile.Profile(data))
    assert "matmul shared by cpu and cuda:0, pinned: times as long cpu 1.50 and device 1.25" in told


def test_a_full_calibration_keeps_it(calibrated, monkeypatch):  # noqa: F811
    known = {"toy:0": {"matvec": {"pinned": {"cpu": 1.5, "device": 1.25}}}}
    monkeypatch.setattr(contention, "measured", lambda *_: known)
    found, _ = calibrated()
    assert found.data["host"]["contention"] == known
    assert profile.current().contention("toy:0", "matvec", "pinned") == (1.5, 1.25)
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
