"""Profiles side by side: the one of this machine is taken."""

from __future__ import annotations

import copy

import pytest

import hetero
from hetero import profile
from hetero.profile import inventory


def measured(name="mine", **changes):
    """A profile of this machine, as calibrating would store it; ``changes`` to its fingerprint."""
    data = copy.deepcopy(profile.shipped("conservative").data)
    fingerprint = copy.deepcopy(inventory.fingerprint())
    for path, value in changes.items():
        *folders, last = path.split("__")
        part = fingerprint
        for step in folders:
            part = part[step.replace("_", ":") if step.startswith("cuda") else step]
        part[last] = value
    known = {"devices": inventory.devices(), "fingerprint": fingerprint}
    return data | {"name": name, "created": "2026-01-01", **known}


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache directory without a profile."""
    monkeypatch.delenv("HETERO_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hetero" / "profiles").mkdir(parents=True, mode=0o700)
    profile.set_current(None)
    return tmp_path / "hetero"


def store(home, name, data=None, **changes):
    path = home / "profiles" / f"{name}.json"
    path.write_bytes(profile.encode(data or measured(name, **changes)))
    return path


def test_the_one_of_this_machine_is_taken(home, warnings_of):
    """Other nodes' profiles lie beside it, older and newer ones."""
    store(home, "before", cpu__name="Z80")
    mine = profile.Profile(measured("mine")).save()
    store(home, "after", cpu__name="68000")
    assert profile.current().name == "mine"
    assert not warnings_of()
    found = hetero.machine()
    assert found["profile"]["file"] == str(mine) == found["profile"]["calibrate_writes"]
    assert next(iter(found["profiles"])) == str(mine)
    assert found["profiles"][str(mine)].startswith("fits: ")
    assert "cpu name was 'Z80'" in found["profiles"][str(home / "profiles" / "before.json")]


def test_a_calibration_elsewhere_leaves_the_others(home, monkeypatch):
    first = profile.Profile(measured("first")).save()
    now = inventory.fingerprint
    monkeypatch.setattr(inventory, "fingerprint", lambda: now() | {"blas": {"blas_threads": 1}})
    second = profile.Profile(measured("second")).save()
    assert first != second
    profile.set_current(None)
    assert profile.current().name == "second"
    monkeypatch.setattr(inventory, "fingerprint", now)
    profile.set_current(None)
    assert profile.current().name == "first"


def test_none_is_of_this_machine(home, warnings_of):
    store(home, "one", cpu__name="Z80")
    store(home, "two", cpu__name="68000")
    assert profile.current().name == "conservative"
    (text,) = warnings_of()
    assert "'hetero info' lists them" in text


# -- What makes a machine ------------------------------------------------------------------------

# Changes to a fingerprint, and what the warning says; None where the profile still holds.
CHANGES = {
    "CPU": ({"cpu__name": "Z80"}, "cpu name was 'Z80', is "),
    "cores": ({"cpu__cores": 99}, "cpu cores was 99, is "),
    "loops' threads": ({"cpu__loops": 99}, "cpu loops was 99, is "),
    "BLAS": ({"blas__blas": "mkl"}, "blas was 'mkl', is "),
    "BLAS's threads": ({"blas__blas_threads": 99}, "blas_threads was 99, is "),
    "hetero": ({"hetero": "0.0"}, "hetero was '0.0', is "),
    "card": ({"devices__cuda_0__name": "GeForce 256"}, "cuda:0 was 'GeForce 256', is "),
    "no card": ({"devices": {}}, "cuda:0 is new"),
    "BLAS's version": ({"blas__blas_version": "0.1"}, None),
    "driver": ({"devices__cuda_0__driver": "12.8"}, "the driver of cuda:0 was '12', is '0'"),
    "driver's update": ({"devices__cuda_0__driver": "0.9"}, None),
    "slot": ({"devices__cuda_0__pci_bus_id": "0000:99:00.0"}, None),
    "a card more": ({"devices__cuda_7": {"name": "Z"}}, None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_profile_holds_for_its_cpu_threads_and_cards(change, home, cuda, warnings_of):
    changes, why = CHANGES[change]
    store(home, "mine", **changes)
    if why is None:
        assert profile.current().name == "mine"
        assert not warnings_of()
    else:
        assert profile.current().name == "conservative"
        (text,) = warnings_of()
        assert why in text
        assert "'hetero calibrate'" in text
