"""No call waits for compiling where another method serves; what is compiled is kept, once."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import scipy.signal
import toy_loops
from numpy.testing import assert_allclose

import hetero
from hetero import cli, profile
from hetero.calling import planner
from hetero.host import threads
from hetero.host.compiled import fork_server, loop_compiler, loops
from hetero.kernels.cpu import (
    cg,
    csr,
    jacobi,
    kmeans,
    kmeans_bounds,
    multigrid,
    ranges,
    ranges_numpy,
    vectors,
    vectors_numpy,
)
from hetero.ops import cpu_vectors
from hetero.ops.convolve2d import value_ranges
from hetero.ops.convolve2d.filters import Filter
from hetero.ops.convolve2d.window import window_of
from hetero.ops.kmeans import compiled_cpu
from hetero.ops.kmeans.compiled_cpu import BoundedBackend
from hetero.ops.kmeans.fit import Fit, fit
from hetero.ops.krylov import cg_products
from hetero.ops.linear_systems import loops as solver_loops
from hetero.ops.linear_systems.types import Stencil

TESTS = Path(__file__).parents[1] / "support"
LONG = 120.0  # seconds; on a busy machine


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache of this test's own, where loops are compiled beside the process that needs them."""
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.delenv("HETERO_COMPILE_AHEAD")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("TOYS", str(tmp_path / "toys"))
    monkeypatch.setenv("PYTHONPATH", str(TESTS))
    monkeypatch.setattr(loops, "_ready", set())
    monkeypatch.setattr(loop_compiler._background, "failed", set())
    return tmp_path / "cache"


@pytest.fixture
def unready(monkeypatch):
    """No loops are compiled; gives the names of those that are wanted, now or in the background."""
    wanted = {"now": [], "later": []}
    monkeypatch.setattr(loops, "is_ready", lambda name: False)
    monkeypatch.setattr(loop_compiler, "ensure", wanted["now"].extend)
    monkeypatch.setattr(loop_compiler, "begin", wanted["later"].append)
    return wanted


def compilers():
    """(process, niceness) of each that has compiled the toy."""
    lines = Path(os.environ["TOYS"]).read_text().splitlines()
    return [tuple(map(int, line.split())) for line in lines]


def alive(process):
    """Whether a process is there and no zombie."""
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False


def eventually(condition):
    end = time.monotonic() + LONG
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


# -- What the plans say ---------------------------------------------------------------------------


def spd(n=30):
    A = hetero.Poisson((n, n)).tocsr()
    return A, np.random.default_rng(0).standard_normal(n * n)


def test_a_plan_prices_the_wait(unready):
    f = hetero.spec((200, 300))
    plan = hetero.plan("solve_poisson", f, device="cpu")
    assert plan.chosen.method == "dst"
    rows = {c.method: c for c in plan.candidates}
    wait = loops.seconds("multigrid in float64")
    assert rows["multigrid"].terms["compiling"] == wait > 2.0
    assert rows["multigrid"].seconds == pytest.approx(sum(rows["multigrid"].terms.values()))
    assert "compiling" not in rows["dst"].terms
    assert f"+ compiling {wait} s" in str(plan)
    assert not unready["now"] + unready["later"], "nothing is run, and nothing begun"


def test_where_others_take_longer_a_call_waits(unready):
    """Of a hundred million products SciPy's loop makes one a nanosecond."""
    plan = hetero.plan("convolve2d", hetero.spec((3000, 3000)), hetero.spec((3, 3)), device="cpu")
    assert "compiling" not in plan.chosen.terms
    image, taps = np.ones((4000, 4000)), np.ones((31, 31))
    image[0, 0] = np.nan  # which a transform would spread
    plan = hetero.plan("convolve2d", image, taps, device="cpu")
    assert plan.chosen.method == "direct"
    assert plan.chosen.terms["compiling"] > 2.0


