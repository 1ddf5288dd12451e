"""hetero explain: plans of this machine and of others, as `hetero.plan` gives them."""

from __future__ import annotations

import json

import pytest
from command_line import NO_CHOICE, OK, refused

import hetero
from hetero import profile
from hetero.host import cpu
from hetero.ops.convolve2d import fft

pytestmark = pytest.mark.usefixtures("hasty")


def test_all_devices_of_a_kind_that_has_one_are_said_to_be_that_one(run):
    code, out, _ = run("explain", "matmul", 9, 9, 9, "--device", "cuda:*", "--profile", "h100")
    assert (code, out.splitlines()[-1].strip()) == (
        OK,
        "cuda:* is cuda:0 alone: there is no other of that kind",
    )
    out = run("explain", "matmul", 9, 9, 9, "--device", "cuda:0", "--profile", "h100")[1]
    assert "alone" not in out


@pytest.mark.parametrize(
    "problem",
    [("matvec", 300, 200), ("matmul", 30, 40, 50), ("convolve2d", 64, 48, 3, 5)],
    ids=lambda p: p[0],
)
@pytest.mark.parametrize("profile_name", ["conservative", "tesla-t10"])
def test_explain(run, data, problem, profile_name):
    problem = (*problem, "--dtype", "float32")
    found = data("explain", *problem, "--profile", profile_name)
    assert found["operation"] == problem[0]
    assert found["dims"] == list(problem[1:-2])
    assert found["dtype"] == "float32"
    assert found["profile"] == profile_name
    assert found["chosen"].keys() == {"device", "method", "seconds"}
    assert found["candidates"]
    for row in found["candidates"]:
        told = "device method seconds terms reason threads links made_of"
        assert row.keys() == set(told.split())
    first = found["candidates"][0]
    assert found["chosen"] == {key: first[key] for key in found["chosen"]}
    code, out, _ = run("explain", *problem, "--profile", profile_name)
    assert code == OK
    assert "->" in out
    assert profile_name in out


def test_explain_options(data, opencl):
    assert data("explain", "matmul", 64, 64, 64)["profile"] == "conservative"
    assert data("explain", "matmul", 8, 8, 8, "--dtype", "float64")["dtype"] == "float64"
    assert data("explain", "matmul", 8, 8, 8, "--dtype", "int32")["chosen"]["device"] == "cpu"
    forced = data("explain", "matmul", 64, 64, 64, "--device", opencl)
    assert forced["chosen"]["device"] == opencl
    by_method = data("explain", "matvec", 64, 64, "--method", "blas")
    assert [row["method"] for row in by_method["candidates"]] == ["blas"]
    tesla = ("--dtype", "float32", "--profile", "tesla-t10")
    near = data("explain", "matvec", 9999, 9999, "--on", "cuda:0", *tesla)
    assert near["chosen"]["device"] == "cuda:0"
    assert "upload" not in near["candidates"][0]["terms"]


def test_explain_another_machine_from_a_file(data, tmp_path):
    content = {**profile.shipped("tesla-t10").data, "name": "copied"}
    path = profile.Profile(content).save(tmp_path / "copied.json")
    found = data("explain", "matvec", 4096, 4096, "--dtype", "float32", "--profile", path)
    assert found["profile"] == "copied"


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("sort", 5), ("'matvec', 'matmul', 'convolve2d'", "'sort'")),
        (("matvec", 5), ("2 dimensions, M K", "got 1")),
        (("matmul", 5, 5), ("3 dimensions, M N K", "got 2")),
        (("convolve2d", 5, 5), ("4 dimensions, H W FH FW", "got 2")),
        (("matmul", -1, 5, 5), ("-1",)),
        (("matmul",), ("DIM",)),
        (("matmul", 5, 5, 5, "--dtype", "floaty"), ("floaty",)),
        (("matmul", 5, 5, 5, "--on", "mars"), ("'host'", "mars")),
        (("matmul", 5, 5, 5, "--device", "mars"), ("'cpu'", "'mars'")),
        (("matmul", 5, 5, 5, "--method", "magic"), ("'blas'", "'magic'")),
        (("matmul", 5, 5, 5, "--profile", "mars"), ("'tesla-t10'", "'mars'")),
        (("matmul", 5, 5, 5, "--profile", __file__), ("JSON",)),
    ],
    ids=str,
)
def test_explain_refuses(run, arguments, naming):
    refused(run, "explain", *arguments, naming=naming)


