"""Scripts run by ``python -m hetero.accel``: they end, import, fork and pickle as by ``python``."""

from __future__ import annotations

import json
import os
import py_compile
import re
import signal
import subprocess
import sys
import sysconfig
import time
import zipapp
from pathlib import Path

import pytest

import hetero
from hetero import cli
from hetero.accel.__main__ import main
from hetero.arrays import kept
from hetero.errors import readable

SCRIPTS = {
    "exits": ("import sys; print(sys.argv[1:]); sys.exit(int(sys.argv[1]))", ("7",), 7),
    "raises": ("def f(): raise KeyError('x')\ntry: f()\nexcept KeyError: 1 / 0", (), 1),
    "has a hook": (
        "import sys\ndef show(kind, error, at): print(kind, at.tb_frame.f_code, error, file="
        "sys.stderr)\nsys.excepthook = show\nint('x')", (), 1),
    "is warned": (
        "from scipy.signal import convolve\nimport numpy as np\n"
        "A = np.full((300, 300), np.nan)\nfor _ in 1, 2: convolve(A, A)\nconvolve(A, A)", (), 0),
    "is wrong": ("x = (\n1", (), 1),
    "is interrupted": ("raise KeyboardInterrupt", (), -signal.SIGINT),
    "exits with words": ("raise SystemExit('words')", (), 1),
    "ends at once": ("import os; os._exit(5)", (), 5),
    "is main": (
        "'Mine.'\nimport sys\nprint(__file__, sys.argv, sys.path[0], type(__builtins__), "
        "sorted(n for n in globals() if n != '__annotations__'), __doc__, __spec__, __package__)",
        (), 0),
    "forks": (
        "import os, numpy as np\npid = os.fork()\nprint((np.eye(300) @ np.eye(300)).sum())\n"
        "if pid: print(os.waitpid(pid, 0)[1])\nelse: os._exit(0)", (), 0),
    "shares work": (
        "import multiprocessing as m\ndef f(x): return x * x\nif __name__ == '__main__':\n"
        "    for how in ('fork', 'spawn'):\n"
        "        with m.get_context(how).Pool(2) as pool: print(pool.map(f, [1, 2]))", (), 0),
    "ends in a handler": ("import atexit\natexit.register(lambda: print(y))\ny = 3", (), 0),
}  # fmt: skip


FINDS_HETERO = {**os.environ, "PYTHONPATH": str(Path(hetero.__file__).parents[1])}


def run(command, file, *arguments, **options):
    given = [sys.executable, *command, str(file), *arguments]
    return subprocess.run(given, capture_output=True, text=True, timeout=120, **options)


def both(folder, options, *words, **more):
    """What runs by ``python`` there, and by ``python -m hetero.accel``; they end alike."""
    plain, ours = (
        run([*options, *how], *words, cwd=folder, env=FINDS_HETERO, **more)
        for how in ([], ["-m", "hetero.accel"])
    )
    assert ours.returncode == plain.returncode
    assert _places(ours.stderr) == _places(plain.stderr)
    return plain, ours


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_does_what_it_does(name, tmp_path):
    text, arguments, code = SCRIPTS[name]
    file = tmp_path / "script.py"
    file.write_text(text, "latin-1")
    for options in ([], ["-P"]) if name in ("is main", "shares work") else ([],):
        plain, ours = both(tmp_path, options, "script.py", *arguments)
        assert plain.returncode == code
        assert sorted(plain.stdout) == sorted(ours.stdout)


def test_what_was_printed_comes_before_an_error(tmp_path):
    (tmp_path / "script.py").write_text("print('first')\n1 / 0", "utf-8")
    buffered = {k: v for k, v in FINDS_HETERO.items() if k != "PYTHONUNBUFFERED"}
    whole = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    for how in ([], ["-m", "hetero.accel"]):
        command = [sys.executable, *how, "script.py"]
        ended = subprocess.run(command, cwd=tmp_path, env=buffered, check=False, **whole)
        first, *_, last = ended.stdout.splitlines()
        assert (first, last) == ("first", "ZeroDivisionError: division by zero")


def _places(text):
    """Without the addresses in it, and without the lines of `runpy`, which runs folders."""
    return re.sub(r'0x\w+|  File "<frozen runpy>".*\n', "", text)


