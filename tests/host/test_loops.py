"""No call waits for compiling unless it names the method; what is compiled is kept, once."""

from __future__ import annotations

import json

import numpy as np
import processes
import pytest

import hetero
from hetero import cli, registry, tables
from hetero.calling import execution
from hetero.host import loops
from hetero.kernels.cpu import cg, kmeans, plain, vectors
from hetero.ops.convolve2d import methods
from hetero.ops.kmeans import compiled_cpu
from hetero.ops.solvers import cg_loop, systems


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, in which no loops are compiled."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv(loops.IN_CALLS)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(loops, "_known", {})
    monkeypatch.setattr(execution, "_noted", set())
    tables.forget()
    yield tmp_path / "cache"
    tables.forget()


@pytest.fixture
def compiled(cache, monkeypatch):
    """The names of the loops that somebody waits for; none of them is compiled ahead."""
    names = []
    monkeypatch.setattr(loops, "ensure", lambda wanted, progress=None: names.extend(wanted))
    return names


# -- What the plans say ---------------------------------------------------------------------------


def test_methods_that_are_not_compiled_are_no_candidates(compiled):
    plan = hetero.plan("solve_poisson", hetero.spec((200, 300)), device="cpu")
    assert plan.chosen.method == "dst"
    reasons = {c.method: c.reason for c in plan.candidates}
    assert reasons == dict.fromkeys(("multigrid", "jacobi"), registry.NOT_COMPILED) | {"dst": None}
    image, taps = np.ones((400, 400)), np.ones((31, 31))
    image[0, 0] = np.nan  # which a transform would spread
    assert hetero.plan("convolve2d", image, taps, device="cpu").chosen.method == "scipy"
    for A in (hetero.Poisson((30, 30)), hetero.Poisson((30, 30)).tocsr()):
        assert hetero.plan("solve_cg", A, np.ones(900), device="cpu").chosen.method == "scipy"
    assert hetero.plan("kmeans", np.ones((120, 3)), 3, device="cpu").chosen.method == "products"
    assert not compiled


def test_one_line_says_what_compiling_would_gain(compiled, warnings_of):
    image, taps = np.ones((700, 700)), np.ones((9, 9))
    for _ in range(3):
        hetero.convolve2d(image, taps, device="cpu")
        hetero.convolve2d(image[1:], taps, device="cpu")
    (line,) = [text for text in warnings_of() if "'hetero compile'" in text and "'direct'" in text]
    assert "is expected to take" in line


def test_who_names_a_method_waits_for_it(compiled, warnings_of):
    f = np.ones((20, 20))
    _, info = hetero.solve_poisson(f, device="cpu", method="multigrid", return_info=True)
    assert info["method"] == "multigrid"
    with hetero.use(method="jacobi"):
        hetero.solve_poisson(f, device="cpu", rtol=0.1)
    assert compiled == ["multigrid in float64", "sweeps in float64"]
    said = [text for text in warnings_of() if text.startswith("compiling the loops of ")]
    assert said[0].endswith("multigrid in float64, once for this machine")
    assert len(said) == 2