def test_what_serves_is_right_and_the_faster_is_begun(unready):
    rng = np.random.default_rng(1)
    f = rng.standard_normal((60, 70))
    _, info = hetero.solve_poisson(f, device="cpu", return_info=True)
    assert info["method"] == "dst"
    assert info["converged"]
    assert set(unready["later"]) == {"multigrid in float64"}  # a name that waits is not begun again

    image, taps = rng.standard_normal((90, 200)), rng.standard_normal((5, 4))
    found = hetero.convolve2d(image, taps, device="cpu")
    assert_allclose(found, scipy.signal.convolve2d(image, taps), rtol=0, atol=1e-12)
    image[3, 4] = np.inf
    found = hetero.convolve2d(image, taps, device="cpu")
    with np.errstate(all="ignore"):
        assert_allclose(found, scipy.signal.convolve2d(image, taps), rtol=0, atol=1e-12)
    assert "convolutions in float64" in unready["later"]

    A, b = spd()
    P = hetero.Poisson((30, 30))
    for matrix, name in ((A, "rows in float64"), (P, "stencils in float64")):
        assert hetero.plan("solve_cg", matrix, b, device="cpu").chosen.method == "scipy"
        x, info = hetero.solve_cg(matrix, b, rtol=1e-8, device="cpu")
        assert info == 0
        assert np.linalg.norm(A @ x - b) <= 1e-8 * np.linalg.norm(b)
        assert name in unready["later"]
    iterates = []
    x, info = hetero.solve_cg(
        P, b, rtol=1e-8, M="multigrid", device="cpu", callback=iterates.append
    )
    assert (info, len(iterates)) == (0, 1), "the inverse itself stands in for a cycle"
    assert np.linalg.norm(A @ x - b) <= 1e-8 * np.linalg.norm(b)
    assert "multigrid in float64" in unready["later"]
    assert_allclose(P @ b, A @ b, rtol=1e-12)
    assert not unready["now"]


def test_stand_ins_take_as_many_iterations():
    A, b = spd(60)
    done = {}
    for method in ("numba", "scipy"):
        done[method] = []
        _, info = hetero.solve_cg(A, b, method=method, callback=done[method].append)
        assert info == 0
    assert len(done["numba"]) == len(done["scipy"])
    plan = hetero.plan("solve_cg", A, b, device="cpu")
    reasons = {c.method: c.reason for c in plan.candidates}
    assert reasons["scipy"] == "is used only while 'numba' is compiled"


def test_who_names_a_method_waits_for_it(unready, warnings_of):
    f = np.ones((20, 20))
    _, info = hetero.solve_poisson(f, device="cpu", method="multigrid", return_info=True)
    assert info["method"] == "multigrid"
    assert unready["now"] == ["multigrid in float64"]
    assert any("compiling the loops of multigrid in float64" in text for text in warnings_of())


def test_another_machines_plans_are_not_kept_waiting(unready):
    constants = profile.shipped("h200")
    machine = planner.OtherMachine(constants, constants.machine())
    problem = hetero.ops.registry.operation("solve_poisson").from_dims(
        (900, 900), "float64", "host"
    )
    assert not any("compiling" in c.terms for c in machine.plan(problem).candidates)


def test_read_only_arrays_compile_nothing_anew():
    """Nor do 64-bit indices that need not be."""
    A, b = spd(80)
    f, image, taps = np.ones((40, 50)), np.ones((200, 300)), np.ones((5, 5))

    def compiled():
        hetero.solve_poisson(f, method="multigrid")
        hetero.solve_poisson(f, method="jacobi", rtol=0.1)
        hetero.solve_cg(A, b, method="numba", M="jacobi", maxiter=20)
        hetero.solve_cg(hetero.Poisson((80, 80)), b, method="numba", maxiter=20)
        value_ranges.is_wide(image, Filter(taps), window_of(image.shape, taps.shape, "same"), 0.0)
        found = {}
        for module in (cg, csr, jacobi, multigrid, ranges, vectors):
            for name, loop in vars(module).items():
                for inner in dispatchers(loop):
                    found[module.__name__, name, id(inner)] = len(inner.signatures)
        return found

    before = compiled()
    assert sum(before.values()) > 10
    for array in (b, f, image, taps, A.data):
        array.flags.writeable = False
    A.indices, A.indptr = A.indices.astype(np.int64), A.indptr.astype(np.int64)
    assert compiled() == before


