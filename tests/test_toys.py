"""An operation, a method and a kind of device from outside work with everything, untouched."""

from __future__ import annotations

import dataclasses
import json
import logging.handlers

import numpy as np
import pytest
import test_agree
import test_names
import toys

import hetero
from hetero import cli, profile, registry
from hetero.calibration import request, worklist
from hetero.calibration.request import FULL, QUICK
from hetero.evaluation import bench, verify
from hetero.ops.cases import Place


@pytest.fixture
def toy():
    with toys.installed() as device:
        yield device


@pytest.fixture(scope="module")
def measured(hasty_module, tmp_path_factory):
    """A profile, and what calibrating it said."""
    said = logging.handlers.BufferingHandler(1 << 16)
    log = logging.getLogger("hetero")
    log.addHandler(said)
    with toys.installed():
        path = tmp_path_factory.mktemp("toys") / "p.json"
        found = hetero.calibrate(quick=True, path=path, devices=["cpu", "toy:0"])
    profile.set_current(None)
    log.removeHandler(said)
    return found, [record.getMessage() for record in said.buffer]


@pytest.fixture
def calibrated(toy, measured):
    profile.set_current(measured[0])
    yield measured[0]
    profile.set_current(None)


def test_calibrate_measures_them(calibrated, measured):
    models = calibrated.data["models"]
    for place in ("cpu", "toy:0"):
        assert f"{place}|double|numpy|float32|*" in models
        assert f"{place}|convolve2d|shifts|float64|*" in models
    assert {*models["cpu|double|numpy|float32|*"]["constants"]} == {"overhead", "axes", "seconds"}
    assert set(calibrated.data["links"]["toy:0"]) == {"upload", "download"}
    assert not [line for line in measured[1] if "leaves out" in line]


def test_a_full_calibration_measures_them(toy, hasty, monkeypatch, tmp_path, caplog):
    """Of one operation, and of the method: the others' loops would take long to compile."""
    everything = registry.operations()
    few = [o for o in everything if o.name in ("double", "convolve2d")]
    monkeypatch.setattr(registry, "operations", lambda: few)
    rows = [i for i in registry.lookup("convolve2d") if i.method == "shifts"]
    monkeypatch.setitem(registry._implementations, "convolve2d", rows)
    monkeypatch.setattr(request, "FULL", dataclasses.replace(request.QUICK, quick=False))
    found = hetero.calibrate(path=tmp_path / "p.json", devices=["cpu", "toy:0"])
    profile.set_current(None)
    forms = {key: model["form"] for key, model in found.data["models"].items()}
    assert forms["toy:0|convolve2d|shifts|float32|*"] == forms["cpu|convolve2d|shifts|float32|*"]
    assert forms["toy:0|convolve2d|shifts|float32|*"] == "filter"
    assert forms["toy:0|double|numpy|float64|*"] == "surface"
    assert "leaves out" not in caplog.text


