"""Folders and files that only this user can have written, and what is kept in them."""

from __future__ import annotations

import os
import time

import pytest

from hetero import paths


@pytest.fixture
def home(tmp_path, monkeypatch):
    """The cache directory, below a folder of this test's own; not there yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "hetero"


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o720, 0o777])
@pytest.mark.parametrize("which", [(), ("cubin",)])
def test_a_folder_that_others_may_write_to_is_refused(mode, which, home, warnings_of):
    paths.private_folder("cubin")
    home.joinpath(*which).chmod(mode)
    assert paths.private_folder("cubin") is None
    assert paths.private_folder("cubin") is None
    (text, *_) = warnings_of()
    assert f"{mode:o}" in text
    paths.cache("cubin", "b", b"1")
    assert paths.cached("cubin", "b") is None
    home.joinpath(*which).chmod(0o755)
    assert paths.private_folder("cubin") is not None, "others may read"
    home.parent.chmod(0o777)
    assert paths.private_folder("cubin") is None, "anybody may replace it"
    home.parent.chmod(0o1777)  # as /tmp: only its owner may
    assert paths.private_folder("cubin") is not None


def test_where_the_cache_lies(monkeypatch, tmp_path):
    import pwd

    monkeypatch.setenv("XDG_CACHE_HOME", "cache")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert paths.cache_directory() == tmp_path / ".cache" / "hetero", "a relative one is ignored"

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", nobody)
    folder = paths.cache_directory()
    assert folder.is_absolute()
    assert folder.name == f"hetero-{os.getuid()}", "no folder called ~ in the current one"


def test_what_is_kept_is_found_again(home):
    assert paths.cached("cubin", "a") is None
    paths.cache("cubin", "a", b"1")
    paths.cache("cubin", "b", b"")
    paths.cache("cubin", "a", b"2")
    assert (paths.cached("cubin", "a"), paths.cached("cubin", "b")) == (b"2", b"")
    assert paths.cached("numba", "a") is None
    assert {f.name for f in home.rglob("*") if f.is_file()} == {"a", "b"}
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


def give_away(path):
    if os.geteuid() != 0:
        pytest.skip("only root can give a file away")
    os.chown(path, 12345, -1, follow_symlinks=False)


# What makes a file one that others may have put there while they could write to the folder.
SPOILED = {
    "another user's": give_away,
    "writable by others": lambda file: file.chmod(0o602),
    "writable by the group": lambda file: file.chmod(0o620),
    "a link": lambda file: file.symlink_to(file.rename(file.with_name("elsewhere"))),
    "a pipe": lambda file: (file.unlink(), os.mkfifo(file)),
}


@pytest.mark.parametrize("how", SPOILED)
def test_a_file_that_others_may_have_written_is_not_believed(how, home):
    """Though the folder is this user's alone by now, and the digest is right."""
    paths.cache("cubin", "a", b"1")
    SPOILED[how](home / "cubin" / "a")
    assert paths.cached("cubin", "a") is None
    paths.cache("cubin", "a", b"2")
    assert paths.cached("cubin", "a") == b"2", "it is replaced"


@pytest.mark.parametrize("which", ["folder", "link", "leads to"])
def test_a_folder_of_somebody_else_is_refused(which, home):
    other = home.parent / "elsewhere"
    home.mkdir()
    other.mkdir()
    (home / "cubin").symlink_to(other)
    assert paths.private_folder("cubin") == home / "cubin", "one's own link is followed"
    give_away({"folder": home, "link": home / "cubin", "leads to": other}[which])
    assert paths.private_folder("cubin") is None


def test_the_oldest_files_beyond_a_size_are_removed(home, monkeypatch):
    for name, days in {"a": 3, "b": 1, "c": 2}.items():
        paths.cache("cubin", name, bytes(100))
        then = time.time() - days * 86400.0
        os.utime(home / "cubin" / name, (then, then))
    monkeypatch.setattr(paths, "_swept", set())  # as in another process
    monkeypatch.setattr(paths, "_MOST", 300)
    paths.cache("cubin", "new", b"x")
    assert {path.name for path in (home / "cubin").iterdir()} == {"b", "c", "new"}
