"""Calibrating beside other processes, and where nothing can be stored."""

from __future__ import annotations

import copy
import errno
import importlib
import itertools
import json
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import hetero
from hetero import cli, paths, profile
from hetero.cli import values
from hetero.evaluation import report
from hetero.profile import inventory

# The package's attribute of this name is the function.
calibrate = importlib.import_module("hetero.calibration.calibrate")


@pytest.fixture
def content():
    here = {"name": "mine", "fingerprint": inventory.fingerprint()}
    return copy.deepcopy(profile.shipped("conservative").data) | here


def test_one_at_a_time(content, profile_file, tmp_path, monkeypatch, warnings_of):
    """Measured together they would measure one another: even for different files."""
    spans = []

    def measure(*_):
        start = time.monotonic()
        while len(warnings_of()) < 3 and time.monotonic() < start + 30:
            time.sleep(0.01)  # until the others wait
        spans.append((start, time.monotonic()))
        return content

    monkeypatch.setattr(calibrate, "_measure", measure)
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda n: hetero.calibrate(True, tmp_path / f"{n}.json"), range(4)))
    spans.sort()
    assert len(spans) == 4
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
    assert len(warnings_of()) == 3, "who waits says so, once"
    assert all("waiting" in text for text in warnings_of())


def test_an_interrupt_lets_the_next_one_measure(content, profile_file, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(calibrate, "_measure", interrupted)
    with pytest.raises(KeyboardInterrupt):
        hetero.calibrate(True)
    assert not profile_file.exists()
    monkeypatch.setattr(calibrate, "_measure", lambda *_: content)
    assert hetero.calibrate(True).name == "mine"
    assert profile.read(profile_file).name == "mine"


@pytest.mark.parametrize("place", ["/proc/nowhere/p.json", "/dev/null/p.json", "/tmp"])
def test_what_cannot_be_stored_is_not_measured(place, monkeypatch):
    monkeypatch.setattr(calibrate, "_measure", lambda *_: pytest.fail("measured"))
    with pytest.raises(OSError, match=r"."):
        hetero.calibrate(True, place)


def test_what_was_measured_is_used_even_if_storing_fails(content, profile_file, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibrate, "_measure", lambda *_: content)
    monkeypatch.setattr(paths, "replace_file", full)
    with pytest.raises(OSError, match="No space"):
        hetero.calibrate(True)
    assert profile.current().name == "mine"


@pytest.mark.parametrize("reason", [errno.EROFS, errno.EACCES, errno.EPERM])
def test_a_cache_directory_that_is_read_only(reason, content, tmp_path, monkeypatch, caplog):
    """It is there, so that nothing needs to be made; but the lock cannot be."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(calibrate, "_measure", lambda *_: content)
    real = os.open

    def read_only(path, flags, *arguments, **options):
        if flags & os.O_CREAT and str(path).startswith(str(tmp_path / "hetero")):
            raise OSError(reason, os.strerror(reason), str(path))
        return real(path, flags, *arguments, **options)

    monkeypatch.setattr(os, "open", read_only)
    with caplog.at_level(logging.INFO, "hetero"):
        assert hetero.calibrate(True, tmp_path / "p.json").name == "mine"
    assert "without a lock" in caplog.text
    assert os.strerror(reason) in caplog.text


def test_an_error_of_measuring_is_not_one_of_the_lock(tmp_path, monkeypatch):
    def fail(*_):
        measured.append(1)
        raise PermissionError(errno.EACCES, "planted")

    measured = []
    monkeypatch.setattr(calibrate, "_measure", fail)
    with pytest.raises(PermissionError, match="planted"):
        hetero.calibrate(True, tmp_path / "p.json")
    assert measured == [1]


# -- Beside other load -----------------------------------------------------------------------------


def loaded(content, left, **changes):
    """The content of a profile of this machine, of whose samples so many are doubtful."""
    content = {**copy.deepcopy(content), "fingerprint": inventory.fingerprint(), **changes}
    content["devices"] = {"cpu": dict(inventory.devices()["cpu"])}
    content["load"] = {
        "seconds": 10.0,
        "cores": 2,
        "others": 3.9,
        "samples": 100,
        "again": 50,
        "left": left,
    }
    return content


@pytest.fixture
def calibrated(content, profile_file, monkeypatch):
    """Calibrates: a function of how many samples in a hundred stay doubtful."""

    def run(left, **changes):
        found = loaded(content, left, **changes)
        monkeypatch.setattr(calibrate, "_measure", lambda *_: found)
        return hetero.calibrate(True)

    return run


def test_the_command_says_what_became_of_it(calibrated, profile_file, capsys, monkeypatch):
    calibrated(60, name="disturbed")
    assert cli.main(["calibrate", "--quick"]) == values.FAILED
    out = capsys.readouterr().out
    assert "other processes kept 3.9 of 2 cores busy" in out
    assert "cannot be trusted" in out
    assert f"the profile is stored in {profile_file}, and used from now on\n" in out
    calibrated(2, name="good")
    errors = {name: dict.fromkeys(("mean", "p95", "worst"), 0.9) for name in "abc"}
    monkeypatch.setattr(profile.Profile, "residuals", lambda found: errors)
    monkeypatch.setattr(report, "not_acceptable", lambda found: ["a", "b"])
    assert cli.main(["calibrate", "--quick", "--path", str(profile_file)]) == values.DONE
    *_, end, last = capsys.readouterr().out.splitlines()
    assert end.endswith(f"{profile_file}; HETERO_PROFILE={profile_file} has programs use it")
    rough = "rough fits, marked !: 2 of 3"
    assert last == f"{rough}; 'hetero calibrate' without --quick is more exact"
    assert cli.main(["calibrate"]) == values.DONE
    assert capsys.readouterr().out.endswith(f"\n{rough}\n")
    assert cli.main(["calibrate", "--quick", "--json"]) == values.DONE
    assert json.loads(capsys.readouterr().out)["trusted"]


@pytest.mark.parametrize("left", [2, 60])
def test_info_and_plans_say_whether_other_load_spoiled_the_calibration(calibrated, left, capsys):
    calibrated(left)
    profile.set_current(None)  # as in the next process
    assert cli.main(["info"]) == values.DONE
    told = "disturbed by other load: run 'hetero calibrate' again when nothing else runs"
    assert (told in capsys.readouterr().out) == (left == 60)
    A = np.ones((9, 9))
    plans = [hetero.plan("matmul", A, A), hetero.plan("convolve2d", 1j * A, A)]
    for plan in plans:
        header = str(plan).splitlines()[0]
        assert header.endswith(", disturbed by other load)") == (left == 60), header