def test_plan_and_explain_know_them(calibrated, capsys):
    plan = hetero.plan("double", np.ones(9, np.float32))
    assert {(c.device, c.method) for c in plan.candidates} == {("cpu", "numpy"), ("toy:0", "numpy")}
    assert all(c.seconds is not None for c in plan.candidates)
    image = hetero.spec((64, 64), "float32")
    methods = {(c.device, c.method) for c in hetero.plan("convolve2d", image, image).candidates}
    assert {("cpu", "shifts"), ("toy:0", "shifts")} <= methods
    assert cli.main(["explain", "double", "1000", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["method"] == "numpy"


@pytest.mark.parametrize("place", ["cpu", "toy", "toy:0"])
def test_use_places_them(place, toy):
    image, filter = np.eye(9, dtype=np.float32), np.arange(6, dtype=np.float32).reshape(2, 3)
    expected = hetero.convolve2d(image, filter, device="cpu")
    with hetero.use(device=place):
        np.testing.assert_array_equal(toys.double(np.arange(5.0)), 2 * np.arange(5.0))
        found = hetero.convolve2d(image, filter, method="shifts")
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_an_operation_that_says_nothing_of_cases_costs_its_own_models(hasty, tmp_path, caplog):
    with toys.installed(kind=False, method=False):
        registry._operations["double"] = dataclasses.replace(toys.OPERATION, cases="")
        found = hetero.calibrate(quick=True, path=tmp_path / "p.json", devices=["cpu"])
        profile.set_current(None)
    assert "cpu|matmul|blas|float32|*" in found.data["models"]
    lines = [r.getMessage() for r in caplog.records if "leaves out" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].startswith("calibration leaves out double on cpu: ")


@pytest.mark.parametrize("budget", [QUICK, FULL], ids=["quick", "full"])
@pytest.mark.parametrize("operation", [o.name for o in registry.operations()])
def test_a_kind_that_nobody_named_has_cases(operation, budget, monkeypatch):
    """Its rows are all that it takes."""
    rows = [
        dataclasses.replace(i, kind="hip", excludes=registry.no_obstacle)
        for i in registry.lookup(operation)
        if i.kind == "opencl"
    ]
    monkeypatch.setitem(registry._implementations, operation, rows)
    with toys.installed(operation=False, method=False) as device:
        place = Place("hip:0", {"kind": "hip", "memory_bytes": 1 << 36}, (device,))
        found = list(worklist.module_of(registry.operation(operation)).cases(place, budget))
    assert {case.implementation.method for case in found} >= {rows[0].method}


# -- Evaluation ------------------------------------------------------------------------------------


def test_verify_measures_them(calibrated, capsys):
    assert cli.main(["verify", "double", "--count", "4", "--largest", "256", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["problems"] == 4
    assert {"double numpy on cpu", "double numpy on toy:0"} <= found["prediction_error"].keys()
    assert found["links"].keys() >= {"toy:0"}
    rows = verify.verify((registry.operation("convolve2d"),), count=12, largest=64)
    measured = {name for row in rows for name in row.measured}
    assert {("cpu", "shifts"), ("toy:0", "shifts")} <= measured


def test_verify_takes_no_operation_that_is_not_asked_for(toy):
    assert "double" not in {o.name for o in verify.usual()}


def test_bench_compares_them(calibrated, capsys):
    assert cli.main(["bench", "double", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert rows
    for row in rows:
        assert row["case"].startswith("double ")
        assert row["seconds"].keys() == {"automatic", "numpy on cpu", "numpy on toy:0"}
    assert cli.main(["bench", "double"]) == 0
    assert "times the fastest" in capsys.readouterr().out


def test_bench_compares_a_method(calibrated, monkeypatch):
    from hetero.ops.convolve2d import benchmarks

    monkeypatch.setattr(benchmarks, "ON_CPU", ((32, 3),))
    (row,) = bench.bench(registry.operation("convolve2d"))
    assert {"shifts on cpu", "shifts on toy:0"} <= row["seconds"].keys()


def test_help_names_them(toy, capsys):
    for command in ("explain", "verify", "bench"):
        with pytest.raises(SystemExit):
            cli.main([command, "--help"])
        assert "double" in capsys.readouterr().out
    assert cli.main(["explain", "nothing", "5"]) == cli.USAGE
    assert "'double'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("operation", "method"), [("double", "numpy"), ("convolve2d", "shifts")], ids="-".join
)
@pytest.mark.parametrize("place", ["cpu", "toy:0"])
def test_they_agree(toy, operation, method, place):
    """As every row of the registry must: test_agree.py finds them by itself."""
    found = {case.values for case in test_agree.places()}
    assert (operation, place, method) in found
    test_agree.agrees(registry.operation(operation), place, method)


def test_one_that_is_wrong_does_not_agree(toy, monkeypatch):
    (row,) = (i for i in registry.lookup("convolve2d") if (i.kind, i.method) == ("toy", "shifts"))

    def wrong(devices, problem, arguments):
        row.run(devices, problem, arguments)
        arguments.output[:4] = 0x7F

    rows = [*registry.lookup("convolve2d")]
    rows[rows.index(row)] = dataclasses.replace(row, run=wrong)
    monkeypatch.setitem(registry._implementations, "convolve2d", rows)
    with pytest.raises(AssertionError):
        test_agree.agrees(registry.operation("convolve2d"), "toy:0", "shifts")


def test_names_of_theirs_are_looked_for(toy):
    """In the sources, as those of every operation and method are."""
    names = test_names.registered()
    assert names.operations >= {"double"}
    assert names.methods >= {"shifts", "numpy"}
