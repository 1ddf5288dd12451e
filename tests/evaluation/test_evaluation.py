"""verify, bench and demo: what they ask of operations, and what becomes of the answers."""

from __future__ import annotations

import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from scipy.sparse import csr_array
from scipy.sparse.linalg import cg as scipy_cg

import hetero.ops
from hetero import profile, registry
from hetero.arrays import kept
from hetero.calibration import candidates, measure
from hetero.errors import DeviceNotAvailable
from hetero.evaluation import bench, demo, report, verify
from hetero.ops import benchmark
from hetero.ops.benchmark import Benchmark, Comparison, Iterations
from hetero.ops.cg import benchmarks as cg
from hetero.ops.kmeans import benchmarks as kmeans
from hetero.ops.matmul import benchmarks as matmul
from hetero.ops.matvec import benchmarks as matvec
from hetero.ops.poisson import benchmarks as poisson
from hetero.ops.products import benchmarks

OPERATIONS = registry.operations()


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_every_operation_can_be_verified(operation, hasty):
    rows = verify.verify((operation,), count=3, largest=16, seconds=30.0)
    for row in rows:
        assert row.problem.operation == operation.name
        assert row.ratio >= 1.0 or row.best != row.chosen
    assert rows


@pytest.fixture
def small_gpu(cuda, monkeypatch):
    """The fake device, timed on little memory."""
    monkeypatch.setattr(bench, "Queue", partial(measure.Queue, nbytes=1 << 12))
    monkeypatch.setattr(measure.Queue, "_copied", lambda self: 1e3)  # bytes per second
    monkeypatch.setattr(benchmarks, "_POOL", 1 << 16)
    monkeypatch.setattr(benchmarks, "_COLD_BYTES", 1 << 12)
    monkeypatch.setattr(matvec, "SHAPES", [(20, 30), (7, 9), (3000, 3000)])
    monkeypatch.setattr(matmul, "SHAPES", [(20, 30, 10), (3000, 3000, 3000)])
    monkeypatch.setitem(sys.modules, "cupy", None)
    return cuda


@pytest.mark.parametrize(
    ("name", "shapes", "methods"), [("matvec", 2, {"tiled"}), ("matmul", 1, {"tiled", "tensor"})]
)
@pytest.mark.parametrize("order", ["C", "F"])
def test_bench_on_a_gpu(small_gpu, name, shapes, methods, order):
    """Each method that is here on operands there; what has no room is left out."""
    operation = registry.operation(name)
    rows = bench.bench(operation, "float64", device=small_gpu.name, order=order)
    assert len(rows) == shapes
    for row in rows:
        assert row["seconds"].keys() == {f"{method} on cuda:0" for method in methods}
        assert row["chosen"] == "tiled on cuda:0"
        assert (row["dtype"], row["order"], row["peers"]) == ("float64", order, [])
        assert row["copy_bandwidth"] > 0
    m, k = rows[0]["dims"][0], rows[0]["dims"][-1]
    assert rows[0]["flops"] == 2.0 * np.prod(rows[0]["dims"])
    assert rows[0]["bytes"] >= 8 * m * k
    lines = report.benchmarks(rows, benchmark.of(operation, "columns")).splitlines()
    assert len({line.count("|") for line in lines[: shapes + 2]}) == 1
    ratios = [min(row["seconds"].values()) / row["seconds"][row["chosen"]] for row in rows]
    assert lines[-1] == f"best / chosen, geometric mean: {np.prod(ratios) ** (1 / len(rows)):.3f}"


def test_the_table_of_products():
    """Ratios over cuBLAS, CuPy and torch count in favour of the own kernel above 1."""
    peers = {"CuPy": 3e-5, "torch": 4e-5}
    row = {
        "dims": (512, 256),
        "seconds": {"tiled on cuda:0": 2e-5, "library on cuda:0": 1e-5} | peers,
        "peers": list(peers),
        "chosen": "tiled on cuda:0",
        "roof": None,
        "flops": 1e6,
        "bytes": 1e6,
        "copy_bandwidth": 1e11,
    }
    text = report.benchmarks([row, row], matvec.columns)
    line = "| 512x256 | 20.0 | 50.0 | 0.50 | 10.0 | 100.0 | 0.50 | 1.50 | 2.00 | tiled | 0.50 |"
    assert text.splitlines()[2:4] == [line, line]
    assert "own / CuPy, geometric mean: 1.500" in text
    assert "best / chosen, geometric mean: 0.500" in text
    assert matvec.columns([{"case": "on the CPU"}]) is None


