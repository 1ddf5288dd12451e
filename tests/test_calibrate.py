"""Calibrating beside other processes, and where nothing can be stored."""

from __future__ import annotations

import copy
import importlib
import itertools
import threading
import time

import pytest

import hetero
from hetero import profile

# The package's attribute of this name is the function.
calibrate = importlib.import_module("hetero.calibration.calibrate")


@pytest.fixture
def content():
    return {**copy.deepcopy(profile.shipped("conservative").data), "name": "mine"}


def test_one_at_a_time(content, profile_file, tmp_path, monkeypatch, warnings_of):
    """Measured together they would measure one another: even for different files."""
    spans = []

    def measure(quick, devices, progress):
        start = time.monotonic()
        while len(warnings_of()) < 3 and time.monotonic() < start + 30:
            time.sleep(0.01)  # until the others wait
        spans.append((start, time.monotonic()))
        return content

    monkeypatch.setattr(calibrate, "_measure", measure)
    threads = [
        threading.Thread(target=hetero.calibrate, args=(True, tmp_path / f"{n}.json"))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
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
    monkeypatch.setattr(calibrate, "measure_machine", lambda *_: pytest.fail("measured"))
    with pytest.raises(OSError, match=r"."):
        hetero.calibrate(True, place)


def test_what_was_measured_is_used_even_if_storing_fails(content, profile_file, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(calibrate, "measure_machine", lambda *_: content)
    monkeypatch.setattr(profile.paths, "replace_file", full)
    with pytest.raises(OSError, match="No space"):
        hetero.calibrate(True)
    assert profile.current().name == "mine"


def test_nowhere_for_the_lock(content, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    monkeypatch.setattr(calibrate, "_measure", lambda *_: content)
    assert hetero.calibrate(True, tmp_path / "p.json").name == "mine"
