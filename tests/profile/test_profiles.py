"""Profiles side by side: the fitting one is taken, and of it what holds here."""

from __future__ import annotations

import copy
import json
import os
import time

import pytest

import hetero
from hetero import devices, profile, registry
from hetero.profile import inventory, places, validity
from hetero.registry.models import ModelKey


def model(seconds):
    constants = {"overhead": seconds, "flops_per_second": 1e9, "bytes_per_second": 1e9}
    return {"form": "roofline", "constants": constants}


def links(seconds):
    one = {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": seconds}
    kinds = {"pageable": {"form": "segments", "constants": [one]}}
    return {"upload": kinds, "download": kinds}


def measured(name="mine", seconds=1e-3, **changes):
    """A profile of this machine, as calibrating would store it; ``changes`` to its fingerprint."""
    here = {n: i for n, i in inventory.devices().items() if not i.get("is_host_cpu")}
    models = {}
    for operation in registry.operations():
        for row in registry.lookup(operation.name):
            for place, info in here.items():
                if row.kind == info["kind"] and not info.get("same_as"):
                    for dtype in ("float32", "float64"):
                        key = ModelKey(place, operation.name, row.method, dtype, "*")
                        models[str(key)] = model(seconds)
    data = copy.deepcopy(profile.shipped("conservative").data)
    fingerprint = copy.deepcopy(inventory.fingerprint())
    for path, value in changes.items():
        *folders, last = path.split("__")
        part = fingerprint
        for step in folders:
            part = part[step.replace("_", ":") if step.startswith("cuda") else step]
        part[last] = value
    others = {n: i for n, i in here.items() if n != "cpu" and not i.get("same_as")}
    return data | {
        "name": name,
        "created": "2026-01-01",
        "fingerprint": fingerprint,
        "devices": here,
        "models": models,
        "links": {n: links(seconds) for n in others},
        "host": {**data["host"], "dispatch": {n: {"host": seconds} for n in others}},
    }


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A cache directory without a profile."""
    monkeypatch.delenv("HETERO_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "hetero" / "profiles").mkdir(parents=True, mode=0o700)
    profile.set_current(None)
    return tmp_path / "hetero"


def store(home, name, **changes):
    path = home / "profiles" / f"{name}.json"
    path.write_bytes(profile.encode(measured(name, **changes)))
    return path


def put_aside():
    (best, *_) = profile.survey()
    return {name for names in best.holding.aside.values() for name in names}


def test_the_one_that_fits_is_taken(home, warnings_of):
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


def test_the_single_profile_of_former_versions_is_read(home, warnings_of):
    """Its fingerprint has fewer parts; what it did not record is taken to be the same."""
    data = measured("old")
    del data["fingerprint"]["cpu"]["loops"]
    for name in ("scipy", "numba"):
        del data["fingerprint"]["packages"][name]
    (home / "profile.json").write_bytes(profile.encode(data))
    assert profile.current().name == "old"
    assert not warnings_of()
    assert hetero.machine()["profile"]["file"] == str(home / "profile.json")


def test_of_two_that_fit_in_part_the_one_that_covers_more(home, warnings_of):
    store(home, "other_cores", cpu__cores=999)
    store(home, "other_threads", blas__blas_threads=99)
    assert profile.current().name == "other_threads"
    (text,) = warnings_of()
    assert "blas_threads was 99" in text


def test_none_fits(home, warnings_of):
    store(home, "one", cpu__name="Z80")
    store(home, "two", cpu__name="68000")
    assert profile.current().name == "conservative"
    (text,) = warnings_of()
    assert "'hetero info' lists them" in text


def test_a_damaged_file_beside_does_no_harm(home, warnings_of):
    store(home, "fits", blas__blas_threads=99)
    (home / "profiles" / "newer.json").write_bytes(b"half a pro")
    assert profile.current().name == "fits"
    assert "not complete JSON" in hetero.machine()["profiles"][str(home / "profiles/newer.json")]


def test_only_some_files_are_looked_at(home, monkeypatch):
    for number in range(places._MOST + 3):
        path = home / "profiles" / f"{number}.json"
        path.write_bytes(b"{}")
        os.utime(path, (time.time() - number,) * 2)
    assert len(places.stored()) == places._MOST
    assert places.stored()[0].name == "0.json"


# -- What depends on what ------------------------------------------------------------------------

# What changed -> (how, whose constants are put aside: a kind's, or those that use what changed)
CHANGES = {
    "BLAS threads": ({"blas__blas_threads": 99}, "cpu", "blas"),
    "BLAS": ({"blas__blas_version": "0.1"}, "cpu", "blas"),
    "SciPy": ({"packages__scipy": "0.1"}, "cpu", "scipy"),
    "loops": ({"cpu__loops": 99}, "cpu", "loops"),
    "cores": ({"cpu__cores": 99}, "cpu", None),
    "driver": ({"devices__cuda_0__driver": "1"}, "cuda", None),
    "card": ({"devices__cuda_0__name": "GeForce 256"}, "cuda", None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_depends_on_it_is_put_aside_and_nothing_else(change, home, cuda, warnings_of):
    changes, kind, used = CHANGES[change]
    store(home, "mine", **changes)
    expected = set()
    for key in measured()["models"]:
        place, operation, method, *_ = key.split("|")
        (row,) = (
            row
            for row in registry.lookup(operation)
            if (row.method, row.kind) == (method, validity.kind_of(place))
        )
        if row.kind == kind if used is None else used in row.uses:  # a device's may use loops
            expected.add(key)
    assert expected
    if kind == "cuda":
        expected |= {"cuda:0|links", "cuda:0|dispatch"}
    elif change != "SciPy":  # it holds for BLAS, its threads and the loops beside them
        expected.add("cpu|blas_sleep")
    assert put_aside() == expected
    found = profile.current()
    (text,) = warnings_of()
    assert "are put aside" in text
    assert next(iter(changes.values())).__repr__() in text
    for key in measured()["models"]:
        cost = found.cost(key.split("|")[0], validity.kind_of(key), *key.split("|")[1:])
        stays = key not in expected
        seconds = cost(hetero.registry.models.Work((64,) * 3, 0.0, 0.0))[0] if cost else None
        assert (seconds == 1e-3) == stays, key
    assert (found.link("cuda:0", "upload")(0) == 1e-3) == (kind != "cuda")


def test_the_message_names_the_options_that_measure_it(home, warnings_of):
    store(home, "mine", blas__blas_threads=99)
    profile.current()
    (text,) = warnings_of()
    assert "'hetero calibrate --only blas' measures them" in text


def test_a_card_that_is_not_here_is_not_missed(home, warnings_of):
    data = measured("mine")
    data["fingerprint"]["devices"]["cuda:7"] = {"name": "Z"}
    data["models"]["cuda:7|matmul|tiled|float32|*"] = model(1.0)
    (home / "profiles" / "mine.json").write_bytes(profile.encode(data))
    assert profile.current().name == "mine"
    assert not warnings_of()
    assert "cuda:7|matmul|tiled|float32|*" not in profile.current().data["models"]


def test_a_card_that_is_new_is_said_and_gets_conservative_constants(home, cuda, warnings_of):
    data = measured("mine")
    del data["fingerprint"]["devices"]["cuda:0"], data["devices"]["cuda:0"], data["links"]["cuda:0"]
    data["models"] = {k: m for k, m in data["models"].items() if k.startswith("cpu")}
    (home / "profiles" / "mine.json").write_bytes(profile.encode(data))
    found = profile.current()
    assert found.cost("cuda:0", "cuda", "matmul", "tiled", "float32", "CC odd") is not None
    assert found.link("cuda:0", "upload")(0) > 0.0
    (text,) = warnings_of()
    assert "cuda:0 was not here" in text
    assert "--only cuda:0" in text


def test_the_same_card_in_another_slot_or_by_another_number(home, cuda, warnings_of):
    """As a batch job gets them: CUDA counts the cards that a process may see."""
    data = measured("mine")
    data = json.loads(profile.encode(data).replace(b"cuda:0", b"cuda:5"))
    data["fingerprint"]["devices"]["cuda:5"]["pci_bus_id"] = "0000:99:00.0"
    (home / "profiles" / "mine.json").write_bytes(profile.encode(data))
    found = profile.current()
    assert not warnings_of()
    assert found.cost("cuda:0", "cuda", "matmul", "tiled", "float32", "*") is not None
    assert found.link("cuda:0", "upload")(0) == 1e-3
    assert found.dispatch("cuda:0", "host") == 1e-3
    assert found.devices["cuda:0"]["kind"] == "cuda"


@pytest.fixture
def alike(two, monkeypatch):
    """Two equal cards, in different slots."""
    for device in two:
        info = {**device.describe(), "name": "fake"}
        monkeypatch.setattr(device, "describe", lambda info=info: dict(info))
    inventory.changed()
    return two


def test_a_second_card_of_the_same_kind_is_as_the_first(home, alike, warnings_of):
    data = measured("mine")
    del data["fingerprint"]["devices"]["cuda:1"], data["devices"]["cuda:1"]
    (home / "profiles" / "mine.json").write_bytes(profile.encode(data))
    found = profile.current()
    assert not warnings_of()
    assert found.devices["cuda:1"]["same_as"] == "cuda:0"
    assert found.link("cuda:1", "upload")(0) == 1e-3


@pytest.mark.parametrize("number", [0, 1])
def test_one_of_two_equal_cards(number, home, alike, warnings_of, monkeypatch):
    """As CUDA_VISIBLE_DEVICES shows it, be it the one that was measured or the other."""
    data = measured("mine")
    data["links"]["cuda:1"] = links(2e-3)  # what differs was measured by itself
    (home / "profiles" / "mine.json").write_bytes(profile.encode(data))
    shown = alike[number]
    monkeypatch.setattr(shown, "name", "cuda:0")
    monkeypatch.setattr(devices.here, "found", {"cuda:0": shown})
    inventory.changed()
    found = profile.current()
    assert not warnings_of()
    assert found.cost("cuda:0", "cuda", "matmul", "tiled", "float32", "*") is not None
    assert found.link("cuda:0", "upload")(0) == (1e-3, 2e-3)[number]
    assert "same_as" not in found.devices["cuda:0"]


def test_devices_that_were_measured_together_count_only_where_all_are(home, alike):
    data = measured("mine")
    data["models"]["cuda*2|cg|fused|float32|stencil2"] = model(1.0)
    data["models"]["cuda*3|cg|fused|float32|stencil2"] = model(1.0)
    kept = validity.holding(data).data["models"]
    assert [key for key in kept if "*" in key.split("|")[0]] == ["cuda*2|cg|fused|float32|stencil2"]


def test_every_dependence_is_a_part_of_the_fingerprint():
    packages = set(inventory._PACKAGES)
    known = {*inventory.PARTS, *packages, "device"}
    for parts in validity.DEPENDENCE.values():
        assert set(parts) <= known
    for operation in registry.operations():
        for row in registry.lookup(operation.name):
            assert set(row.uses) <= known, row
    assert set(validity.BINDINGS.values()) <= packages
