"""verify, bench, demo, programs: what they ask of operations, and what becomes of the answers."""

from __future__ import annotations

import json
import os
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import fakes
import numpy as np
import processes
import pytest

from hetero import profile, registry
from hetero.arrays import kept
from hetero.calibration import measure
from hetero.errors import DeviceNotAvailable
from hetero.evaluation import bench, comparing, problems
from hetero.evaluation.problems import Trial

OPERATIONS = registry.operations()
MATVEC = registry.operation("matvec")
A = np.arange(12.0).reshape(3, 4)


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_every_operation_can_be_verified(operation, hasty):
    rows = bench.verify((operation,), count=3, largest=16, seconds=30.0)
    for row in rows:
        assert row.problem.operation == operation.name
        assert row.seconds > 0.0, "of the call itself"
        assert row.ratio == max(1.0, row.seconds / row.measured[row.best])
    assert rows
    assert kept.OFF not in os.environ


def test_the_fastest_by_luck_is_timed_again_with_the_call(monkeypatch, hasty):
    asked = []

    def timed(calls, **how):
        asked.append(set(calls))
        first = len(asked) == 1
        return {name: 1.0 + i if first else 1.5 for i, name in enumerate(sorted(calls))}

    monkeypatch.setattr(bench, "timed", timed)
    (row,) = bench.verify((registry.operation("poisson"),), count=1, largest=16)
    assert asked == [set(row.predicted), {comparing.OWN, row.best}]
    assert row.best == min(row.predicted)
    assert (row.ratio, row.measured[row.best]) == (1.0, 1.5)
    assert bench.summary([row])["chosen_over_best"]["geometric_mean"] == 1.0


@pytest.mark.parametrize("operation", OPERATIONS, ids=lambda o: o.name)
def test_what_is_compared_solves_the_same(operation, monkeypatch):
    """By every method, and by the libraries, in as many iterations where these are asked."""
    of = problems.of(operation)
    small = {"matvec": (20, 30), "matmul": (20, 30, 10), "convolve2d": (20, 30, 3, 5)}
    small |= {"cg": (16, 16), "poisson": (15, 15), "kmeans": (3000, 4, 8)}
    monkeypatch.setattr(type(of), "sizes", (small[operation.name],))
    monkeypatch.setattr(problems, "COUNT", 8)
    device = {"device": "cpu", "order": "F"} if of.options else {}
    (row,) = bench.bench(operation, "float64", **device)
    assert f"{operation.function} {'x'.join(map(str, small[operation.name]))}" in row["case"]
    assert comparing.OWN in row["seconds"]
    assert row["chosen"] in row["seconds"]
    assert row["peers"]
    assert max(row["difference"].values()) < 1e-6
    assert row["failed"] == {}
    if operation.name in ("cg", "kmeans"):
        made = {n: row["iterations"][n] for n in (comparing.OWN, row["chosen"])}
        assert set(made.values()) == {8 if operation.name == "cg" else 20}
    text = comparing.text([row, row])
    assert text.count(f"| {row['peers'][0]} |") == 3
    assert "| automatic | 1.000 | 2 |" in text


@pytest.mark.parametrize("dims", [(20, 30), (20, 30, 10)])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bench_on_a_gpu(cuda, dims, order, monkeypatch):
    """Each candidate of the device on operands there; what has no room is left out."""
    monkeypatch.setattr(measure, "_BUSY", 1 << 12)
    monkeypatch.setattr(measure, "_COPIED", 1 << 12)
    monkeypatch.setattr(comparing, "_COLD_BYTES", 1 << 12)
    monkeypatch.setitem(sys.modules, "cupy", None)
    monkeypatch.setattr(cuda, "array_of", partial(fakes.Array.of, device=cuda), raising=False)
    operation = registry.operation("matvec" if len(dims) == 2 else "matmul")
    too_large = (1 << 20,) * len(dims)
    monkeypatch.setattr(type(problems.of(operation)), "sizes", (dims, too_large))
    (row,) = bench.bench(operation, "float64", device=cuda.name, order=order)
    assert row["seconds"].keys() == {"tiled on cuda:0"}
    assert (row["chosen"], row["peers"]) == ("tiled on cuda:0", [])
    assert row["copy_bandwidth"] > 0
    assert row["flops"] == 2.0 * np.prod(dims)


def test_cases_by_name_are_sizes_and_dtype_of_a_report(monkeypatch):
    def compared(operation, trial, case, longest):
        return ({"case": case, "seconds": {"own": 1.0}, "peers": []},)

    monkeypatch.setattr(bench, "compared", compared)
    rows = bench.bench(registry.operation("poisson"), device="cpu", cases="dtu")
    assert [row["case"] for row in rows] == [
        f"solve_poisson {n}x{n}, operands on host, float64" for n in (16, 32, 64, 128, 256)
    ]


