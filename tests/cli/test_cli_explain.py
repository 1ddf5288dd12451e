"""hetero explain: plans of this machine and of others, as `hetero.plan` gives them."""

from __future__ import annotations

import json

import pytest
from command_line import NO_CHOICE

import hetero
from hetero.host import cpu
from hetero.ops.convolve2d import fft

pytestmark = pytest.mark.usefixtures("hasty")


def test_explain_options(data, opencl):
    assert data("explain", "matmul", 8, 8, 8, "--dtype", "int32")["chosen"]["device"] == "cpu"
    assert data("explain", "matmul", 64, 64, 64, "--device", opencl)["chosen"]["device"] == opencl
    by_method = data("explain", "matvec", 64, 64, "--method", "blas")
    assert [row["method"] for row in by_method["candidates"]] == ["blas"]


# Operation -> shapes of its operands, and what the command takes.
SIZES = {
    "matvec": ([(40, 30), (30,)], (40, 30)),
    "matmul": ([(40, 50), (50, 30)], (40, 30, 50)),
    "convolve2d": ([(64, 48), (3, 5)], (64, 48, 3, 5)),
    "poisson": ([(30, 40)], (30, 40)),
}


@pytest.mark.parametrize("operation", SIZES)
def test_explain_answers_as_plan_does(data, operation):
    """The same defaults: dtype, mode, tolerance."""
    shapes, dims = SIZES[operation]
    found = hetero.plan(operation, *map(hetero.spec, shapes)).to_dict()
    assert data("explain", operation, *dims) == found
    if operation == "poisson":  # by its function's name, too
        assert data("explain", "solve_poisson", *dims) == found
        found = hetero.plan("cg", hetero.Poisson(dims), hetero.spec(1200)).to_dict()
        assert data("explain", "cg", *dims) == found


def lacking(monkeypatch):
    """No cuFFT here."""
    from hetero.devices.cuda import libraries

    monkeypatch.setattr(libraries, "cufft_obstacle", lambda: "cuFFT is not here")


def test_another_machine_has_its_own_packages(data, monkeypatch):
    lacking(monkeypatch)
    found = data("explain", "poisson", 1024, 1024, "--profile", "h200")
    assert (found["chosen"]["method"], found["chosen"]["device"]) == ("dst", "cuda:0")
    size = ("convolve2d", 2048, 2048, 5, 5, "--dtype", "float32", "--mode", "same")
    rows = data("explain", *size, "--profile", "h200")["candidates"]
    priced = {(row["method"], row["device"]) for row in rows if row["seconds"] is not None}
    assert ("fft", "cuda:0") in priced
    assert not any("here" in (row["reason"] or "") for row in rows)
    rows = data("explain", "matmul", 512, 512, 512, "--profile", "h200")["candidates"]
    assert any(row["method"] == "library" and row["seconds"] for row in rows)


@pytest.mark.parametrize("cores", [1, 64])
def test_another_machine_has_its_own_cores(data, monkeypatch, cores):
    """Nothing of this machine is in the answer: cores, packages, devices."""
    lines = [
        ("convolve2d", 2000, 3000, 33, 33, "--dtype", "float32"),
        ("convolve2d", 700, 900, 65, 65),
        ("poisson", 300, 400),
        ("solve_cg", 300, 400),
        ("matmul", 300, 200, 100),
    ]
    here = [data("explain", *line, "--profile", "h200") for line in lines]
    lacking(monkeypatch)
    other = {**cpu.describe(), "cores": cores}
    monkeypatch.setattr(cpu, "describe", lambda: other)
    fft.on_cpu.cache_clear()
    try:
        assert [data("explain", *line, "--profile", "h200") for line in lines] == here
    finally:
        fft.on_cpu.cache_clear()


def test_what_another_machine_was_not_measured_for(run):
    """Nothing is chosen, exit code 3; the contract has the text."""
    code, out, err = run("explain", "solve_cg", 64, "--profile", "tesla-t10", "--json")
    assert (code, json.loads(out)["chosen"]) == (NO_CHOICE, None)
    assert "'tesla-t10' has constants for: matvec (float32)" in err


def test_the_only_way_there_is_no_matter_of_constants(data):
    """Whole numbers are NumPy's on every machine."""
    found = data("explain", "matmul", 64, 64, 64, "--dtype", "int32", "--profile", "tesla-t10")
    assert found["chosen"] == {"device": "cpu", "method": "blas", "seconds": None}