def test_no_candidate_has_an_exit_code_of_its_own(run, tmp_path):
    """A machine of which only a GPU is known, and nothing about it."""
    known = profile.shipped("tesla-t10").data
    content = {**known, "devices": {"cuda:0": known["devices"]["cuda:0"]}, "models": {}}
    path = profile.Profile(content).save(tmp_path / "bare.json")
    code, out, err = run("explain", "matmul", 64, 64, 64, "--profile", path)
    assert code == NO_CHOICE
    assert "no constants" in out + err
    code, out, _ = run("explain", "matmul", 64, 64, 64, "--profile", path, "--json")
    assert code == NO_CHOICE
    assert json.loads(out)["chosen"] is None


SHAPES = {
    "matvec": ((40, 30), (30,)),
    "matmul": ((40, 50), (50, 30)),
    "convolve2d": ((64, 48), (3, 5)),
    "poisson": ((30, 40),),
}
DIMS = {
    "matvec": (40, 30),
    "matmul": (40, 30, 50),
    "convolve2d": (64, 48, 3, 5),
    "poisson": (30, 40),
}


@pytest.mark.parametrize("operation", SHAPES)
def test_explain_answers_as_plan_does(data, operation):
    """The same defaults: dtype, mode, tolerance."""
    specs = [hetero.spec(shape) for shape in SHAPES[operation]]
    assert data("explain", operation, *DIMS[operation]) == hetero.plan(operation, *specs).to_dict()


def test_explain_of_a_grid_answers_as_plan_does(data):
    found = hetero.plan("cg", hetero.Poisson((30, 40)), hetero.spec(1200)).to_dict()
    assert data("explain", "cg", 30, 40) == found


def test_a_solve_by_its_functions_name(data):
    f = hetero.spec((30, 40))
    assert hetero.plan("solve_poisson", f).to_dict() == hetero.plan("poisson", f).to_dict()
    A, b = hetero.spec((50, 50)), hetero.spec(50)
    assert hetero.plan("solve_cg", A, b).to_dict() == hetero.plan("cg", A, b).to_dict()
    assert data("explain", "solve_cg", 50) == data("explain", "cg", 50)
    with pytest.raises(ValueError, match=r"'solve_poisson', 'kmeans', got 'solve_matmul'"):
        hetero.plan("solve_matmul", A, A)
    with pytest.raises(ValueError, match="operation must be one of"):
        hetero.plan(A, A)


def lacking(monkeypatch):
    """No cuFFT here."""
    from hetero.devices.cuda import cufft

    monkeypatch.setattr(cufft, "obstacle", lambda: "cuFFT is not here")


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


@pytest.mark.parametrize("cores", [1, 2, 3, 64])
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


def test_this_machine_has_only_what_is_installed(data, monkeypatch, cuda):
    lacking(monkeypatch)
    rows = data("explain", "poisson", 1024, 1024)["candidates"]
    (dst,) = [row for row in rows if (row["method"], row["device"]) == ("dst", "cuda:0")]
    assert dst["reason"] == "cuFFT is not here"


@pytest.mark.parametrize(
    "arguments",
    [
        ("poisson", 64, 64),
        ("solve_cg", 64),
        ("matmul", 64, 64, 64),  # float64: he has float32 only
        ("matvec", 4096, 4096),  # large enough for tiles, of which nothing is known either
        ("poisson", 64, 64, "--device", "cuda:0"),
        ("matmul", 64, 64, 64, "--device", "cpu", "--method", "blas"),
    ],
    ids=str,
)
def test_what_another_machine_was_not_measured_for(run, arguments):
    """Nothing is chosen, exit code 3, and a line says what there is."""
    arguments = ("explain", *arguments, "--profile", "tesla-t10")
    code, out, err = run(*arguments)
    assert code == NO_CHOICE
    assert "no constants in this profile" in out
    assert not any(row.startswith("->") for row in out.splitlines())
    assert "not here" not in out
    (line,) = err.splitlines()
    assert "'tesla-t10' has constants for: matvec (float32)" in line
    code, out, _ = run(*arguments, "--json")
    assert code == NO_CHOICE
    assert json.loads(out)["chosen"] is None


def test_the_only_way_there_is_no_matter_of_constants(data):
    """Whole numbers are NumPy's on every machine."""
    found = data("explain", "matmul", 64, 64, 64, "--dtype", "int32", "--profile", "tesla-t10")
    assert found["chosen"] == {"device": "cpu", "method": "blas", "seconds": None}
