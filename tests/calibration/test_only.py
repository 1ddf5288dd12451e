"""`calibrate(only=...)`: just what is named is measured, and merged into the stored profile."""

from __future__ import annotations

import copy
import importlib

import pytest

import hetero
from hetero import profile, registry
from hetero.calibration import links as links_of_devices
from hetero.calibration import overheads, samples
from hetero.calibration.samples import Samples
from hetero.cli import main
from hetero.profile import inventory

calibration = importlib.import_module("hetero.calibration.calibrate")
ONE = {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": 1e-6}
PACK = {"form": "segments", "constants": [ONE]}
CONSERVATIVE = profile.shipped("conservative").data["models"]
LINKS = {way: {"pageable": PACK, "pinned": PACK} for way in ("upload", "download")}


@pytest.fixture
def measured(monkeypatch, hasty, profile_file, cuda):
    """What was measured, by place, operation and method; each time it takes 10 us more."""
    with monkeypatch.context() as patch:
        patch.setattr(
            registry, "_operations", {n: registry._operations[n] for n in ("matvec", "matmul")}
        )
        taken = []

        def take(case, bench, *_):
            place = bench.device.name if bench.device else "cpu"
            taken.append((place, case.implementation.operation, case.implementation.method))
            return Samples(dict.fromkeys(case.knots, 1e-5 * len(calls)))

        def links_of(device, *_):
            links.append(device.name)
            return LINKS

        calls, links = [], []
        patch.setattr(samples, "take", take)
        costs = lambda *_: {"host": 1e-5 * len(calls)}  # noqa: E731
        patch.setattr(links_of_devices, "links", links_of)
        patch.setattr(overheads, "dispatch", costs)
        patch.setattr(overheads, "pack", lambda budget: PACK)
        patch.setattr(calibration, "compile_first", lambda *_: None)

        def calibrate(*only, **options):
            taken.clear()
            links.clear()
            calls.append(1)
            devices = options.pop("devices", ["cpu", "cuda:0"])
            found = hetero.calibrate(True, devices=devices, only=only or None, **options)
            return found, set(taken), list(links)

        inventory.changed()
        yield calibrate
    inventory.changed()


def seconds(model):
    return model["constants"]["seconds"][0]


def test_just_what_is_named(measured):
    _, everything, links = measured()
    assert links == ["cuda:0"]
    assert {place for place, *_ in everything} == {"cpu", "cuda:0"}
    assert measured("matmul")[1] == {row for row in everything if row[1] == "matmul"}
    assert measured("cuda:0")[1] == {row for row in everything if row[0] == "cuda:0"}
    assert measured("cuda")[1] == {row for row in everything if row[0] == "cuda:0"}
    assert measured("blas")[1] == {row for row in everything if row[2] == "blas"}
    both = measured("matmul", "cuda:0")[1]
    assert both == {row for row in everything if row[1] == "matmul" or row[0] == "cuda:0"}


def test_it_is_merged_into_what_is_stored(measured, profile_file):
    before, *_ = measured()
    before = copy.deepcopy(before.data)
    after, *_ = measured("matmul")
    stored = profile.read(profile_file).data
    assert stored["models"].keys() == before["models"].keys()
    for key, model in stored["models"].items():
        new = "|matmul|" in key
        assert seconds(model) == pytest.approx(2e-5 if new else 1e-5), key
        assert new or model == before["models"][key]
    assert stored["links"] == before["links"]
    assert stored["host"] == before["host"]
    assert profile.current().data["models"] == after.data["models"]


def test_links_belong_to_the_device_that_is_named(measured, profile_file):
    measured()
    assert measured("matmul")[2] == []
    assert measured("matvec")[2] == []
    assert measured("cuda:0")[2] == ["cuda:0"]
    assert profile.read(profile_file).data["host"]["dispatch"]["cuda:0"]["host"] == 4e-5


def test_without_a_profile_conservative_constants_serve_for_the_rest(
    measured, profile_file, warnings_of
):
    found, *_ = measured("matmul")
    (text,) = warnings_of()
    assert "all else is conservative" in text
    models = found.data["models"]
    assert seconds(models["cpu|matmul|blas|float32|*"]) == 1e-5
    assert models["cpu|poisson|dst|float64|*"] == CONSERVATIVE["cpu|poisson|dst|float64|*"]
    profile.set_current(None)
    assert profile.current().data["models"] == models
    assert len(warnings_of()) == 1


def test_what_is_of_other_numbers_of_threads_is_not_merged_into(
    measured, profile_file, monkeypatch, warnings_of
):
    measured()
    now = inventory.fingerprint()
    changed = {**now, "blas": {**now["blas"], "blas_threads": 99}}
    monkeypatch.setattr(inventory, "fingerprint", lambda: changed)
    found, *_ = measured("matmul")
    assert any("all else is conservative" in text for text in warnings_of())
    assert (
        found.data["models"]["cpu|matvec|blas|float32|*"]
        == CONSERVATIVE["cpu|matvec|blas|float32|*"]
    )
    assert found.data["fingerprint"] == changed


@pytest.mark.parametrize("name", ["matrices", "", "cuda:7", "fft"])
def test_an_unknown_name_is_an_error_that_lists_the_valid_ones(name, measured, profile_file):
    with pytest.raises(ValueError, match="only must be one of") as error:
        measured("matmul", name)
    for valid in ("matmul", "matvec", "tiled", "blas", "cpu", "cuda:0", "cuda"):
        assert repr(valid) in str(error.value)
    assert repr(name) in str(error.value)
    assert not profile_file.exists()


def test_on_the_command_line(measured, profile_file, capsys):
    measured()
    command = ["calibrate", "--quick", "--device", "cpu", "--only"]
    assert main([*command, "blas", "--only", "matvec"]) == 0
    assert "is stored in" in capsys.readouterr().out
    assert main([*command, "nonsense"]) == 2
    assert "'matmul'" in capsys.readouterr().err


def test_the_file_that_path_names_is_merged_into(measured, tmp_path):
    path = tmp_path / "other.json"
    measured(path=path)
    found, *_ = measured("matmul", path=path)
    assert {key.split("|")[1] for key in found.data["models"]} == {"matvec", "matmul"}
    assert profile.read(path).data["models"] == found.data["models"]
