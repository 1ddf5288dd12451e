"""The CPU's compiled loops on disk: found again, never a reason to fail, never run damaged."""

from __future__ import annotations

import ast
import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import numba
import pytest

from hetero.host import threads
from hetero.host.compiled import numba_cache, parts, sources
from hetero.kernels.common import boundaries
from hetero.kernels.cpu import convolve

SOURCE = """
from hetero.host import threads
from .helper import FACTOR

@threads.serial
def times(x):
    return FACTOR * x
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where loops are kept in this test; not there yet."""
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "hetero" / "numba"


@pytest.fixture
def load(tmp_path, monkeypatch):
    """``load(factor)``: the loop as a new process has it, with this constant in another source."""
    package = tmp_path / "loops"
    package.mkdir()
    (package / "__init__.py").write_text("")
    # Sources change within a second here, which bytecode does not show.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)

    def loaded(factor=2, source=SOURCE):
        (package / "helper.py").write_text(f"FACTOR = {factor}\n")
        (package / "times.py").write_text(source)
        numba_cache._digest.cache_clear()
        for name in ("loops", "loops.helper", "loops.times"):
            path = package / f"{name.partition('.')[2] or '__init__'}.py"
            spec = importlib.util.spec_from_file_location(name, path)
            module = importlib.util.module_from_spec(spec)
            monkeypatch.setitem(sys.modules, name, module)
            spec.loader.exec_module(module)
        return module.times

    return loaded


def hits(loop):
    return sum(loop._cache_hits.values())


def test_a_compiled_loop_is_found_again(folder, load):
    first = load()
    assert first(3) == 6
    (file,) = folder.iterdir()
    assert file.name.startswith("times-")
    second = load()
    assert second(3) == 6
    assert (hits(first), hits(second)) == (0, 1)
    assert second(1.5) == 3.0
    assert len(list(folder.iterdir())) == 2, "one for each combination of types"


def test_what_the_code_is_made_of_makes_another_file(folder, load):
    assert load()(3) == 6
    assert load(factor=5)(3) == 15, "a constant of another source"
    assert load(source=SOURCE.replace("FACTOR *", "1 + FACTOR *"))(3) == 7
    unkept = SOURCE.replace("from hetero.host import threads", "import numba")
    changed = load(source=unkept.replace("threads.serial", "numba.njit"))
    assert changed(3) == 6
    assert len(list(folder.iterdir())) == 3
    assert hits(load()) == 0
    assert load()(3) == 6
    assert len(list(folder.iterdir())) == 3


def test_code_of_stale_bytecode_is_neither_kept_nor_used(folder, load, tmp_path, monkeypatch):
    """Python runs an earlier text where a source changed within the second of its bytecode."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    helper = tmp_path / "loops" / "helper.py"
    assert load()(3) == 6
    (bytecode,) = helper.parent.joinpath("__pycache__").glob("helper.*")
    begin = helper.stat().st_mtime_ns // 10**9 * 10**9
    os.utime(bytecode, ns=(begin, begin))
    write_text = Path.write_text

    def write_within_the_second(path, text):
        write_text(path, text)
        os.utime(path, ns=(begin + 1, begin + 1))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", write_within_the_second)
        loop = load(factor=5)
        assert (loop(3), hits(loop)) == (6, 0), "what Python runs"
    bytecode.unlink()
    assert load(factor=5)(3) == 15, "of the new text"


def test_options_are_told_apart(folder, load):
    function, names = load().py_func, set()
    for options in ({}, {"parallel": True}, {"fastmath": {"nsz", "contract"}}):
        loop = numba_cache.njit(function, **options)
        names.add(loop._cache._name((numba.float64,), loop.targetctx.codegen()))
    assert None not in names
    assert len(names) == 3


def test_a_damaged_file_is_compiled_anew(folder, load):
    load()(3)
    (file,) = folder.iterdir()
    whole = file.read_bytes()
    damaged = [b"", whole[:100], whole[:-1]]
    damaged += [whole[:at] + b"\xcc\xcc\xcc\xcc" + whole[at + 4 :] for at in (0, 40, 2000)]
    for content in damaged:
        file.write_bytes(content)
        loop = load()
        assert loop(3) == 6
        assert hits(loop) == 0
        again = load()
        assert (again(3), hits(again)) == (6, 1), "what was compiled has taken its place"


def test_code_for_another_mathematical_library_is_not_loaded(folder, load, monkeypatch):
    """With Intel's SVML Numba makes calls that need it."""
    load()(3)
    monkeypatch.setattr(numba.core.config, "USING_SVML", not numba.core.config.USING_SVML)
    loop = load()
    assert (loop(3), hits(loop)) == (6, 0)
    assert len(list(folder.iterdir())) == 2