def test_one_iteration_is_a_difference(monkeypatch):
    """What is done once, such as copying the matrix, does not count."""
    now = [0.0]

    def run(count):
        now[0] += 3.0 + 0.25 * count

    monkeypatch.setattr(candidates.time, "perf_counter", lambda: now[0])
    case = Benchmark("one", lambda: Comparison({"a": Iterations(run, 2, 10)}), "iteration")
    assert bench.row(case, None, {})["seconds"] == {"a": 0.25}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_that_bench_compares_of_cg_make_as_many_iterations(opencl, monkeypatch, dtype):
    monkeypatch.setattr(cg, "cuda_device", lambda: opencl)
    monkeypatch.setattr(cg, "GRIDS", (64,))
    monkeypatch.setattr(bench, "_DIFFERENCES", 1)
    monkeypatch.setattr(cg, "DENSE", (512,))
    short = {"budget": 0.01, "least": 1, "most": 1}
    rows = [bench.row(case._replace(**short), None, {}) for case in cg.benchmarks(dtype)]
    assert [row["asked"] for row in rows] == [220, 220, 8, 256]
    for row in rows:
        assert any(opencl in name for name in row["seconds"])
        assert any(name.startswith("SciPy") for name in row["peers"])
        assert row["iterations"] == dict.fromkeys(row["seconds"], row["asked"])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bench_of_poisson_has_scipys_transforms_which_solve_the_same(dtype):
    (f, *_), call = np.random.default_rng(2).random((1, 20, 20)).astype(dtype), poisson._scipy
    case = next(poisson.benchmarks(dtype))
    assert any(name.startswith("SciPy dstn") for name in case.make().peers)
    for solve in call(f).values():
        np.testing.assert_allclose(solve(0), hetero.solve_poisson(f), rtol=1e-4)


def test_a_table_says_who_made_another_number_of_iterations():
    row = {"case": "a", "what": "solve", "seconds": {"x": 1e-3, "y": 2e-3}}
    row |= {"asked": 256, "iterations": {"x": 27, "y": 256}}
    lines = report.benchmarks([row]).splitlines()
    assert [line.split("|")[-2].strip() for line in lines if "|" in line] == [
        "iterations",
        "---",
        "27, not 256",
        "256",
    ]


@pytest.mark.parametrize(
    ("name", "cases", "dtype", "shapes"),
    [
        ("matmul", "blog", "float32", ["2000x600x2000"]),
        ("matmul", "cmu", "float32", [f"{n}x{n}x{n}" for n in (5, 8, 10, 32, 33, 1000)]),
        ("matmul", "dtu", "float64", [f"{n}x{n}x{n}" for n in (100, 250, 1024, 2000, 4096)]),
        ("matmul", "strasbourg", "float64", ["4096x4096x4096"]),
        ("poisson", "dtu", "float64", [f"{n}^2" for n in (16, 32, 64, 128, 256)]),
        ("kmeans", "cmu", "float32", ["351 x 34", "7089 x 4", "191681 x 22", "488565 x 8"]),
    ],
)
def test_cases_by_name_are_sizes_and_dtype_of_a_report(name, cases, dtype, shapes, monkeypatch):
    monkeypatch.setattr(
        bench,
        "row",
        lambda case, queue, failed: {"case": case.case, "seconds": {1: 1}, "peers": []},
    )
    operation = registry.operation(name)
    assert cases in benchmark.of(operation, "CASES")
    for asked, used in ((None, dtype), ("float64", "float64"), ("float32", "float32")):
        rows = bench.bench(operation, asked, device="cpu", cases=cases)
        assert len(rows) == len(shapes)
        for row, shape in zip(rows, shapes, strict=True):
            assert f"{shape} " in row["case"].replace(",", " ")
            assert used in row["case"]


def test_a_named_fit_ends_by_labels_and_its_peer_after_as_many_iterations(monkeypatch):
    made = []
    monkeypatch.setattr(kmeans, "_scikit_learn", lambda X, k, options: made.append(options) or {})
    calls = kmeans._until_few_change(20_000, 4, 3, "float32").calls
    infos = [call(0)[2] for name, call in calls.items() if "automatic" not in name]
    assert {info["iterations"] for info in infos} == {made[0]["max_iter"]}
    X, k = kmeans._drawn_around(20_000, 4, 3, "float32"), 3
    labels = hetero.kmeans(X, k, init=X[:k], tol=0.0)[2]["iterations"]
    assert made[0]["max_iter"] < labels