# -- What serves meanwhile -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 100, 40_000])
def test_vectors_by_numpy(dtype, n):
    rng = np.random.default_rng(n)
    first = rng.standard_normal((4, n)).astype(dtype)
    rtol = 1e-5 if dtype == "float32" else 1e-12
    results = []
    for module in (vectors, vectors_numpy):
        x, r, p, q = first.copy()
        found = [module.dot(x, q), module.norm(x), module.step(x, r, p, q, 0.3)]
        module.scale_and_add(p, 0.7, r)
        assert module.times_zero(x) == 0.0
        results.append((found, np.array([x, r, p])))
    assert_allclose(results[0][0], results[1][0], rtol=rtol, atol=rtol * n)
    assert_allclose(results[0][1], results[1][1], rtol=rtol, atol=rtol)


@pytest.mark.parametrize("module", [vectors, vectors_numpy], ids=lambda m: m.__name__)
@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("n", [1, 2, 4096, 4097, 40_000, 1 << 17])
def test_a_step_that_is_not_finite_leaves_x(module, value, dtype, n):
    for spoiled in ("p", "q"):
        x, r, p, q = np.ones((4, n), dtype)
        {"p": p, "q": q}[spoiled][n * 3 // 4] = value
        assert np.isnan(module.step(x, r, p, q, 0.5))
        assert np.array_equal(x, np.ones(n))
    assert module.times_zero(x) == 0.0
    x[n - 1] = value
    assert np.isnan(module.times_zero(x))


@pytest.mark.parametrize("shape", [(9, 14), (7, 1), (1, 7), (3, 5, 4), (4, 1, 3), (2, 3, 1)])
def test_a_grids_product_by_numpy(shape):
    """The ends of lines lie beside each other in memory, and are no neighbours."""
    stencil = Stencil(shape, (1.0, 0.5, 0.7)[-len(shape) :])
    p = np.random.default_rng(4).standard_normal(shape).reshape(-1)
    found, q = (np.empty_like(p) for _ in range(2))
    cg_products.plain(stencil, p.dtype).times(p, found)
    cg_products.compiled(stencil, p.dtype).times(p, q)
    assert_allclose(found, q, rtol=1e-13, atol=1e-13)
    p.reshape(shape)[(0,) * len(shape)] = np.nan
    cg_products.plain(stencil, p.dtype).times(p, found)
    assert np.isnan(found).sum() == 1 + sum(n > 1 for n in shape)


def test_ranges_by_numpy():
    rng = np.random.default_rng(2)
    for _ in range(40):
        batch, height, width = rng.integers(1, 3), *rng.integers(3, 60, 2)
        planes = rng.standard_normal((batch, height, width))
        planes[rng.random(planes.shape) < rng.choice([0.0, 0.4, 0.95])] = 0.0
        planes[:, : height // 3, : width // 2] = 0.0
        block = rng.integers(1, height), rng.integers(1, width)
        sums, areas, peaks = ranges.block_sums(planes, *block)
        for a, b in zip(ranges_numpy.block_sums(planes, *block), (sums, areas, peaks), strict=True):
            assert_allclose(a, b, rtol=1e-12)


# -- Processes that compile ------------------------------------------------------------------------


def test_the_background_compiles_and_plans_are_made_anew(cache):
    heard = []
    loop_compiler.on_ready(lambda: heard.append(True))
    try:
        assert loops.seconds_left(toy_loops.NAME) == 3.0
        loop_compiler.begin(toy_loops.NAME)
        loop_compiler.begin(toy_loops.NAME)
        assert loop_compiler.wait(toy_loops.NAME, LONG)
    finally:
        loop_compiler._listeners.pop()
    assert loops.seconds_left(toy_loops.NAME) == 0.0
    assert heard
    ((process, niceness),) = compilers()
    assert process != os.getpid()
    assert niceness == 19
    assert not Path(f"/proc/{process}").exists(), "no zombie"
    loops._ready.clear()
    assert loops.is_ready(toy_loops.NAME), "as the next process sees it"
    (kept,) = (cache / "hetero" / "numba").iterdir()
    kept.unlink()
    loops._ready.clear()
    assert not loops.is_ready(toy_loops.NAME), "what is gone is not believed to be there"


def test_now_means_now(cache):
    loop_compiler.ensure([toy_loops.NAME])
    assert loops.is_ready(toy_loops.NAME)
    ((_, niceness),) = compilers()
    assert niceness == os.nice(0)


def test_the_command(cache, monkeypatch, capsys):
    monkeypatch.setattr(loops, "_families", {"toys": toy_loops.FAMILY})
    assert cli.main(["compile"]) == 0
    assert capsys.readouterr().out.split() == ["toys", "in", "float32", "compiled"] + [
        *("toys", "in", "float64", "compiled")
    ]
    assert len(compilers()) == 2
    assert cli.main(["compile", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == dict.fromkeys(loops.every(), True)
    assert len(compilers()) == 2, "what is there is not compiled again"
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert cli.main(["compile"]) == 1
    assert "cannot be kept" in capsys.readouterr().err


def test_a_failing_compiler_is_told_and_not_tried_again(cache, monkeypatch, warnings_of):
    monkeypatch.setenv("TOYS", "/nowhere/at/all")
    loop_compiler.begin(toy_loops.NAME)
    assert loop_compiler.wait(toy_loops.NAME, LONG)
    assert not loops.is_ready(toy_loops.NAME), "what serves goes on serving"
    assert sum("could not be compiled" in text for text in warnings_of()) == 1
    loop_compiler.begin(toy_loops.NAME)
    assert not loop_compiler._background.waiting


@pytest.mark.parametrize("executable", ["", "/usr/bin/editor"])
def test_part_of_another_program(cache, monkeypatch, executable):
    """Its file is no Python: nobody knows what starting it does."""
    monkeypatch.setattr(sys, "executable", executable)
    assert loops.is_ready(toy_loops.NAME)


def test_the_variable_turns_it_off(cache, monkeypatch):
    monkeypatch.setenv("HETERO_COMPILE_AHEAD", "0")
    assert loops.is_ready(toy_loops.NAME)


BEGIN = """
import toy_loops
from hetero.host.compiled import fork_server, loop_compiler, loops
"""


def script(text, begin="loop_compiler.begin(toy_loops.NAME)\n", **more):
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-c", BEGIN + begin + text],
        env={**os.environ, **more},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_program_that_ends_leaves_its_compiler_at_work(cache):
    program = script(
        "import os, time\nwhile not os.path.exists(os.environ['TOYS']): time.sleep(0.01)",
        TOYS_SECONDS="1",
    )
    _, err = program.communicate(timeout=LONG)
    assert (program.returncode, err) == (0, "")
    ((process, _),) = compilers()
    assert alive(process)
    assert not loops.is_ready(toy_loops.NAME)
    eventually(lambda: loops.is_ready(toy_loops.NAME))
    eventually(lambda: not alive(process))


def test_two_programs_compile_once(cache):
    wait = "assert loop_compiler.wait(toy_loops.NAME)\nassert loops.is_ready(toy_loops.NAME)"
    programs = [script(wait, TOYS_SECONDS="0.5") for _ in range(2)]
    for program in programs:
        _, err = program.communicate(timeout=LONG)
        assert (program.returncode, err) == (0, "")
    assert len(compilers()) == 1


def test_a_forked_child_begins_anew(cache):
    """Its parent's thread is not there; what the parent's process compiles is not done twice."""
    program = script(
        "import os\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    assert not loop_compiler._background.waiting\n"
        "    loop_compiler.begin(toy_loops.NAME)\n"
        "    assert loop_compiler.wait(toy_loops.NAME, 100)\n"
        "    os._exit(0 if loops.is_ready(toy_loops.NAME) else 1)\n"
        "assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0\n"
        "assert loop_compiler.wait(toy_loops.NAME, 100)",
        TOYS_SECONDS="0.5",
    )
    _, err = program.communicate(timeout=LONG)
    assert program.returncode == 0, err
    assert len(compilers()) == 1


@pytest.mark.parametrize("sent", ["SIGINT", "SIGKILL"])
def test_who_is_ended_leaves_nothing_running(cache, sent):
    program = script(
        "import os, signal, threading, time\n"
        "def end():\n"
        "    while not os.path.exists(os.environ['TOYS']): time.sleep(0.01)\n"
        f"    os.kill(os.getpid(), signal.{sent})\n"
        "threading.Thread(target=end).start()\n"
        "loop_compiler.ensure([toy_loops.NAME])",
        begin="",
        TOYS_SECONDS=str(5 * LONG),
    )
    _, err = program.communicate(timeout=LONG)
    if sent == "SIGKILL":
        assert program.returncode == -signal.SIGKILL
    else:
        assert program.returncode in (1, 130, -signal.SIGINT), err
        assert "KeyboardInterrupt" in err
    eventually(lambda: not any(alive(process) for process, _ in compilers()))


def ended(child):
    return child.poll() is not None


def test_copies_of_one_process_compile(cache):
    names = [toy_loops.FAMILY.of(dtype) for dtype in ("float32", "float64")]
    server = fork_server.Server()
    first, second = map(server.begin, names)
    eventually(lambda: ended(first) and ended(second))
    assert all(map(loops.is_ready, names))
    assert dict(compilers()) == dict.fromkeys((first.pid, second.pid), os.nice(0))
    server.stop()
    assert not alive(server.pid)


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_without_that_process_all_have_ended(cache, how, monkeypatch):
    monkeypatch.setenv("TOYS_SECONDS", "60")
    server = fork_server.Server()
    child = server.begin(toy_loops.NAME)
    eventually(lambda: not ended(child) and child.pid is not None)
    eventually(lambda: Path(os.environ["TOYS"]).exists())
    if how == "killed":
        os.kill(server.pid, signal.SIGKILL)
        os.kill(child.pid, signal.SIGKILL)
        eventually(lambda: ended(child))
        with pytest.raises(OSError, match="has ended"):
            server.begin(toy_loops.NAME)
    server.stop()
    assert ended(child)
    eventually(lambda: not alive(child.pid))  # it has closed its files a moment before
    assert not loops.is_ready(toy_loops.NAME)


@pytest.mark.parametrize("ignored", ["SIGCHLD", "SIGTERM"])
def test_a_program_that_ignores_signals(cache, ignored):
    program = script(
        f"import os, signal\nsignal.signal(signal.{ignored}, signal.SIG_IGN)\n"
        "os.cpu_count = lambda: 1  # one after the other\n"
        "loop_compiler.ensure([toy_loops.FAMILY.of(x) for x in ('float32', 'float64')])\n"
        "assert loops.is_ready(toy_loops.NAME)",
        begin="",
    )
    _, err = program.communicate(timeout=LONG)
    assert (program.returncode, err) == (0, "")
    assert len(compilers()) == 2
    assert not any(alive(process) for process, _ in compilers())


def test_a_copy_that_fails_has_ended(cache, monkeypatch):
    monkeypatch.setenv("TOYS", "/nowhere/at/all")
    server = fork_server.Server()
    child = server.begin(toy_loops.NAME)
    eventually(lambda: ended(child))
    nowhere = toy_loops.FAMILY._replace(examples="nowhere:at_all")
    monkeypatch.setattr(loops, "family_of", lambda name: nowhere)
    other = server.begin(toy_loops.NAME)
    eventually(lambda: ended(other))
    server.stop()
    assert not loops.is_ready(toy_loops.NAME)


def test_who_is_killed_before_the_first_copy_leaves_nothing_running(cache):
    """What was asked for is read, but nobody is there who could be told that it has begun."""
    program = script(
        "import os, signal\n"
        "found = loop_compiler.Processes([toy_loops.NAME])\n"
        "print(found._server.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        begin="",
        TOYS_SECONDS=str(5 * LONG),
    )
    out, err = program.communicate(timeout=LONG)
    assert program.returncode == -signal.SIGKILL, err
    group = int(out)
    eventually(lambda: not any(alive(process) for process in of_group(group)))


def test_a_fork_of_who_is_killed_keeps_nothing_running(cache):
    """It has the other end of what the process that forks others reads."""
    program = script(
        "import os, signal, time\n"
        "found = loop_compiler.Processes([toy_loops.NAME])\n"
        "while not os.path.exists(os.environ['TOYS']): time.sleep(0.01)\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.close(1), os.close(2)\n"
        "    time.sleep(600)\n"
        "print(found._server.pid, child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)",
        begin="",
        TOYS_SECONDS="600",
    )
    out, err = program.communicate(timeout=LONG)
    group, child = map(int, out.split())
    try:
        assert program.returncode == -signal.SIGKILL, err
        eventually(lambda: not any(alive(process) for process in of_group(group)))
    finally:
        os.kill(child, signal.SIGKILL)


def of_group(group):
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has ended
            if os.getpgid(int(name)) == group:
                found.append(int(name))
    return found


NO_ROOM = """
import os
fork, forks = os.fork, []
def none():
    forks.append(True)
    if len(forks) == 2:
        raise BlockingIOError(11, "no room for another process")
    return fork()
os.fork = none
"""


def test_a_copy_that_there_is_no_room_for(cache, monkeypatch):
    """The others are compiled."""
    monkeypatch.setattr(fork_server, "_COMMAND", NO_ROOM + fork_server._COMMAND)
    monkeypatch.setenv("TOYS_SECONDS", "1")
    names = [toy_loops.FAMILY.of(dtype) for dtype in ("float32", "float64")]
    server = fork_server.Server()
    first, none = (server.begin(name) for name in names)
    eventually(lambda: ended(none))
    assert none.pid is None
    assert not ended(first)
    other = server.begin(names[1])
    eventually(lambda: ended(first) and ended(other))
    server.stop()
    assert all(map(loops.is_ready, names))


def test_a_module_that_fails_in_another_way(cache, monkeypatch, tmp_path):
    """The others are compiled."""
    (tmp_path / "no_loops.py").write_text("raise RuntimeError")
    monkeypatch.syspath_prepend(str(tmp_path))
    server = fork_server.Server()
    bad = toy_loops.FAMILY._replace(examples="no_loops:examples")
    with monkeypatch.context() as patched:
        patched.setattr(loops, "family_of", lambda name: bad)
        children = [server.begin("toys in float32")]
    children.append(server.begin(toy_loops.NAME))
    eventually(lambda: all(map(ended, children)))
    server.stop()
    assert loops.is_ready(toy_loops.NAME)


@pytest.mark.parametrize("place", ["/dev/null/x", "/proc/nowhere"])
def test_where_nothing_is_kept_the_call_compiles(cache, place):
    program = script(
        "assert loops.seconds_left(toy_loops.NAME) == 0.0\n"
        "assert not loop_compiler._background.waiting\n"
        "assert toy_loops.times(3.0) == 6.0",
        XDG_CACHE_HOME=place,
    )
    _, err = program.communicate(timeout=LONG)
    assert (program.returncode, err) == (0, "")


# -- First calls -----------------------------------------------------------------------------------

FIRST = {
    "matvec": "hetero.matvec(np.ones((300, 300)), np.ones(300))",
    "matmul": "hetero.matmul(np.ones((300, 300)), np.ones((300, 300)))",
    "convolve2d": "hetero.convolve2d(np.ones((500, 600)), np.ones((9, 7)))",
    "convolve2d, not finite": "hetero.convolve2d(np.full((300, 400), np.inf), np.ones((5, 5)))",
    "convolve2d, complex": "hetero.convolve2d(np.ones((300, 400), complex), np.ones((5, 5)))",
    "solve_cg, dense": "hetero.solve_cg(np.eye(300) + 1, np.ones(300))",
    "solve_cg, sparse": "hetero.solve_cg(P.tocsr(), np.ones(10000))",
    "solve_cg, grid": "hetero.solve_cg(P, np.ones(10000))",
    "solve_cg, multigrid": "hetero.solve_cg(P, np.ones(10000), M='multigrid')",
    "Poisson": "P @ np.ones(10000)",
    "solve_poisson": "hetero.solve_poisson(np.ones((300, 200)))",
    "solve_poisson, box": "hetero.solve_poisson(np.ones((30, 40, 50), 'f4'))",
    "convolve2d, large": "hetero.convolve2d(np.ones((2048, 2048)), np.ones((9, 9)))",
    "solve_poisson, large box": "hetero.solve_poisson(np.ones((100, 100, 100)))",
}
TIMED = """
import os, sys, time
import numpy as np, hetero
from hetero import devices
from hetero.host.compiled import loop_compiler
begin, compilers = loop_compiler._process, []
loop_compiler._process = lambda *a, **k: compilers.append(begin(*a, **k)) or compilers[-1]
devices.proven()  # devices start as they do; what they take is not compiling
P = hetero.Poisson((100, 100))
begun = time.perf_counter()
eval(sys.argv[1])
print(time.perf_counter() - begun, flush=True)
for process in compilers:  # which would go on beside the next test
    process.kill()
os._exit(0)
"""


@pytest.mark.timing
@pytest.mark.parametrize("call", FIRST)
def test_no_first_call_takes_two_seconds(call, cache, monkeypatch):
    """In a fresh environment, on the CPU: nothing was ever compiled there."""
    monkeypatch.setenv("HETERO_PROFILE", str(cache / "none"))
    program = [sys.executable, "-c", TIMED, FIRST[call]]
    done = subprocess.run(program, capture_output=True, text=True, timeout=LONG, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < 2.0
    shutil.rmtree(cache, ignore_errors=True)


def dispatchers(loop):
    """What Numba made of a loop: it, or what the functions around it hold."""
    if hasattr(loop, "signatures"):
        return [loop]
    cells = [cell.cell_contents for cell in getattr(loop, "__closure__", None) or ()]
    return [found for cell in cells if callable(cell) for found in dispatchers(cell)]


EXAMPLES = {
    kmeans: [compiled_cpu.compile_clusters],
    kmeans_bounds: [compiled_cpu.compile_bounds],
    csr: [solver_loops.rows],
    cg: [solver_loops.rows, solver_loops.stencils],
    vectors: [cpu_vectors.examples],
}


@pytest.mark.parametrize("module", EXAMPLES, ids=lambda module: module.__name__.split(".")[-1])
def test_examples_call_every_loop_and_threads_need_no_other_code(module, monkeypatch):
    """A loop that no example called was compiled by the first fit of k-means."""
    made_of = {
        name: found
        for name, loop in vars(module).items()
        if getattr(loop, "__module__", "") == module.__name__
        for found in dispatchers(loop)
        if found.targetoptions.get("inline") != "always"  # else it is code of who calls it
    }
    assert len(made_of) > 0
    for example in EXAMPLES[module]:
        example(np.dtype("float32"))
    before = {name: len(found.signatures) for name, found in made_of.items()}
    assert min(before.values()) > 0, before
    for other, name in ((kmeans, "_SERIAL"), (vectors, "SHARED"), (cg, "SHARE"), (csr, "_SHARED")):
        monkeypatch.setattr(other, name, 1)
    monkeypatch.setattr(threads, "_SHARE", 1)
    for example in EXAMPLES[module]:
        example(np.dtype("float32"))
    assert {name: len(found.signatures) for name, found in made_of.items()} == before


def test_a_fit_with_bounds_needs_no_other_code(monkeypatch):
    monkeypatch.setattr(compiled_cpu, "_MOVED", 1.0)  # bounds from the first iteration on
    monkeypatch.setattr(compiled_cpu, "most_looked_at", lambda n, k, d: np.inf)
    made_of = [f for name in ("assign", "between") for f in dispatchers(vars(kmeans_bounds)[name])]
    compiled_cpu.compile_bounds(np.dtype("float32"))
    before = [len(found.signatures) for found in made_of]
    rows = BoundedBackend(np.random.default_rng(0).random((300, 3)).astype(np.float32), None)
    fit(rows, Fit(3, 0.0, "random", random=np.random.RandomState(0), exactly=True), 5)
    assert [len(found.signatures) for found in made_of] == before
    assert rows._bounds is not None
