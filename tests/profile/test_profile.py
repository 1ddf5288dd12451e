"""The profile file: written whole or not at all, checked when read, never a reason to fail."""

from __future__ import annotations

import copy
import json
import os
import pickle
import stat
import threading
from importlib import resources

import numpy as np
import processes
import pytest

import hetero
from hetero import profile
from hetero.calibration import ship
from hetero.calling import planner
from hetero.errors import ProfileError
from hetero.ops.products.public import matmul_problem, matvec_problem
from hetero.profile import inventory

A = np.arange(12, dtype=np.float32).reshape(3, 4)
CPU_MODEL = "cpu|matmul|blas|float32|*"


@pytest.fixture
def data():
    """Content of a profile of this machine, as calibrating would store it."""
    content = copy.deepcopy(profile.shipped("conservative").data)
    return {**content, "name": "mine", "fingerprint": inventory.fingerprint()}


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else profile.encode(content))


# -- Storing -------------------------------------------------------------------------------------


def test_a_profile_is_stored_for_its_user_alone(data, tmp_path, monkeypatch):
    old = os.umask(0)
    try:
        monkeypatch.delenv("HETERO_PROFILE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        path = profile.Profile(data).save()
        elsewhere = profile.Profile(data).save(tmp_path / "new" / "p.json")
    finally:
        os.umask(old)
    assert path == profile.default_path()
    assert path.parent == tmp_path / "hetero" / "profiles"
    found = profile.read(path).data
    assert found == {**data, "sha256": found["sha256"]}
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    for file in (path, elsewhere):
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_link_is_not_followed(data, tmp_path):
    """It may be another user's, in a shared folder."""
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "p.json").symlink_to("victim")
    profile.Profile(data).save(tmp_path / "p.json")
    assert (tmp_path / "victim").read_text() == "precious"
    assert profile.read(tmp_path / "p.json").name == "mine"


def test_a_used_profile_can_be_pickled_and_copied(data):
    found = profile.Profile(data)
    planner.price(matmul_problem(A, A.T), found, inventory.devices())
    for again in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert again.data == found.data
        assert again.pack(100) == found.pack(100)


# -- Reading -------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", [None, "/dev/null/x", "/proc/nowhere"])
def test_without_a_file_there_is_one_hint(place, profile_file, monkeypatch, warnings_of, opencl):
    """And where no directory can be written to."""
    if place is not None:
        monkeypatch.delenv("HETERO_PROFILE")
        monkeypatch.setenv("XDG_CACHE_HOME", place)
    for device in (None, opencl):
        np.testing.assert_array_equal(hetero.matmul(A, A.T, device=device), A @ A.T)
    (hint,) = warnings_of()
    assert "hetero.calibrate()" in hint
    assert profile.current().name == "conservative"
    assert not profile_file.exists()


@pytest.mark.parametrize("setup", ["", "import logging; logging.basicConfig(format='%(message)s')"])
def test_a_line_of_the_log_has_the_name_where_nobody_set_up_logging(setup, tmp_path):
    code = f"{setup}\nimport numpy as np, hetero\nhetero.plan('matmul', np.eye(3), np.eye(3))"
    done = processes.python("-c", code, HETERO_PROFILE=str(tmp_path / "typo.json"))
    assert done.stderr.startswith("HETERO_PROFILE" if setup else "hetero: HETERO_PROFILE")


def flipped(data):
    content = bytearray(profile.encode(data))
    content[content.index(b"2000000000") + 3] ^= 1  # a digit of a constant: still JSON
    return bytes(content)


def spoiled(data, *path_and_value):
    """The content with one value replaced, and a checksum that fits it."""
    *path, last, value = path_and_value
    changed = copy.deepcopy(data)
    part = changed
    for step in path:
        part = part[step]
    part[last] = value
    return changed


# name -> (what is done to the content, what the warning must name)
DAMAGE = {
    "truncated": (lambda d: profile.encode(d)[:-40], "JSON"),
    "a list": (lambda d: b"[1, 2]", "object"),
    "nested": (lambda d: b'{"schema_version": 3, "name": %s}' % (b"[" * 9**5), "Recursion"),
    "bit flipped": (flipped, "sha256"),
    "no checksum": (lambda d: json.dumps(d).encode(), "sha256"),
    "newer schema": (lambda d: {**d, "schema_version": 99}, "schema_version"),
    "no links": (lambda d: {k: v for k, v in d.items() if k != "links"}, "'links'"),
}
CONSTANTS = ("models", CPU_MODEL)
SURFACE = {"overhead": 0.0, "axes": [[1, 99], [1, 99], [1, 99]], "seconds": [1.0] * 8}
NO_SEGMENTS = {"form": "segments", "constants": []}
FILTERS = {"kind": "filter", "unit": 1e9, "a": None, "b": 1.0, "c": 1.0, "least": 1.0}


