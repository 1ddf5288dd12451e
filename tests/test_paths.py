"""Folders and files that only this user can have written, and what is kept in them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import time

import pytest

from hetero import paths


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The cache directory, below a folder of this test's own; not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hetero"


def test_a_private_folder_is_made_private(home):
    old = os.umask(0)
    try:
        folder = paths.private_folder("cubin", "sm_90")
    finally:
        os.umask(old)
    assert folder == home / "cubin" / "sm_90"
    for made in (home, home / "cubin", folder):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert paths.private_folder("cubin", "sm_90") == folder
    assert paths.private_folder("x", root=home / "other") == home / "other" / "x"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o777])
@pytest.mark.parametrize("which", [(), ("cubin",)])
def test_a_folder_that_others_may_write_to_is_refused(mode, which, home, warnings_of):
    paths.private_folder("cubin")
    home.joinpath(*which).chmod(mode)
    assert paths.private_folder("cubin") is None
    assert paths.private_folder("cubin") is None
    (text,) = warnings_of()
    assert f"{mode:o}" in text
    home.joinpath(*which).chmod(0o755)
    assert paths.private_folder("cubin") is not None, "others may read"


def test_a_folder_that_anybody_may_replace_is_refused(home):
    home.parent.chmod(0o777)
    assert paths.private_folder("cubin") is None
    home.parent.chmod(0o1777)  # as /tmp: only its owner may
    assert paths.private_folder("cubin") is not None


@pytest.mark.parametrize("which", ["folder", "link", "leads to"])
def test_what_belongs_to_somebody_else_is_refused(which, home, monkeypatch):
    home.mkdir(parents=True)
    other = home.parent / "elsewhere"
    other.mkdir()
    (home / "cubin").symlink_to(other)
    assert paths.private_folder("cubin") == home / "cubin", "one's own link is followed"
    if os.geteuid() == 0:
        victim = {"folder": home, "link": home / "cubin", "leads to": other}[which]
        os.chown(victim, 12345, -1, follow_symlinks=False)
    else:
        real = {"lstat": os.lstat, "stat": os.stat}
        name = "lstat" if which == "link" else "stat"
        strange = home if which == "folder" else home / "cubin"

        def look(path, *args, **kwargs):
            found = list(real[name](path, *args, **kwargs))
            if os.fspath(path) == os.fspath(strange):
                found[stat.ST_UID] = 12345
            return os.stat_result(found)

        monkeypatch.setattr(os, name, look)
    assert paths.private_folder("cubin") is None


def test_nowhere_to_write(monkeypatch):
    for place in ("/dev/null/x", "/proc/nowhere"):
        monkeypatch.setenv("XDG_CACHE_HOME", place)
        assert paths.private_folder("cubin") is None
        paths.cache("cubin", "a", b"x")
        assert paths.cached("cubin", "a") is None


def test_a_relative_cache_variable_is_ignored(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_directory() == tmp_path / ".cache" / "hetero"


def test_a_user_without_a_home(monkeypatch, tmp_path):
    """No HOME and no entry among the users: not a folder called "~" in the current one."""
    import pwd

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert paths.cache_directory() == tmp_path / f"hetero-{os.getuid()}"


# -- Kept files ----------------------------------------------------------------------------------


def test_what_is_kept_is_found_again(home):
    assert paths.cached("cubin", "a") is None
    paths.cache("cubin", "a", b"1")
    paths.cache("cubin", "b", b"")
    paths.cache("cubin", "a", b"2")
    assert (paths.cached("cubin", "a"), paths.cached("cubin", "b")) == (b"2", b"")
    assert paths.cached("numba", "a") is None
    assert {f.name for f in home.rglob("*") if f.is_file()} == {"a", "b", "key", "key.lock"}
    for file in home.rglob("*"):
        assert not file.stat().st_mode & 0o077


def test_a_changed_file_is_not_believed(home):
    content = bytes(range(256))
    paths.cache("cubin", "a", content)
    file = home / "cubin" / "a"
    whole = file.read_bytes()
    for position in range(0, len(whole), 7):
        file.write_bytes(whole[:position] + bytes([whole[position] ^ 1]) + whole[position + 1 :])
        assert paths.cached("cubin", "a") is None
        file.write_bytes(whole[:position])
        assert paths.cached("cubin", "a") is None
    file.write_bytes(whole)
    assert paths.cached("cubin", "a") == content
    (home / "cubin" / "b").write_bytes(whole)
    assert paths.cached("cubin", "b") is None, "in another's place"


def test_a_file_cannot_bring_its_own_digest(home, monkeypatch):
    """One made by whoever does not know this user's key."""
    paths.cache("cubin", "a", b"mine")
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent / "theirs"))
    paths.cache("cubin", "a", b"theirs")
    theirs = (home.parent / "theirs" / "hetero" / "cubin" / "a").read_bytes()
    monkeypatch.setenv("XDG_CACHE_HOME", str(home.parent))
    (home / "cubin" / "a").write_bytes(theirs)
    assert paths.cached("cubin", "a") is None


@pytest.mark.parametrize("key", [b"", b"short", None])
def test_a_lost_key_loses_what_was_kept_and_no_more(key, home):
    paths.cache("cubin", "a", b"1")
    (home / "key").unlink()
    if key is not None:
        (home / "key").write_bytes(key)
    assert paths.cached("cubin", "a") is None
    paths.cache("cubin", "a", b"1")
    assert paths.cached("cubin", "a") == b"1"