def test_a_row_without_any_call_is_none(monkeypatch, warnings_of):
    def gone(turn):
        raise hetero.errors.DeviceError("planted")

    cases = [Benchmark("one", lambda: Comparison({"a": gone}, {"peer": lambda turn: None}))]
    monkeypatch.setattr(
        benchmark,
        "of",
        lambda o, name, default=None: (lambda dtype: cases) if name == "benchmarks" else default,
    )
    assert bench.bench(OPERATIONS[0]) == []
    assert warnings_of() == ["a is left out: planted"]
    assert report.benchmarks([]) == "no shape could be measured"


def demonstrated(monkeypatch, *cases, seconds=None, picture=None, saved=None):
    """What demo prints of cases, without a calibration; their calls take these seconds."""
    plain = benchmark.of
    own = {"demonstrated": lambda largest: cases, "pictured_result": saved}
    asked = lambda o, name, default=None: own.get(name) or plain(o, name, default)  # noqa: E731
    monkeypatch.setattr(benchmark, "of", asked)
    monkeypatch.setattr(registry, "operations", lambda: OPERATIONS[:1])
    monkeypatch.setattr(demo, "measure_machine", lambda *_: profile.current())
    monkeypatch.setattr(profile, "encode", lambda found: found)
    monkeypatch.setattr(profile, "parse", lambda found: found)
    if seconds:
        monkeypatch.setattr(
            demo, "timed", lambda calls, **_: [calls[n]() for n in calls] and seconds
        )
    lines = []
    rows = demo.demo(picture=picture, show=lines.append)
    return rows, "\n".join(lines)


def test_demo_shows_losses_and_what_is_not_installed(monkeypatch):
    A, other = np.ones((3, 4)), np.full(3, 4.5)
    peers = {"fast": lambda turn: (other, 7), "slow": lambda turn: (other, 8)}

    def make():
        found = benchmark.compared(OPERATIONS[0], (A, A[0]), {}, peers)
        calls = {"automatic": lambda turn: (A @ A[0], {"iterations": 3})}
        return found._replace(calls=calls, missing={"Some library": "some-package"})

    case = Benchmark("a case: more of it", make)
    seconds = {"automatic": 2e-3, "fast": 5e-4, "slow": 9e-3}
    (row,), text = demonstrated(monkeypatch, case, seconds=seconds)
    assert row["iterations"] == 3
    assert {n: one["iterations"] for n, one in row["libraries"].items()} == {"fast": 7, "slow": 8}
    assert {one["difference"] for one in row["libraries"].values()} == {0.125}
    lines = {line.split()[0]: " ".join(line.split()) for line in text.splitlines() if line}
    assert lines["fast"] == (
        "fast 500 us 7 iterations, hetero takes 4.00 times as long, results differ by 1e-01"
    )
    assert lines["slow"] == (
        "slow 9 ms 8 iterations, hetero 4.50 times as fast, results differ by 1e-01"
    )
    assert lines["Some"] == "Some library - not installed: pip install some-package"
    assert lines["0.250"] == "0.250 2 ms 500 us fast a case", "the fastest counts"


def test_demo_goes_on_after_a_call_that_fails(monkeypatch):
    def fails(turn):
        raise hetero.errors.DeviceError("planted: the device has gone")

    def make():
        found = benchmark.compared(OPERATIONS[0], (np.ones((3, 4)), np.ones(4)), {}, {})
        return found._replace(calls={"automatic": fails})

    rows, text = demonstrated(monkeypatch, Benchmark("a case", make))
    assert rows == []
    assert "a case\n  failed: planted: the device has gone" in text


def test_demo_goes_on_without_a_library_that_fails(monkeypatch):
    """And saves one picture of an operation, the last: another one would replace its file."""

    def fails(turn):
        raise RuntimeError("planted")

    def make():
        return benchmark.compared(OPERATIONS[0], (np.eye(4), np.ones(4)), {}, {"Other": fails})

    cases = Benchmark("first", make), Benchmark("second", make)
    saved = lambda result, path: path  # noqa: E731
    rows, text = demonstrated(monkeypatch, *cases, picture="a file", saved=saved)
    for row in rows:
        assert (row["libraries"], row["failed"]) == ({}, {"Other": "RuntimeError: planted"})
    assert text.count("failed: RuntimeError: planted") == 2
    assert text.rpartition("second")[0].count("a file") == 0
    assert text.count("a file") == 1