def model(form, **constants):
    return {"form": form, "constants": constants}


# name -> (where in the content, with what value)
DEEP = {
    "model a number": (*CONSTANTS, 3),
    "unknown form": (*CONSTANTS, model("tea leaves")),
    "overhead negative": (*CONSTANTS, "constants", "overhead", -1.0),
    "table without seconds": (*CONSTANTS, model("table", overhead=0.0, axes=SURFACE["axes"])),
    "table that turns back": (*CONSTANTS, model("table", **{**SURFACE, "axes": [[9, 1]] * 3})),
    "devices of numbers": ("devices", {"cpu": 5}),
    "filters' bandwidth null": (*CONSTANTS, model("bandwidth", overhead=0.0, bandwidth=FILTERS)),
    "link a number": ("links", "opencl:*", 5),
    "link without segments": ("links", "opencl:0", {"upload": {"pageable": NO_SEGMENTS}}),
    "dispatch of text": ("host", "dispatch", {"opencl:0": {"host": "x"}}),
    "no pack": ("host", {}),
}


@pytest.mark.parametrize("case", [*DAMAGE, *DEEP])
def test_damage_gives_one_warning(case, data, profile_file, warnings_of):
    """And an error where the file is asked for by name."""
    damage, named = DAMAGE.get(case) or (lambda d: spoiled(d, *DEEP[case]), "")
    write(profile_file, damage(data))
    np.testing.assert_array_equal(hetero.matmul(A, A.T), A @ A.T)
    str(hetero.machine())
    (text,) = warnings_of()
    assert str(profile_file) in text
    assert named in text
    assert "\n" not in text
    assert profile.current().name == "conservative"
    with pytest.raises(ProfileError):
        profile.named(str(profile_file))


def test_models_of_an_operation_that_is_unknown_here_are_kept(data, profile_file, warnings_of):
    """Another version's, say; the rest is used. Those of other dimensions price nothing."""
    unknown = "cpu|sorting|bitonic|float32|*"
    content = spoiled(data, "models", unknown, model("table", **SURFACE))
    two = {"overhead": 0.0, "axes": [[1, 99]] * 2, "seconds": [1.0] * 4}
    write(profile_file, spoiled(content, *CONSTANTS, model("table", **two)))
    assert profile.current().name == "mine"
    assert warnings_of() == []
    assert profile.current().dtypes()["sorting"] == {"float32"}
    operand = hetero.spec((9, 9), "float32")
    assert hetero.plan("matmul", operand, operand, device="cpu").chosen.seconds is None


def _anybodys(path):
    path.write_bytes(profile.encode(profile.shipped("conservative").data))
    path.chmod(0o666)


def _theirs(path):
    path.write_bytes(profile.encode(profile.shipped("conservative").data))
    path.parent.chmod(0o1777)
    os.chown(path, 12345, -1)