def test_what_cannot_be_loaded_is_compiled_anew(folder, load, monkeypatch):
    """As by a Numba that wants something else, or lacks a library that the code calls."""
    load()(3)

    def broken(*_):
        raise RuntimeError("unresolved symbol")

    with monkeypatch.context() as patch:
        patch.setattr(numba_cache.CompileResult, "_rebuild", broken)
        loop = load()
        assert (loop(3), hits(loop)) == (6, 0)


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nowhere"])
def test_nowhere_to_write(place, load, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    monkeypatch.setenv("XDG_CACHE_HOME", place)
    monkeypatch.setenv("HOME", place)
    assert load()(3) == 6


def test_a_full_disk(folder, load, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    assert load()(3) == 6
    assert not list(folder.iterdir())


def test_files_that_others_may_have_written_are_not_run(folder, load):
    load()(3)
    folder.chmod(0o777)
    loop = load()
    assert (loop(3), hits(loop)) == (6, 0)


def test_numbas_own_variable_names_another_place(folder, load, tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "theirs"))
    load()(3)
    assert len(list((tmp_path / "theirs" / "hetero" / "numba").iterdir())) == 1
    assert not folder.exists()


NAME = """
import numba, hetero.ops
from hetero.kernels.cpu import multigrid as cpu_multigrid
loop = cpu_multigrid.{loop}.__wrapped__
from hetero.host.compiled import numba_cache, parts
kept = numba_cache.njit(loop, **parts.OPTIONS)
print(kept._cache._name((numba.float64[::1],) * 3, kept.targetctx.codegen()))
"""


def test_every_process_gives_the_same_name():
    loop = "sweep"
    names = [
        subprocess.run(
            [sys.executable, "-c", NAME.format(loop=loop)],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        ).stdout
        for seed in ("1", "2")
    ]
    assert names[0] == names[1]
    assert loop in names[0]


def test_every_source_that_a_loop_is_made_of_is_seen():
    """Those whose names are imported, as Python's own grammar has it, wherever they lie."""
    files = sorted(Path(convolve.__file__).parent.glob("*.py"))
    expected, waiting = set(), list(files)
    while waiting:
        file = waiting.pop()
        if file not in expected:
            expected.add(file)
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and node.level and node.module:
                    name = importlib.util.resolve_name(
                        f"{'.' * node.level}{node.module}", package_of(file)
                    )
                    waiting.append(Path(importlib.util.find_spec(name).origin))
                elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("hetero."):
                    waiting.append(Path(importlib.util.find_spec(node.module).origin))
    assert set(sources.made_of(files)) == expected
    assert {Path(parts.__file__), Path(threads.__file__)} < expected
    assert Path(boundaries.__file__) in sources.made_of([Path(convolve.__file__)])
    assert len(files) > 10


def package_of(file):
    return f"hetero.kernels.{file.parent.name}"


CALLS = """
import numpy as np, hetero
from hetero.kernels.cpu import vectors as cpu_vectors
A = np.arange(12.0).reshape(3, 4)
assert np.array_equal(hetero.matmul(A, A.T), A @ A.T)
assert cpu_vectors.norm(np.full(4, 3.0)) == 6.0
"""
OBSTACLES = {
    # As in many a container: neither the home directory nor the package may be written to.
    "nowhere to write": """
import os, sys
def refuse(event, arguments):
    writes = event == "open" and (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if (writes and arguments[0] != os.devnull) or event == "os.mkdir":
        raise PermissionError(13, "Permission denied", str(arguments[0]))
sys.addaudithook(refuse)
""",
    # As on a full disk: files can be made, and nothing goes into them.
    "no room": """
import resource
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
""",
}


@pytest.mark.parametrize("obstacle", OBSTACLES)
def test_nothing_can_be_kept(obstacle, tmp_path):
    environment = {k: v for k, v in os.environ.items() if k not in ("HOME", "NUMBA_CACHE_DIR")}
    done = subprocess.run(
        [sys.executable, "-c", OBSTACLES[obstacle] + CALLS],
        env={**environment, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    left = [f for f in (tmp_path / "hetero").rglob("*") if f.is_file()]
    assert not [f for f in left if "pyopencl" not in f.parts]  # which keeps its own, by SQLite
