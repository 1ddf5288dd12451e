"""`hetero.calibrate`: beside other processes, for a part of a machine, where nothing is stored."""

from __future__ import annotations

import copy
import itertools
import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from planted import LINKS, calibrate, plant

import hetero
from hetero import cli, profile
from hetero.calibration import measure as timing
from hetero.calibration import samples
from hetero.calibration.samples import Samples
from hetero.evaluation import report
from hetero.profile import inventory, is_trusted


@pytest.fixture
def content():
    here = {"name": "mine", "fingerprint": inventory.fingerprint()}
    return copy.deepcopy(profile.shipped("conservative").data) | here


def test_one_at_a_time(content, profile_file, tmp_path, monkeypatch, warnings_of):
    """Measured together they would measure one another: even for different files."""
    measuring, together = [], []

    def measure(*_):
        measuring.append(True)
        end = time.monotonic() + 30
        while len(warnings_of()) < 3 and time.monotonic() < end:
            time.sleep(0.01)  # until the others wait
        together.append(len(measuring))
        measuring.pop()
        return content

    monkeypatch.setattr(calibrate, "_measure", measure)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: hetero.calibrate(True, tmp_path / f"{n}.json"), range(4)))
    assert together == [1, 1, 1, 1]
    assert len(warnings_of()) == 3, "who waits says so, once"