# -- What compiles ---------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [vectors, plain], ids=lambda m: m.__name__)
@pytest.mark.parametrize("value", [-np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 4097, 1 << 17])
def test_a_step_that_is_not_finite_leaves_x(module, value, dtype, n):
    for spoiled in ("p", "q"):
        x, r, p, q = np.ones((4, n), dtype)
        {"p": p, "q": q}[spoiled][n * 3 // 4] = value
        assert np.isnan(module.step(x, r, p, q, 0.5))
        assert np.array_equal(x, np.ones(n))
    assert module.times_zero(x) == 0.0
    x[n - 1] = value
    assert np.isnan(module.times_zero(x))


def test_the_command(cache, monkeypatch, capsys):
    family = loops._families["sweeps"]
    monkeypatch.setattr(loops, "_families", {"sweeps": family})
    before = tables.generation()
    assert cli.main(["compile"]) == 0
    assert tables.generation() > before, "plans are made anew"
    out, err = capsys.readouterr()
    lines = [line.split() for line in out.splitlines()]
    assert lines == [["sweeps", "in", dtype, "compiled"] for dtype in ("float32", "float64")]
    assert err.startswith("sweeps in float32: compiled in ")
    loops._known.clear()
    assert all(map(loops.is_ready, loops.every())), "as the next process sees it"
    assert cli.main(["compile", "--json"]) == 0
    found = capsys.readouterr()
    assert json.loads(found.out) == dict.fromkeys(loops.every(), True)
    assert not found.err, "compiled again"
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert cli.main(["compile"]) == 1
    assert "cannot be kept" in capsys.readouterr().err


# -- First calls -----------------------------------------------------------------------------------

FIRST = """
import sys, numpy as np, hetero
P = hetero.Poisson((100, 100))
hetero.convolve2d(np.ones((2048, 2048)), np.ones((9, 9)))
hetero.convolve2d(np.full((300, 400), np.inf), np.ones((5, 5)))
hetero.solve_cg(P.tocsr(), np.ones(10000))
hetero.solve_cg(P, np.ones(10000))
hetero.solve_cg(P, np.ones(10000), M="multigrid")
hetero.solve_poisson(np.ones((30, 40, 50), "f4"))
hetero.solve_poisson(np.ones((100, 100, 100)))
assert "numba" not in sys.modules
"""


def test_no_first_call_compiles(cache, monkeypatch):
    """In a fresh environment, on the CPU: nothing was ever compiled there."""
    monkeypatch.setenv("HETERO_PROFILE", str(cache / "none"))
    processes.python("-c", FIRST)
    assert not list(cache.rglob("*.nbi")), "nobody compiles unasked"


def dispatchers(loop):
    """What Numba made of a loop: it, or what the functions around it hold."""
    if hasattr(loop, "signatures"):
        return [loop]
    cells = [cell.cell_contents for cell in getattr(loop, "__closure__", None) or ()]
    return [found for cell in cells if callable(cell) for found in dispatchers(cell)]


EXAMPLES = {
    kmeans: [compiled_cpu.compile_clusters, compiled_cpu.compile_bounds],
    cg: [cg_loop.rows, cg_loop.stencils],
    vectors: [systems.vectors, methods.examples],
}


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda module: module.__name__.split(".")[-1])
def test_examples_call_every_loop(module):
    """A loop that no example called was compiled by the first fit of k-means."""
    made_of = {
        name: found
        for name, loop in vars(module).items()
        if getattr(loop, "__module__", "") == module.__name__
        if not hasattr(loop, "signatures")  # else it is code of who calls it
        for found in dispatchers(loop)
    }
    assert len(made_of) > 0
    for example in EXAMPLES[module]:
        example(np.dtype("float32"))
    calls = {name: len(found.signatures) for name, found in made_of.items()}
    assert min(calls.values()) > 0, calls


def test_a_program_that_is_debugged_without_numbas_compiler():
    text = "import numpy as np, hetero\n"
    text += "a = np.random.rand(200, 200)\n"
    text += "hetero.convolve2d(a, a[:5, :5]), hetero.kmeans(a, 2), hetero.solve_poisson(a)"
    environment = {"NUMBA_DISABLE_JIT": "1", loops.IN_CALLS: "0"}
    processes.python("-c", text, **environment)


# -- Numba's cache ---------------------------------------------------------------------------------

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
    homes = {"HOME": None, "NUMBA_CACHE_DIR": None, "XDG_CACHE_HOME": str(tmp_path)}
    processes.python("-c", OBSTACLES[obstacle] + CALLS, **homes)
    left = [f for f in (tmp_path / "hetero").rglob("*") if f.is_file()]
    assert not [f for f in left if "pyopencl" not in f.parts]  # which keeps its own, by SQLite