def test_nothing_is_read_from_or_written_to_a_folder_of_others(home):
    paths.cache("cubin", "a", b"1")
    (home / "cubin").chmod(0o777)
    assert paths.cached("cubin", "a") is None
    paths.cache("cubin", "b", b"1")
    assert not (home / "cubin" / "b").exists()


def spoil(file, how):
    """Make a file one that others may have put there while they could write to the folder."""
    if how == "writable by others":
        file.chmod(0o602)
    elif how == "writable by the group":
        file.chmod(0o620)
    elif how == "a link":
        file.rename(file.with_name("elsewhere"))
        file.symlink_to("elsewhere")
    elif how == "a pipe":
        file.unlink()
        os.mkfifo(file)
    elif os.geteuid() == 0:
        os.chown(file, 12345, -1)
    else:
        pytest.skip("only root can give a file away")


@pytest.mark.parametrize("which", ["key", "cubin/a"])
@pytest.mark.parametrize(
    "how", ["another user's", "writable by others", "writable by the group", "a link", "a pipe"]
)
def test_a_file_that_others_may_have_written_is_not_believed(which, how, home):
    """Though the folder is this user's alone by now, and the digest is right."""
    paths.cache("cubin", "a", b"1")
    key = (home / "key").read_bytes()
    spoil(home / which, how)
    assert paths.cached("cubin", "a") is None
    paths.cache("cubin", "a", b"2")
    assert paths.cached("cubin", "a") == b"2", "it is replaced"
    assert ((home / "key").read_bytes() == key) == (which != "key")


def test_a_full_disk_costs_time_only(home, monkeypatch):
    paths.cache("cubin", "a", b"1")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    paths.cache("cubin", "a", b"2")
    monkeypatch.undo()
    assert [f.name for f in (home / "cubin").iterdir()] == ["a"]


def test_temporary_files_of_killed_processes_are_swept(tmp_path):
    old, young, longer = (f"{name}.hetero-tmp" for name in ("a.x", "a.y_1", "a.b.z"))
    theirs = {"a.txt", "a.notes.tmp", "a.notes.hetero-tmp.txt", "a.My notes.hetero-tmp"}
    for name in {old, young, longer, *theirs}:
        (tmp_path / name).write_bytes(b"")
        if name != young:
            os.utime(tmp_path / name, (time.time() - 7200,) * 2)
    paths.sweep(tmp_path, "a", 3600.0)
    assert set(os.listdir(tmp_path)) == {young, longer, *theirs}, "a.b is another file"
    paths.sweep(tmp_path, "a.b", 3600.0)
    assert set(os.listdir(tmp_path)) == {young, *theirs}
    paths.sweep(tmp_path, "b", 0.0)
    paths.sweep(tmp_path, "a", 0.0)
    assert set(os.listdir(tmp_path)) == theirs


def test_processes_that_make_the_key_at_once_agree(home):
    code = "import sys; from hetero import paths; paths.cache('k', sys.argv[1], b'x')"
    names = [str(n) for n in range(4)]
    running = [subprocess.Popen([sys.executable, "-c", code, name]) for name in names]
    assert [process.wait(60) for process in running] == [0] * 4
    assert [paths.cached("k", name) for name in names] == [b"x"] * 4


# -- What nobody uses ------------------------------------------------------------------------------

DAY = 86400.0


@pytest.fixture
def kept(home, monkeypatch):
    """``kept(name, days)``: a file that was last used so long ago; and a process that writes."""

    def keep(name, days, content=b"x"):
        paths.cache("cubin", name, content)
        then = time.time() - days * DAY
        os.utime(home / "cubin" / name, (then, then))
        return home / "cubin" / name

    def write():
        monkeypatch.setattr(paths, "_swept", set())  # as in another process
        paths.cache("cubin", "new", b"x")
        return {path.name for path in (home / "cubin").iterdir()}

    keep.write = write
    return keep


def test_what_was_not_used_for_long_is_removed(kept):
    lock = kept("old.lock", 400)
    kept("old", 31)
    kept("younger", 29)
    kept("killed.x.hetero-tmp", 1)
    assert kept.write() == {lock.name, "younger", "new"}
    assert paths.cached("cubin", "old") is None


def test_what_is_used_stays(kept):
    """Noting a use costs a change of the file once a day."""
    read, today = kept("read", 29), kept("today", 0.5)
    before = today.stat().st_mtime
    assert paths.cached("cubin", "read") == paths.cached("cubin", "today") == b"x"
    assert time.time() - read.stat().st_mtime < 60.0
    assert today.stat().st_mtime == before


def test_beyond_a_size_the_oldest_goes(kept, monkeypatch):
    monkeypatch.setattr(paths, "_MOST", 3500)
    for days in (5, 2, 4, 3):
        kept(f"{days} days", days, bytes(1000))
    assert kept.write() == {"2 days", "3 days", "4 days", "new"}


def test_what_another_process_removed_first_is_no_obstacle(kept, monkeypatch):
    kept("a", 50), kept("b", 40)
    unlink = type(kept("c", 35)).unlink

    def late(path, **options):
        unlink(path)
        unlink(path, **options)

    monkeypatch.setattr(paths.Path, "unlink", late)
    assert kept.write() == {"new"}