def test_what_fails_is_left_out(monkeypatch):
    fails = fakes.raising(RuntimeError("planted\nand more"))
    of = SimpleNamespace(peers=lambda trial: {"Other": fails}, by_cupy=None)
    monkeypatch.setattr(problems, "of", lambda operation: of)
    row, _, result = comparing.compared(MATVEC, Trial((A, A[0])), "a case")
    assert (row["peers"], row["failed"]) == ([], {"Other": "RuntimeError: planted"})
    assert result.tolist() == (A @ A[0]).tolist()
    assert "Other is left out: RuntimeError: planted" in comparing.text([row])
    assert comparing.text([]) == "nothing could be measured"


@pytest.mark.parametrize("stored", [True, False])
def test_demo_watches_nothing_and_calibrates_unless_a_profile_is_stored(stored, monkeypatch):
    asked, of, found = [], type(problems.of(MATVEC)), None if stored else "of another machine"
    monkeypatch.setattr(of, "shown", lambda self, n: ((3, 4),))

    def other(trial):
        asked.append(kept.obstacle())
        return np.matmul(*trial.operands), 7

    monkeypatch.setattr(of, "peers", lambda self, trial: {"Other": partial(other, trial)})
    monkeypatch.setattr(registry, "operations", lambda: (MATVEC,))
    mine = profile.Stored("a file", profile.shipped("conservative"), found)
    monkeypatch.setattr(profile, "survey", lambda: mine)
    monkeypatch.setattr(bench, "calibrate", lambda *_, **__: None)
    lines = []
    (row,) = bench.demo(show=lines.append)
    assert set(asked) == {"switched off by hetero.use"}
    assert row["case"] == "matvec 3x4, operands on host, float32"
    assert row["iterations"] == {"Other": 7}
    assert row["difference"]["Other"] < 1e-6
    text = "\n".join(lines)
    assert ("by the profile a file" in text, "calibrated in" in text) == (stored, not stored)


def test_movement_tells_of_copies(opencl):
    found = bench.movement(device=opencl, sizes=(1 << 12, 1 << 14))
    assert [row["bytes"] for row in found["copies"]] == [1 << 12, 1 << 14]
    for row in found["copies"]:
        assert len(row) == 8
        assert min(row.values()) > 0
    text = bench.text(found)
    assert "| both at once, pinned |" in text
    assert "| | 4 KiB | 16 KiB |" in text


def test_without_a_gpu_movement_says_what_is_missing(monkeypatch):
    monkeypatch.setattr(problems.devices, "missing", lambda: ["cuda: this; do that"])
    monkeypatch.setattr(problems.devices, "proven", dict)
    with pytest.raises(DeviceNotAvailable, match="device is here: cuda: this; do that; 'hetero l"):
        bench.movement()


# -- Candidates are timed as a program's calls are ------------------------------------------------


def test_what_ran_before_counts_for_nobody(monkeypatch):
    """Each call is slow at first after another one, and loops are while BLAS's threads spin."""
    host = SimpleNamespace(now=0.0, used=0.0, spins_until=0.0, last="")

    def sleep(seconds):
        host.used += min(seconds, max(host.spins_until - host.now, 0.0))
        host.now += seconds

    def run(name, seconds):
        if host.last != name:
            seconds *= 8.0
        if host.spins_until > host.now and name != "product":
            seconds *= 5.0
        host.now += seconds
        host.used += seconds
        host.last = name
        if name == "product":
            host.spins_until = host.now + 0.1

    monkeypatch.setattr(time, "perf_counter", lambda: host.now)
    monkeypatch.setattr(time, "process_time", lambda: host.used)
    monkeypatch.setattr(time, "sleep", sleep)
    took, failed = {"product": 2e-4, "loop": 1e-4, "device": 1.5e-4}, {}
    calls = {name: partial(run, name, seconds) for name, seconds in took.items()}
    assert comparing.timed(calls, failed=failed) == pytest.approx(took)
    assert not failed
    assert host.spins_until < host.now


# -- docs/benchmarks/programs.py -------------------------------------------------------------------


def test_two_programs_in_every_variant():
    """Each variant in a process of its own; all agree."""
    script = Path(__file__).parents[2] / "docs" / "benchmarks" / "programs.py"
    done = processes.python(script, "power", "potential", "--quick", "--json")
    rows = [row for row in json.loads(done.stdout) if row["variant"] != "CuPy"]
    assert [(row["program"], row["variant"]) for row in rows] == [
        *(("power", variant) for variant in ("NumPy", "hetero", "hetero, kept")),
        *(("potential", variant) for variant in ("NumPy", "hetero")),
    ]
    for row in rows:
        assert row["same"] is True
        assert min(row["first"], row["later"], row["gain"]) > 0.0
    assert rows[0]["gain"] == 1.0