NO_FILES = {
    "FIFO": (os.mkfifo, "regular file"),
    "directory": (os.mkdir, "regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "regular file"),
    "200 MB": (lambda path: (path.touch(), os.truncate(path, 200 << 20)), "at most"),
    "anybody may write it": (_anybodys, "anybody"),
    "somebody else put it there": (_theirs, "user 12345"),
}


@pytest.mark.parametrize("case", NO_FILES)
def test_what_is_no_file_of_ones_own_gives_one_warning(case, profile_file, warnings_of):
    make, named = NO_FILES[case]
    if make is _theirs and os.geteuid() != 0:
        pytest.skip("only root may give files away")
    profile_file.parent.mkdir(parents=True)
    make(profile_file)
    done = threading.Thread(target=hetero.plan, args=("matmul", A, A.T), daemon=True)
    done.start()
    done.join(30)
    assert not done.is_alive(), "hangs"
    (text,) = warnings_of()
    assert named in text
    assert profile.current().name == "conservative"


# Where in a fingerprint, with what value, and what the warning says; None where it still holds.
CHANGES = {
    "CPU": (("cpu", "name", "Z80"), "cpu name was 'Z80', is "),
    "cores": (("cpu", "cores", 99), "cpu cores was 99, is "),
    "loops' threads": (("cpu", "loops", 99), "cpu loops was 99, is "),
    "BLAS": (("blas", "blas", "mkl"), "blas was 'mkl', is "),
    "BLAS's threads": (("blas", "blas_threads", 99), "blas_threads was 99, is "),
    "hetero": (("hetero", "0.0"), "hetero was '0.0', is "),
    "card": (("devices", "cuda:0", "name", "GeForce 256"), "cuda:0 was 'GeForce 256', is "),
    "no card": (("devices", {}), "cuda:0 is new"),
    "BLAS's version": (("blas", "blas_version", "0.1"), None),
    "driver": (("devices", "cuda:0", "driver", "12.8"), "the driver of cuda:0 was '12', is '0'"),
    "driver's update": (("devices", "cuda:0", "driver", "0.9"), None),
    "slot": (("devices", "cuda:0", "pci_bus_id", "0000:99:00.0"), None),
    "a card more": (("devices", "cuda:7", {"name": "Z"}), None),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_profile_holds_for_its_cpu_threads_and_cards(
    change, data, profile_file, cuda, warnings_of
):
    where, why = CHANGES[change]
    now = {"devices": inventory.devices(), "fingerprint": inventory.fingerprint()}
    write(profile_file, spoiled({**data, **now}, "fingerprint", *where))
    (found,) = hetero.machine()["profiles"].values()
    if why is None:
        assert profile.current().name == "mine"
        assert not warnings_of()
        assert found.startswith("fits: ")
    else:
        assert profile.current().name == "conservative"
        (text,) = warnings_of()
        assert why in text
        assert why in found
        assert "'hetero calibrate'" in text


def test_each_machine_has_its_own_file(data, tmp_path, monkeypatch):
    """In one cache directory: nodes of a cluster, batch jobs with other numbers of threads."""
    monkeypatch.delenv("HETERO_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    now, saved = inventory.fingerprint, {}
    other = now() | {"blas": {"blas_threads": 1}}
    for name, fingerprint in (("first", now), ("second", lambda: other)):
        monkeypatch.setattr(inventory, "fingerprint", fingerprint)
        content = {**data, "name": name, "fingerprint": fingerprint()}
        saved[name] = profile.Profile(content).save()
        profile.set_current(None)
        assert profile.current().name == name
    assert saved["first"] != saved["second"]
    monkeypatch.setattr(inventory, "fingerprint", now)
    profile.set_current(None)
    assert profile.current().name == "first"
    assert hetero.machine()["profile"]["file"] == str(saved["first"])


def test_which_model_answers(data):
    def roof(seconds):
        return model("roofline", overhead=seconds, flops_per_second=1e9, bytes_per_second=1e9)

    names = [f"gpu:0|matvec|tiled|float32|{layout}" for layout in ("C odd", "C", "* odd", "*")]
    names += ["gpu:*|matvec|tiled|float32|C odd", "gpu:*|matvec|tiled|float32|*"]
    work = hetero.registry.lookup("matvec")[0].work(matvec_problem(A, A[0]), {})
    for first in range(len(names)):
        models = {name: roof(float(i)) for i, name in enumerate(names) if i >= first}
        found = profile.Profile({**data, "models": models})
        cost = found.cost("gpu:0", "gpu", "matvec", "tiled", "float32", "C odd")
        assert cost(work)[0] == float(first)
    assert profile.Profile({**data, "models": {}}).cost("a", "b", "c", "d", "e", "f") is None


SHIPPED = sorted(
    file.name.removesuffix(".json")
    for file in resources.files("hetero.profile.data").iterdir()
    if file.name.endswith(".json")
)


@pytest.mark.parametrize("name", SHIPPED)
def test_what_comes_with_hetero_has_no_samples(name, tmp_path, monkeypatch):
    found = profile.named(name)
    assert found.name == name
    assert len((resources.files("hetero.profile.data") / f"{name}.json").read_bytes()) <= 400_000
    links = [
        m for d in found.data["links"].values() for kinds in d.values() for m in kinds.values()
    ]
    for one in (*found.data["models"].values(), *links, found.data["host"]["pack"]):
        assert "samples" not in one
    raw = copy.deepcopy(found.data)
    for one in raw["models"].values():
        one["samples"] = {"seconds": [1.0]}
    assert profile.parse(ship.shipped(raw, "mine")).data["models"] == found.data["models"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / name).mkdir()  # a folder by that name
    assert profile.named(name).name == name