@pytest.mark.parametrize("what", ["script.pyc", "folder", "archive.zip", "-", "-m folder"])
def test_what_python_runs_runs(what, tmp_path):
    text = (
        "import sys\nprint(sys.argv[1:], sys.path[0], __file__, __name__, __spec__ is None)\n"
        "print(sorted(n for n in globals() if n[:2] != '__'))\n"
        "def load(key): raise KeyError(key)\nmain = run = accel = load\nload(3)"
    )
    (tmp_path / "folder").mkdir()
    for name in ("script.py", "folder/__main__.py"):
        (tmp_path / name).write_text(text)
    py_compile.compile(str(tmp_path / "script.py"), str(tmp_path / "script.pyc"))
    zipapp.create_archive(tmp_path / "folder", tmp_path / "archive.zip")
    plain, ours = both(tmp_path, [], *what.split(), "a", input=text)
    assert plain.returncode == 1
    assert "KeyError: 3" in plain.stderr
    assert _places(ours.stdout) == _places(plain.stdout)


def test_nothing_is_loaded_that_a_script_does_not_ask_for(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(
        "import sys, numpy\nnumpy.eye(9) @ numpy.eye(9)\n"
        "print(sorted({n.partition('.')[0] for n in sys.modules} & {'scipy', 'numba', 'llvmlite',"
        " 'sklearn', 'pyopencl'}), [n for n in sys.modules if n.startswith('hetero.ops')])"
    )
    run(["-m", "hetero.accel"], file)  # what is compiled once
    assert run(["-m", "hetero.accel"], file).stdout == "[] []\n"


PROGRAM = """
import numpy as np
from scipy.signal import fftconvolve
image = np.random.default_rng(0).random((300, 300))
for i in range(3):
    image = fftconvolve(image, np.ones((5, 5)) / 25, mode="same")
print(image.sum(), image.shape)
"""


def test_the_table(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(PROGRAM)
    ours = run(["-m", "hetero.accel", "-v"], file)
    assert ours.returncode == 0, ours.stderr
    call = "scipy.signal.fftconvolve 300x300, 5x5 float64 same"
    assert f"hetero.accel: script.py:6: {call}: start\n" in ours.stderr
    assert re.search(rf"script.py:6  {call} +3  .*  start\n", ours.stderr)
    assert "0 calls taken, 3 left alone" in ours.stderr
    environment = {**os.environ, "HETERO_ACCEL_LEAST": "0"}
    everything = run(["-m", "hetero.accel", "-v"], file, env=environment)
    assert everything.stdout[:12] == ours.stdout[:12]
    assert "3 calls taken, 0 left alone" in everything.stderr


@pytest.mark.parametrize("wrong", [[], ["-m"], ["--some", "s.py"], ["/n.py"]])
def test_wrong_command_lines(wrong, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(wrong)
    assert ("no file /n.py to read" in capsys.readouterr().err) == ("/n.py" in wrong)


def test_an_environment_is_switched_on_and_off(monkeypatch, tmp_path, capsys):
    site, elsewhere, broken = tmp_path / "site", tmp_path / "elsewhere", tmp_path / "broken"
    site.mkdir()
    elsewhere.write_text("not to be changed")
    (broken / "hetero").mkdir(parents=True)
    (broken / "hetero" / "__init__.py").write_text("?")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(site))
    (site / "hetero-accel.pth").symlink_to(elsewhere)
    before = os.umask(0)
    try:
        assert cli.main(["accel", "--enable", "--json"]) == 0
    finally:
        os.umask(before)
    found = json.loads(capsys.readouterr().out)
    assert found["enabled"]
    assert elsewhere.read_text() == "not to be changed"
    file = Path(found["file"])
    assert (file.is_symlink(), file.stat().st_mode & 0o777) == (False, 0o644)
    line = file.read_text()
    check = f"{line}\nimport sys; m = sys.modules.get('hetero.accel'); print(m and m._installs)"
    for value, shown, said in (
        *(("1", "Installed", ""), ("Yes", "Installed", ""), ("0", "None", "")),
        ("2", "[]", "hetero.accel: HETERO_ACCEL must be one of '1', 'yes', 'true', 'on', '0'"),
    ):
        ran = run(["-c"], check, env={**os.environ, "HETERO_ACCEL": value})
        assert (ran.returncode, shown in ran.stdout) == (0, True)
        assert (ran.stderr[: len(said)], bool(ran.stderr)) == (said, bool(said))
    left_behind = run(["-I", "-S", "-c"], line, env={**os.environ, "HETERO_ACCEL": "1"})
    not_asked = run(["-c"], f"import sys; sys.path.insert(0, {str(broken)!r}); {line}")
    for ran in (left_behind, not_asked):
        assert (ran.returncode, ran.stderr) == (0, "")
    assert cli.main(["accel", "--disable"]) == 0
    assert not list(site.iterdir())


ADVISED = """
import numpy as np, scipy.sparse as sp
from scipy.sparse.linalg import cg
A, x = np.ones((1100, 1100)), np.ones(1100)
for i in range(9):
    x = A @ x / 1100
n = 40000
D = sp.diags_array([-1.0, 2.1, -1.0], offsets=[-1, 0, 1], shape=(n, n)).tocsr()
cg(D, np.ones(n), maxiter=20)
np.dot(A, A)
"""


def advised(file, *options):
    """What `hetero advise` prints of a script as JSON, and its rows by their lines."""
    advice = json.loads(run(["-m", "hetero", "advise", "--json", *options], file).stdout)
    return advice, {row["line"]: row for row in advice["lines"]}


def test_advice(tmp_path):
    file = tmp_path / "script.py"
    file.write_text(ADVISED)
    advice, rows = advised(file, "--on", "h100")
    assert rows["script.py:6"]["calls"] == 9
    dot = rows["script.py:10"]
    assert dot["code"] == "would-take"
    assert "on cuda:0 with" in dot["text"]
    assert 0 < dot["saved"] < dot["seconds"]
    text = run(["-m", "hetero", "advise", "--on", "h100"], file).stdout
    assert re.search("script.py:10  numpy.matmul 1100x1100, 1100x1100 float64 +1  ", text)
    assert "times as fast" in text.splitlines()[-1]
    own, rows = advised(file)
    assert own["own"]
    assert not advice["own"]
    assert own["plain"] == own["here"]
    dot = rows["script.py:10"]
    assert dot["code"] == "would-take" or dot["saved"] == 0
    wrong = run(["-m", "hetero", "advise", "--on", "none"], file)
    assert (wrong.returncode, wrong.stderr.startswith("hetero: --on: ")) == (2, True)


def test_advice_keeps_what_nobody_writes_to_from_the_third_call_on(tmp_path):
    """Nothing is there in the first call; in the second one it is moved."""
    if kept.obstacle():
        pytest.skip(kept.obstacle())
    file = tmp_path / "script.py"
    loop = "for i in range(4):\n    if i == 3: A[0] = 2\n"
    calls = "".join(f"    if i == {i}: A @ A\n" for i in range(4))
    file.write_text(f"import numpy as np\nA = np.ones((1500, 1500))\n{loop}{calls}")
    _, rows = advised(file, "--on", "h100")
    A = hetero.spec((1500, 1500))
    moved = hetero.plan("matmul", A, A, profile="h100").chosen.seconds
    first, second, third, written = (
        re.search("predicted (.*?) by", rows[f"script.py:{n}"]["text"])[1] for n in range(5, 9)
    )
    assert first == second == written == readable(moved)
    assert third != first


@pytest.mark.parametrize(
    ("ends", "status", "told"),
    [("1 / 0", 1, "    1 / 0\n"), ("sys.exit(3)", 3, ""), ("sys.exit('so')", 1, "so\n")],
)
def test_a_script_ends_under_advice_as_it_does(tmp_path, ends, status, told):
    file = tmp_path / "script.py"
    file.write_text(f"import sys\nprint(sys.argv[1:])\n{ends}")
    plain = run([], file, "--json", "--on", "x")
    ours = run(["-m", "hetero", "advise"], file, "--json", "--on", "x")
    assert ours.returncode == plain.returncode == status
    assert plain.stderr.partition("\nZero")[0] in ours.stderr
    assert told in ours.stderr
    assert ours.stdout.startswith(plain.stdout)
    assert "the whole script: " in ours.stdout


@pytest.mark.timing
def test_small_calls_take_no_longer():
    """The gate of a 16 x 16 product: 0.1 us at most, with room for a busy machine."""
    code = (
        "import numpy as np, hetero\nfrom timeit import repeat\nA = np.ones((16, 16))\n"
        "def least(): return min(repeat(lambda: A @ A, number=20000, repeat=15)) / 20000\n"
        "before = least()\nwith hetero.install(recording=True): within = least()\n"
        "print(within - before)"
    )
    for _ in range(3):
        within = float(run(["-c"], code).stdout)
        if within <= 1e-7:
            return
        time.sleep(1)
    raise AssertionError(within)
