"""The profile file: written whole or not at all, checked when read, never a reason to fail."""

from __future__ import annotations

import copy
import errno
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
import time

import numpy as np
import processes
import pytest

import hetero
import hetero.ops
from hetero import paths, profile, tables
from hetero.calling import planner
from hetero.errors import ProfileError
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


def use_it(opencl):
    """What a user does with a profile; every result must be right."""
    for device in (None, opencl):
        np.testing.assert_array_equal(hetero.matmul(A, A.T, device=device), A @ A.T)
        np.testing.assert_array_equal(hetero.matvec(A, A[0], device=device), A @ A[0])
        str(hetero.plan("matmul", A, A.T, device=device))
    str(hetero.machine())


# -- Storing -------------------------------------------------------------------------------------


def test_round_trip(data, profile_file):
    written = profile.Profile(data).save()
    assert written == profile_file == profile.default_path()
    found = profile.read(written)
    assert {k: v for k, v in found.data.items() if k != "sha256"} == {
        k: v for k, v in data.items() if k != "sha256"
    }
    assert found.name == "mine"
    assert profile.current().name == "mine"


def test_only_the_user_may_read(data, tmp_path, monkeypatch):
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
    assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
    for file in (path, elsewhere):
        assert stat.S_IMODE(file.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(file.stat().st_mode) == 0o600


WRITER = """
import json, sys
from hetero import profile
path, number = sys.argv[1], int(sys.argv[2])
data = profile.shipped("conservative").data
for turn in range(40):
    # Files of different lengths: a torn write would not pass the checksum.
    content = {**data, "name": f"{number}", "notes": "x" * 5000 * (number + turn % 3)}
    profile.Profile(content).save(path)
    assert profile.read(path).name in set("123"), "torn"
"""


def test_writers_in_several_processes(tmp_path):
    path = tmp_path / "profile.json"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(path), str(number)], stderr=subprocess.PIPE
        )
        for number in (1, 2, 3)
    ]
    while any(w.poll() is None for w in writers):
        if path.exists():
            profile.read(path)  # raises where half a file shows
    for writer in writers:
        assert writer.wait() == 0, writer.stderr.read().decode()
        writer.stderr.close()
    assert {f.name for f in tmp_path.iterdir()} == {"profile.json", "profile.json.lock"}


def test_the_lock_is_not_opened_through_a_link(data, tmp_path):
    victim = tmp_path / "victim"
    victim.write_text("precious")
    target = tmp_path / "shared" / "p.json"
    target.parent.mkdir()
    (target.parent / "p.json.lock").symlink_to(victim)
    with pytest.raises(OSError, match=r"p\.json\.lock"):
        profile.Profile(data).save(target)
    assert victim.read_text() == "precious"
    assert not target.exists()


def test_a_lock_that_is_no_file(data, tmp_path):
    os.mkfifo(tmp_path / "p.json.lock")
    with pytest.raises(OSError, match="regular file"):
        profile.Profile(data).save(tmp_path / "p.json")


