"""What a calibration does when a part of it fails."""

from __future__ import annotations

import importlib

import pytest

from hetero.calibration import convolutions, tasks
from hetero.calibration.efforts import FULL
from hetero.errors import DeviceError
from hetero.runtime import inventory


class Measured:
    """A measurement that takes no time; the first subject's fails."""

    def __init__(self, subject, bench, place, effort):
        self.fails = subject.implementation.method == "direct" and subject.dtype == "float32"
        self.rounds = 0

    def round(self, seconds_left):
        if self.fails:
            raise DeviceError("no memory")
        self.rounds += 1

    def slower(self):
        return [1.5] * self.rounds

    def model(self, slower):
        assert self.rounds
        return {"form": "roofline", "slower": slower}


def test_a_method_that_cannot_be_measured_leaves_the_others(monkeypatch):
    monkeypatch.setattr(convolutions, "Measurement", Measured)
    infos = inventory.devices()
    models = {}
    (phase,) = tasks.filters(["cpu"], {"cpu": infos["cpu"]}, FULL, quick=False)
    failed = 0
    for _, task, _ in phase:
        try:
            task(models, {}, {}, 1.0)
        except DeviceError:
            failed += 1
    assert failed == convolutions.rounds("cpu")
    assert "cpu|convolve2d|direct|float32|*" not in models
    assert models["cpu|convolve2d|direct|float64|*"]["slower"] == pytest.approx(1.5)


def test_phases_go_on_after_a_failure(monkeypatch, caplog):
    """A DeviceError of one task is a line in the log."""
    for phase in ("compilations", "filters", "all_solves"):
        monkeypatch.setattr(tasks, phase, lambda *_: [])
    done = []

    def fails(*_):
        raise DeviceError("no memory")

    monkeypatch.setattr(
        tasks,
        "products",
        lambda *_: [("first", fails, 1.0), ("second", lambda *_: done.append(1), 1.0)],
    )
    calibrate = importlib.import_module("hetero.calibration.calibrate")
    calibrate.measure_machine(True, ["cpu"], None)
    assert done == [1]
    assert "calibration leaves out first: no memory" in caplog.text


def test_shares_need_what_the_links_task_found():
    """Without it each subject's own host time is taken."""
    device = type("Device", (), {"name": "cuda:0"})()
    shares = {}
    tasks._measuring_shares(device, {}, shares)({}, {}, {"dispatch": {}}, 1.0)
    assert shares == {}


def test_more_work_takes_no_less_time():
    """A knot that met a slow spell is no dearer than the larger ones."""
    seconds = {(16, 1): 2e-6, (16, 9): 9e-5, (16, 25): 3e-5, (64, 1): 4e-6, (64, 9): 2e-5}
    seconds[64, 25] = 5e-5
    least = {dims: convolutions._least_above(dims, seconds) for dims in seconds}
    assert least.pop((16, 9)) == 2e-5
    assert all(least[dims] == seconds[dims] for dims in least)