@pytest.mark.parametrize("stored", [True, False])
def test_demo_calibrates_unless_a_profile_is_stored(stored, monkeypatch):
    found = [profile.Stored("a file", None, None if stored else "of another machine")]
    monkeypatch.setattr(profile, "survey", lambda: found)
    text = demonstrated(monkeypatch)[1]
    assert ("by the profile a file" in text, "calibrated in" in text) == (stored, not stored)


def test_demo_watches_nothing_and_says_where_no_gpu_is_compared(monkeypatch):
    def make():
        asked.append(kept.obstacle())
        found = benchmark.compared(OPERATIONS[0], (np.eye(4), np.ones(4)), {}, peers)
        place = found.plan.chosen._replace(device=device)
        return found._replace(plan=SimpleNamespace(chosen=place, candidates=()))

    def call(turn):
        asked.append(kept.obstacle())
        return np.ones(4)

    asked = []
    for device, name in (("cpu", "Other"), ("cuda:0", "Other"), ("cuda:0", "CuPy")):
        peers = {name: call}
        text = demonstrated(monkeypatch, Benchmark("a case", make))[1]
        no = (device, name) == ("cuda:0", "Other")
        assert ("no other library was compared on a GPU" in text) == no
    assert set(asked) == {"switched off by hetero.use"}


def test_cupys_products_and_solves_of_host_arrays(monkeypatch):
    """With NumPy and SciPy in CuPy's place."""
    A, b = np.diag([1.0, 2.0, 4.0]), np.ones(3)
    assert benchmarks.by_cupy(np, A, b).tolist() == [1.0, 2.0, 4.0]
    there = SimpleNamespace(asarray=np.asarray, asnumpy=np.asarray, csr_matrix=csr_array)
    monkeypatch.setattr(cg, "library", lambda name: there)
    monkeypatch.setattr(cg, "_cupys_solver", lambda: partial(scipy_cg, rtol=0.0))
    for matrix, name in ((A, "CuPy, dense"), (csr_array(A), "CuPy, CSR")):
        found = cg._from_host_by_cupy(matrix, b, 3)
        np.testing.assert_allclose(found[name](0)[0], [1.0, 0.5, 0.25])
    monkeypatch.setattr(cg, "_cupys_solver", lambda: None)
    assert cg._from_host_by_cupy(A, b, 3) == {}


def test_libraries_that_are_missing_have_a_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyamg", None)
    assert benchmark.missing("pyamg", "sklearn.cluster") == {"PyAMG": "pyamg"}


def test_movement_tells_of_copies_and_calls(opencl, monkeypatch, capsys):
    """Speeds of each kind of copy, and every call that is named."""
    case = Benchmark("a case", lambda: Comparison({"a": lambda turn: None}), most=3, budget=0.01)
    plain = benchmark.of
    monkeypatch.setattr(
        benchmark,
        "of",
        lambda o, name, *default: (
            (lambda dtype: [case]) if name == "moved" else plain(o, name, *default)
        ),
    )
    found = bench.movement(device=opencl, sizes=(1 << 12, 1 << 14))
    assert [row["bytes"] for row in found["copies"]] == [1 << 12, 1 << 14]
    for row in found["copies"]:
        assert len(row) == 8
        assert min(row.values()) > 0
    assert [row["case"] for row in found["calls"]] == ["a case"] * len(registry.operations())
    text = report.movement(found)
    assert "| both at once, pinned |" in text
    assert "| | 4 KiB | 16 KiB |" in text
    assert "a case (call)" in text


def test_without_a_gpu_movement_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(bench.benchmark, "cuda_device", lambda: None)
    monkeypatch.setattr(bench.devices, "missing", lambda: ["cuda: this; do that"])
    for proven, end in (({}, "do that"), ({"x:1": None}, "do that; --device takes x:1")):
        monkeypatch.setattr(bench.devices, "proven", lambda proven=proven: proven)
        with pytest.raises(DeviceNotAvailable, match=f"no GPU is here: cuda: this; {end}$"):
            bench.movement()