def test_without_locks_only_old_temporary_files_are_swept(data, tmp_path, monkeypatch):
    """A young one may be another process's, which is writing it."""

    def no_locks(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(paths.fcntl, "flock", no_locks)
    for name, age in (("young", 60), ("old", 7200)):
        file = tmp_path / f"p.json.{name}.hetero-tmp"
        file.write_text("half a profile")
        os.utime(file, (time.time() - age,) * 2)
    profile.Profile(data).save(tmp_path / "p.json")
    assert set(os.listdir(tmp_path)) == {"p.json", "p.json.lock", "p.json.young.hetero-tmp"}


@pytest.mark.parametrize("there", [True, False])
def test_a_profile_that_is_a_link_stays_one(data, there, tmp_path, monkeypatch):
    """As in a folder of settings under version control, say."""
    real = tmp_path / "elsewhere" / "real.json"
    if there:
        write(real, data)
    (tmp_path / "p.json").symlink_to("elsewhere/real.json")
    assert profile.Profile({**data, "name": "new"}).save(tmp_path / "p.json") == real
    assert (tmp_path / "p.json").is_symlink()
    assert profile.read(real).name == "new"
    assert set(os.listdir(tmp_path)) == {"p.json", "elsewhere"}
    assert set(os.listdir(real.parent)) == {"real.json", "real.json.lock"}


def test_another_users_link_is_not_followed(data, tmp_path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a link away")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "p.json").symlink_to("victim")
    os.chown(tmp_path / "p.json", 12345, -1, follow_symlinks=False)
    profile.Profile(data).save(tmp_path / "p.json")
    assert (tmp_path / "victim").read_text() == "precious"


@pytest.mark.parametrize("place", ["/proc/nowhere/p.json", "/dev/null/p.json", "/"])
def test_where_nothing_can_be_stored(place):
    with pytest.raises(OSError, match=r"."):
        profile.place(place)


def test_a_used_profile_can_be_pickled_and_copied(data):
    found = profile.Profile(data)
    planner.price(hetero.ops.matmul.problem(A, A.T), found, inventory.devices())
    found.pack(100)
    for again in (pickle.loads(pickle.dumps(found)), copy.copy(found), copy.deepcopy(found)):
        assert again.data == found.data
        assert again.name == "mine"
        assert again.pack(100) == found.pack(100)


# -- Reading -------------------------------------------------------------------------------------


def test_no_file_gives_one_hint(profile_file, warnings_of, opencl):
    use_it(opencl)
    profile.current()
    (hint,) = warnings_of()
    assert "hetero.calibrate()" in hint
    assert profile.current().name == "conservative"
    assert not profile_file.exists()


@pytest.mark.parametrize("setup", ["", "import logging; logging.basicConfig(format='%(message)s')"])
def test_a_line_of_the_log_has_the_name_where_nobody_set_up_logging(setup, tmp_path):
    code = f"{setup}\nimport numpy as np, hetero\nhetero.plan('matmul', np.eye(3), np.eye(3))"
    done = processes.python("-c", code, HETERO_PROFILE=str(tmp_path / "typo.json"))
    assert done.stderr.startswith("HETERO_PROFILE" if setup else "hetero: HETERO_PROFILE")


def test_a_folder_that_may_not_be_looked_into(tmp_path, monkeypatch, warnings_of):
    closed = str(tmp_path / "closed")
    monkeypatch.setenv("HETERO_PROFILE", f"{closed}/profile.json")

    def refusing(look):
        def refused(path, *arguments, **options):
            if str(path).startswith(closed):
                raise PermissionError(errno.EACCES, "Permission denied", str(path))
            return look(path, *arguments, **options)

        return refused

    for name in ("stat", "lstat", "open"):
        monkeypatch.setattr(os, name, refusing(getattr(os, name)))
    profile.set_current(None)
    tables.forget()
    assert hetero.matmul(np.eye(3), np.eye(3)).trace() == 3
    assert hetero.plan("matmul", np.eye(3), np.eye(3)).chosen.method == "blas"
    (text,) = warnings_of()
    assert "Permission denied" in text


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nowhere"])
def test_no_directory_to_write_to(place, monkeypatch, warnings_of, opencl):
    monkeypatch.delenv("HETERO_PROFILE")
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    profile.set_current(None)
    use_it(opencl)
    assert len(warnings_of()) == 1


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
    "bit flipped": (flipped, "sha256"),
    "no checksum": (lambda d: json.dumps(d).encode(), "sha256"),
    "no schema": (
        lambda d: {k: v for k, v in d.items() if k != "schema_version"},
        "schema_version",
    ),
    "newer schema": (lambda d: {**d, "schema_version": 99}, "schema_version"),
    "no links": (lambda d: {k: v for k, v in d.items() if k != "links"}, "'links'"),
    "time a number": (lambda d: {**d, "created": 5}, "created"),
    "other CPU": (lambda d: spoiled(d, "fingerprint", "cpu", "name", "Z80"), "cpu name"),
}
CONSTANTS = ("models", CPU_MODEL)
WAVES = {"overhead": 1e-6, "axes": [[16, 256]] * 3, "ratios": [1.0] * 8}
SURFACE = {"overhead": 0.0, "axes": [[1, 99], [1, 99], [1, 99]], "seconds": [1.0] * 8}

FILTERS = {"kind": "filter", "unit": 1e9, "a": None, "b": 1.0, "c": 1.0, "least": 1.0}


def model(form, **constants):
    return {"form": form, "constants": constants}


def segments(**changes):
    one = {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": 1e-6}
    return {"form": "segments", "constants": [{**one, **changes}]}


# name -> (where in the content, with what value)
DEEP = {
    "model a number": (*CONSTANTS, 3),
    "unknown form": (*CONSTANTS, model("tea leaves")),
    "constants a list": (*CONSTANTS, "constants", []),
    "overhead negative": (*CONSTANTS, "constants", "overhead", -1.0),
    "rate negative": (*CONSTANTS, "constants", "flops_per_second", -5.0),
    "table without knots": (*CONSTANTS, model("table", **{**SURFACE, "axes": [[], [], []]})),
    "table without ratios": (*CONSTANTS, model("table", overhead=0.0, axes=WAVES["axes"])),
    "table that turns back": (*CONSTANTS, model("table", **{**SURFACE, "axes": [[9, 1]] * 3})),
    "table of no time": (*CONSTANTS, model("table", **{**SURFACE, "seconds": [0.0] * 8})),
    "model of no operation": ("models", "nonsense", model("roofline")),
    "devices of numbers": ("devices", {"cpu": 5}),
    "device the same as a list": ("devices", {"opencl:0": {"kind": "opencl", "same_as": ["x"]}}),
    "memory in words": ("devices", {"cpu": {"kind": "cpu", "memory_bytes": "much"}}),
    "errors without a mean": (*CONSTANTS, "residuals", {"p95": 0.1}),
    "errors in words": (*CONSTANTS, "residuals", {"mean": 0.1, "p95": "small"}),
    "filters' bandwidth null": (*CONSTANTS, model("bandwidth", overhead=0.0, bandwidth=FILTERS)),
    "link a number": ("links", "opencl:*", 5),
    "link without segments": (
        "links",
        "opencl:0",
        {"upload": {"pageable": {"form": "segments", "constants": []}}},
    ),
    "dispatch of text": ("host", "dispatch", {"opencl:0": {"host": "x"}}),
    "no pack": ("host", {}),
}


def test_models_of_an_operation_that_is_unknown_here_are_kept(data, profile_file, warnings_of):
    """Another version's, say; the rest is used."""
    unknown = "cpu|sorting|bitonic|float32|*"
    write(profile_file, spoiled(data, "models", unknown, model("table", **SURFACE)))
    assert profile.current().name == data["name"]
    assert warnings_of() == []
    hetero.matmul(np.eye(3), np.eye(3))
    assert unknown in profile.read(profile.current().save()).data["models"]
    assert profile.current().dtypes()["sorting"] == {"float32"}


def test_a_model_of_other_dimensions_prices_nothing(data, profile_file):
    """It is right by its own form; that the operation has others shows when it is asked."""
    two = {"overhead": 0.0, "axes": [[1, 99]] * 2, "seconds": [1.0] * 4}
    write(profile_file, spoiled(data, *CONSTANTS, model("table", **two)))
    operand = hetero.spec((9, 9), "float32")
    assert hetero.plan("matmul", operand, operand, device="cpu").chosen.seconds is None


# Those of another machine can be read all the same.
UNREADABLE = list(DAMAGE)[: list(DAMAGE).index("other CPU")]


@pytest.mark.parametrize("case", [*DAMAGE, *DEEP])
def test_damage_gives_one_warning(case, data, profile_file, warnings_of, opencl):
    """And an error where the file is asked for by name."""
    damage, named = DAMAGE.get(case) or (lambda d: spoiled(d, *DEEP[case]), "")
    write(profile_file, damage(data))
    use_it(opencl)
    (text,) = warnings_of()
    assert str(profile_file) in text
    assert named in text
    assert "\n" not in text
    assert profile.current().name == "conservative"
    if case in UNREADABLE or case in DEEP:
        with pytest.raises(ProfileError):
            profile.named(str(profile_file))


# name -> (makes it at a path, what the warning must name)
def _fifo(path):
    os.mkfifo(path)


def _large(path):
    with open(path, "wb") as file:
        file.truncate(200 << 20)


def _anybodys(path):
    path.write_bytes(profile.encode(profile.shipped("conservative").data))
    path.chmod(0o666)


def _theirs(path):
    path.write_bytes(profile.encode(profile.shipped("conservative").data))
    path.parent.chmod(0o1777)
    os.chown(path, 12345, -1)


NO_FILES = {
    "FIFO": (_fifo, "regular file"),
    "directory": (lambda path: path.mkdir(), "regular file"),
    "device": (lambda path: path.symlink_to("/dev/zero"), "regular file"),
    "200 MB": (_large, "at most"),
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


def test_a_profile_of_the_whole_machine_is_believed(data, profile_file, warnings_of):
    """One that an administrator, root or not, put where only he may write."""
    write(profile_file, data)
    if os.geteuid() == 0:
        os.chown(profile_file, 12345, -1)
    profile_file.chmod(0o644)
    profile_file.parent.chmod(0o755)
    assert profile.current().name == "mine"
    assert not warnings_of()


def test_nesting_of_any_depth_gives_one_warning(profile_file, warnings_of, data):
    """What can be read can still be nested too deeply for what comes after reading."""
    for depth in (*range(sys.getrecursionlimit() - 300, sys.getrecursionlimit() + 10), 100000):
        nested = b"[" * depth + b"]" * depth
        with pytest.raises(ProfileError):
            profile.parse(b'{"schema_version": 3, "sha256": "", "name": %s}' % nested)
    write(profile_file, b'{"schema_version": 3, "name": %s}' % nested)
    assert profile.current().name == "conservative"
    assert len(warnings_of()) == 1


def test_shipped_profiles():
    for name in ("conservative", "tesla-t10"):
        assert profile.named(name).name == name
    with pytest.raises(ProfileError, match=r"'conservative', .*'tesla-t10'.*, got 'nonsense'"):
        profile.named("nonsense")


# -- Looking up ----------------------------------------------------------------------------------


def test_which_model_answers(data):
    def roof(seconds):
        return model("roofline", overhead=seconds, flops_per_second=1e9, bytes_per_second=1e9)

    names = ["gpu:0|matvec|tiled|float32|C odd", "gpu:0|matvec|tiled|float32|C"]
    names += ["gpu:0|matvec|tiled|float32|* odd", "gpu:0|matvec|tiled|float32|*"]
    names += ["gpu:*|matvec|tiled|float32|C odd", "gpu:*|matvec|tiled|float32|*"]
    for first in range(len(names)):
        models = {name: roof(float(i)) for i, name in enumerate(names) if i >= first}
        found = profile.Profile({**data, "models": models})
        cost = found.cost("gpu:0", "gpu", "matvec", "tiled", "float32", "C odd")
        work = hetero.ops.matvec.problem(A, A[0])
        implementation = hetero.registry.lookup("matvec")[0]
        assert cost(implementation.work(work, {}))[0] == float(first)
    assert profile.Profile({**data, "models": {}}).cost("a", "b", "c", "d", "e", "f") is None


def test_a_folder_with_a_profiles_name_hides_it_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "h200").mkdir()
    assert profile.named("h200").name == "h200"
    (tmp_path / "mine").mkdir()
    with pytest.raises(ProfileError, match="regular file"):
        profile.named("mine")