@pytest.mark.parametrize("place", ["/proc/nowhere/p.json", "/dev/null/p.json", "/tmp"])
def test_what_cannot_be_stored_is_not_measured(place, monkeypatch):
    monkeypatch.setattr(calibrate, "_measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(OSError, match=r"."):
        hetero.calibrate(True, place)


# -- Beside other load -----------------------------------------------------------------------------


@pytest.mark.parametrize(("others", "trusted"), [(2.5, True), (9.0, False), (float("nan"), True)])
def test_by_how_much_other_load_takes(others, trusted, monkeypatch):
    """Ten seconds on 16 cores, of which the calibration itself kept two busy."""
    monkeypatch.setattr(timing.os, "cpu_count", lambda: 16)
    found = timing.load((5.0, 100.0, 3.0), (15.0, 100.0 + (2.0 + others) * 10.0, 23.0))
    assert is_trusted(found) == trusted
    if others == others:
        assert found["others"] == pytest.approx(others)
        assert f"kept {others:.1f} of 16 cores busy" in timing.described(found)


@pytest.fixture
def calibrated(content, profile_file, monkeypatch):
    """Calibrates: a function of how many of ten cores other processes keep busy."""

    def run(others, **changes):
        load = {"seconds": 10.0, "cores": 10, "others": others}
        devices = {"cpu": dict(inventory.devices()["cpu"])}
        found = {**content, "devices": devices, "load": load, **changes}
        monkeypatch.setattr(calibrate, "_measure", lambda *_: found)
        return hetero.calibrate(True)

    return run


def test_the_command_says_what_became_of_it(calibrated, profile_file, capsys, monkeypatch):
    calibrated(3.9, name="disturbed")
    assert cli.main(["calibrate", "--quick"]) == cli.FAILED
    out = capsys.readouterr().out
    assert "other processes kept 3.9 of 10 cores busy" in out
    assert "cannot be trusted" in out
    assert out.endswith(f"the profile is stored in {profile_file}; used from now on\n")
    assert "error of the fit" not in out  # a CPU has no links
    calibrated(2.0, name="good")
    errors = {name: dict.fromkeys(("mean", "p95", "worst"), 0.9) for name in "abc"}
    monkeypatch.setattr(profile.Profile, "residuals", lambda found: errors)
    monkeypatch.setattr(report, "not_acceptable", lambda found: ["a", "b"])
    assert cli.main(["calibrate", "--quick", "--path", str(profile_file)]) == cli.DONE
    *_, end, last = capsys.readouterr().out.splitlines()
    assert end.endswith(f"{profile_file}; HETERO_PROFILE={profile_file} has programs use it")
    rough = "rough fits, marked !: 2 of 3"
    assert last == f"{rough}; 'hetero calibrate' without --quick is more exact"
    assert cli.main(["calibrate", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out)["trusted"]


@pytest.mark.parametrize("others", [2.0, 3.9])
def test_info_and_plans_say_whether_other_load_spoiled_the_calibration(calibrated, others, capsys):
    calibrated(others)
    profile.set_current(None)  # as in the next process
    assert cli.main(["info"]) == cli.DONE
    told = "disturbed by other load: run 'hetero calibrate' again when nothing else runs"
    assert (told in capsys.readouterr().out) == (others > 3.0)
    A = np.ones((9, 9))
    for plan in (hetero.plan("matmul", A, A), hetero.plan("convolve2d", 1j * A, A)):
        header = str(plan).splitlines()[0]
        assert header.endswith(", disturbed by other load)") == (others > 3.0), header


BURST, BUSY = [(128, 128)], [(16, 16), (128, 128), (16, 1024), (1024, 16)]


@pytest.mark.parametrize(
    ("slow", "times", "left"),
    [
        pytest.param(BURST, (40.0,), 0, id="a burst"),
        pytest.param(BURST, (40.0, 40.0), 0, id="a machine that is so"),
        pytest.param(BURST, (40.0, 10.0), 1, id="one stays doubtful"),
        pytest.param(BUSY, (40.0, 10.0), 4, id="busy"),
    ],
)
def test_samples_that_contradict_the_others_are_taken_once_more(
    slow, times, left, profile_file, monkeypatch, capsys
):
    """More work takes no less time; of 25 samples of a method 2 may stay doubtful."""
    asked = {}

    def seconds(bench, case, problem, point):
        shape = problem.inputs[0].shape
        before = asked.setdefault(str(case), [])
        before.append(shape)
        took = 3e-6 + 1e-10 * shape[0] * shape[1]
        look = before.count(shape)
        return took * (times[look - 1] if shape in slow and look <= len(times) else 1.0)

    plant(monkeypatch, samples.take, only=("matvec",))
    monkeypatch.setattr(samples.Bench, "seconds", seconds)
    monkeypatch.setattr(timing, "_STAT", "/dev/null")  # what else runs is no matter
    cli.main(["calibrate", "--quick", "--device", "cpu"])
    out = capsys.readouterr().out
    assert f"{left * len(asked)} of {25 * len(asked)} samples are doubtful" in out
    assert ("cannot be trusted" in out) == (left > 2)
    for shapes in asked.values():
        assert len(set(shapes[:25])) == 25, "after all others"
        assert sorted(shapes[25:]) == sorted(slow)
    model = profile.read(profile_file).data["models"]["cpu|matvec|blas|float32|C"]["constants"]
    of_128 = 3e-6 + 1e-10 * 128**2
    assert len(times) > 1 or model["seconds"][12] == pytest.approx(of_128)


# -- A part of a machine ---------------------------------------------------------------------------


@pytest.fixture
def measured(monkeypatch, hasty, profile_file, cuda):
    """What was measured, by place, operation and method; each time it takes 10 us more."""
    number = itertools.count(1)

    def run(*only, **options):
        taken, links, took = set(), [], 1e-5 * next(number)

        def take(case, *_):
            taken.add(tuple(case.key)[:3])
            return Samples(dict.fromkeys(case.knots, took))

        def links_of(device, *_):
            links.append(device.name)
            return LINKS

        plant(monkeypatch, take, links_of, lambda *_: {"host": took}, only=("matvec", "matmul"))
        found = hetero.calibrate(True, devices=["cpu", "cuda:0"], only=only or None, **options)
        return found.data, taken, links

    return run


def test_just_what_is_named_is_measured_and_merged(measured, profile_file):
    before, everything, links = measured()
    before = copy.deepcopy(before)
    assert links == ["cuda:0"]
    assert {place for place, *_ in everything} == {"cpu", "cuda:0"}
    after, again, links = measured("matmul")
    assert again == {row for row in everything if row[1] == "matmul"}
    assert links == []
    assert after["models"].keys() == before["models"].keys()
    for key, model in profile.read(profile_file).data["models"].items():
        new = "|matmul|" in key
        assert model["constants"]["seconds"][0] == pytest.approx(2e-5 if new else 1e-5), key
        assert new or model == before["models"][key]
    assert (after["links"], after["host"]) == (before["links"], before["host"])
    assert profile.current().data["models"] == after["models"]
    for name in ("cuda:0", "cuda"):
        after, again, links = measured(name)
        assert again == {row for row in everything if row[0] == "cuda:0"}
        assert links == ["cuda:0"]
    assert after["host"]["dispatch"]["cuda:0"]["host"] == 4e-5
    assert measured("blas")[1] == {row for row in everything if row[2] == "blas"}
    both = measured("matmul", "cuda:0")[1]
    assert both == {row for row in everything if row[1] == "matmul" or row[0] == "cuda:0"}


def test_without_a_profile_that_holds_the_rest_is_conservative(
    measured, profile_file, monkeypatch, tmp_path, warnings_of
):
    """And with the file that a path names, it is merged into that one."""
    known = profile.shipped("conservative").data["models"]
    now = inventory.fingerprint()
    changed = {**now, "blas": {**now["blas"], "blas_threads": 99}}
    for other in (now, changed):
        monkeypatch.setattr(inventory, "fingerprint", partial(dict, other))
        found, *_ = measured("matmul")
        assert "all else is conservative" in warnings_of()[-1]
        assert "matvec" not in {key.split("|")[1] for key in found["models"].keys() - known.keys()}
        assert found["models"]["cpu|poisson|dst|float64|*"] == known["cpu|poisson|dst|float64|*"]
        assert found["fingerprint"] == inventory.fingerprint()
    path = tmp_path / "other.json"
    measured(path=path)
    found, *_ = measured("matmul", path=path)
    assert {key.split("|")[1] for key in found["models"]} == {"matvec", "matmul"}
    assert profile.read(path).data["models"] == found["models"]


@pytest.mark.parametrize("name", ["matrices", "", "cuda:7", "fft"])
def test_the_error_of_an_unknown_name_lists_the_valid_ones(name, measured, profile_file, capsys):
    with pytest.raises(ValueError, match="only must be one of") as error:
        measured("matmul", name)
    for text in (name, "matmul", "matvec", "tiled", "blas", "cpu", "cuda:0", "cuda"):
        assert repr(text) in str(error.value)
    assert not profile_file.exists()
    assert cli.main(["calibrate", "--quick", "--device", "cpu", "--only", name]) == cli.USAGE
    assert "'matmul'" in capsys.readouterr().err
