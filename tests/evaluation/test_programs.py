"""`hetero bench programs`: each variant in a process of its own, and whether all agree."""

from __future__ import annotations

import json

import numpy as np
import pytest
from command_line import FAILED, OK, refused

from hetero import cli
from hetero.cli import kernels
from hetero.evaluation import programs
from hetero.ops.benchmark import library

FIGURES = {"program", "variant", "scale", "first", "later", "runs", "checksum", "same", "gain"}


@pytest.fixture
def here(monkeypatch):
    """Variants run in this process, once each after the first run."""
    monkeypatch.setattr(programs, "_in_process", programs.measured)
    monkeypatch.setattr(programs, "LATER", 1)
    monkeypatch.setattr(kernels.values, "compile_first", lambda operations: None)


def test_two_programs_in_every_variant(monkeypatch, capsys):
    monkeypatch.setattr(kernels.values, "compile_first", lambda operations: None)
    words = ["bench", "programs", "--quick", "--json"]
    chosen = ["--program", "power", "--program", "potential", "--program", "power"]
    assert cli.main([*words, *chosen]) == OK
    rows = json.loads(capsys.readouterr().out)
    gpu = ["CuPy"] if library("cupy") else []
    assert [row["variant"] for row in rows if row["program"] == "power"] == [
        *("NumPy", "hetero", "hetero, kept"),
        *gpu,
    ]
    assert [row["variant"] for row in rows if row["program"] == "potential"] == [
        *("NumPy", "hetero"),
        *gpu,
    ]
    for row in rows:
        assert row.keys() == FIGURES
        assert row["same"] is True
        assert row["scale"] == programs.SMALLER
        assert min(row["first"], row["later"], row["gain"]) > 0.0
        assert 1 <= row["runs"] <= programs.LATER
    assert rows[0]["gain"] == 1.0


@pytest.mark.parametrize("name", programs.PROGRAMS)
def test_every_program_computes_the_same_by_hetero(here, name):
    rows = programs.compare([name], 32)
    assert [row["variant"] for row in rows if not row["same"]] == []


def test_a_variant_that_computes_something_else_is_wrong(here, monkeypatch, capsys):
    def run(xp, do, A, x):
        return A @ x if do is not programs.functions else A @ x * 1.01

    monkeypatch.setitem(programs.PROGRAMS, "power", (run, "float64", [(99, 99), (99,)], False))
    assert cli.main(["bench", "programs", "--program", "power", "--markdown"]) == FAILED
    found = capsys.readouterr().out
    lines = [line for line in found.splitlines() if line.startswith("| power")]
    assert lines[0].endswith("| 1.00 | same |")
    assert lines[1].startswith("| power | hetero |")
    assert lines[1].endswith("| WRONG |")


def test_nan_is_wrong(here, monkeypatch):
    def run(xp, do, A):
        return np.full_like(A, np.nan) if do is programs.functions else A

    monkeypatch.setitem(programs.PROGRAMS, "nothing", (run, "float32", [(9,)], False))
    assert [row["same"] for row in programs.compare(["nothing"])][:2] == [True, False]


def test_a_variant_that_fails_says_why(monkeypatch):
    monkeypatch.setattr(programs, "_CHILD", "raise ValueError{}")
    rows = programs.compare(["heat"])
    assert rows[1]["failed"] == "ValueError: ('heat', 'hetero', 1)"
    assert "failed: ValueError: ('heat', 'NumPy', 1) |" in programs.text(rows)


def test_where_numpy_fails_nothing_is_compared(monkeypatch):
    def run(name, variant, scale):
        return {"failed": "no"} if variant == "NumPy" else {"first": 1.0, "later": 1.0}

    monkeypatch.setattr(programs, "_in_process", run)
    assert "| not compared |" in programs.text(programs.compare(["heat"]))


def test_losses_are_shown_like_gains():
    row = {"program": "heat", "variant": "NumPy", "scale": 1, "first": 1.0, "later": 2.0}
    rows = [{**row, "same": True, "gain": gain} for gain in (1.0, 0.25, 4.0)]
    table = programs.text(rows).splitlines()[-3:]
    assert [line.split("|")[5].strip() for line in table] == ["1.00", "0.25", "4.00"]


def test_by_hand_as_by_the_libraries():
    """What stands for CuPy's missing functions, with NumPy in CuPy's place."""
    X = np.random.default_rng(0).random((500, 3))
    options = {"init": X[:8].copy(), "n_init": 1, "max_iter": 3, "tol": 0.0}
    expected = programs.functions.kmeans(X, 8, **options)[0]
    assert np.allclose(programs._lloyd(np, X, 8, **options)[0], expected)


def test_an_unknown_program_is_refused(run):
    refused(run, "bench", "programs", "--program", "sorting", naming=("'sorting'", "'logistic'"))
