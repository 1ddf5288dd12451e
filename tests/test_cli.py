"""The command line: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from hetero import cli, devices, profile
from hetero.calibration import efforts

OK, FAILED, USAGE, NO_CHOICE = 0, 1, 2, 3


@pytest.fixture(autouse=True)
def short(monkeypatch):
    """Calibrating takes a second here: what is measured does not matter, only that all is there."""
    hasty = dataclasses.replace(
        efforts.QUICK,
        budget=0.0002,
        longest=0.002,
        step=16.0,
        device_step=16.0,
        held_out=2,
        largest_transfer=2**16,
        total=1.0,
    )
    monkeypatch.setattr(efforts, "QUICK", hasty)


@pytest.fixture
def run(capsys):
    """Run a command: (exit code, standard output, standard error)."""

    def command(*arguments):
        try:
            code = cli.main([str(a) for a in arguments])
        except SystemExit as stop:  # argparse's way
            code = stop.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return command


@pytest.fixture
def data(run):
    """Run a command with --json that must do: its output."""

    def command(*arguments):
        code, out, err = run(*arguments, "--json")
        assert code == OK, err
        return json.loads(out)

    return command


def refused(run, *arguments, naming, code=USAGE):
    """The command must end with that code and one clear message, not with a traceback."""
    found, out, err = run(*arguments)
    assert found == code, err
    assert not out
    for name in naming:
        assert name in err
    assert "Traceback" not in err


# -- info ----------------------------------------------------------------------------------------


def test_info(run, data):
    found = data("info")
    assert found.keys() == {"cpu", "devices", "links", "missing", "profile"}
    assert {"name", "cores", "memory_bytes", "blas", "blas_version"} <= found["cpu"].keys()
    assert found["profile"].keys() == {"name", "file"}
    assert set(found["devices"]) == set(devices.available())
    for info in found["devices"].values():
        assert {"kind", "name", "memory_bytes", "multiprocessors", "driver"} <= info.keys()
    code, out, _ = run("info")
    assert code == OK
    assert found["cpu"]["name"] in out


def test_info_says_what_is_missing_and_what_to_install(data):
    missing = " ".join(data("info")["missing"])
    for backend in ("cuda", "opencl"):
        if not any(name.startswith(backend) for name in devices.available()):
            assert f"{backend}: " in missing
            assert "install" in missing


# -- explain -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "problem",
    [("matvec", 300, 200), ("matmul", 30, 40, 50), ("convolve2d", 64, 48, 3, 5)],
    ids=lambda p: p[0],
)
@pytest.mark.parametrize("profile_name", ["conservative", "tesla-t10"])
def test_explain(run, data, problem, profile_name):
    found = data("explain", *problem, "--profile", profile_name)
    assert found["operation"] == problem[0]
    assert found["dims"] == list(problem[1:])
    assert found["dtype"] == "float32"
    assert found["profile"] == profile_name
    assert found["chosen"].keys() == {"device", "method", "seconds"}
    assert found["candidates"]
    for row in found["candidates"]:
        assert row.keys() == {"device", "method", "seconds", "terms", "reason"}
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
    near = data("explain", "matvec", 9999, 9999, "--on", "cuda:0", "--profile", "tesla-t10")
    assert near["chosen"]["device"] == "cuda:0"
    assert "upload" not in near["candidates"][0]["terms"]


def test_explain_another_machine_from_a_file(data, tmp_path):
    content = {**profile.shipped("tesla-t10").data, "name": "copied"}
    path = profile.Profile(content).save(tmp_path / "copied.json")
    assert data("explain", "matvec", 4096, 4096, "--profile", path)["profile"] == "copied"


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("sort", 5), ("'matvec', 'matmul', 'convolve2d'", "'sort'")),
        (("matvec", 5), ("2 dimensions, M K", "got 1")),
        (("matmul", 5, 5), ("3 dimensions, M N K", "got 2")),
        (("convolve2d", 5, 5), ("4 dimensions, H W FH FW", "got 2")),
        (("matmul", -1, 5, 5), ("-1",)),
        (("matmul", "many", 5, 5), ("many",)),
        (("matmul",), ("DIM",)),
        (("matmul", 5, 5, 5, "--dtype", "floaty"), ("floaty",)),
        (("matmul", 5, 5, 5, "--on", "mars"), ("'host'", "mars")),
        (("matmul", 5, 5, 5, "--on", "gpu:banana"), ("'host'", "gpu:banana")),
        (("matmul", 5, 5, 5, "--device", "mars"), ("'cpu'", "'mars'")),
        (("matmul", 5, 5, 5, "--method", "magic"), ("'blas'", "'magic'")),
        (("matmul", 5, 5, 5, "--profile", "mars"), ("'tesla-t10'", "'mars'")),
        (("matmul", 5, 5, 5, "--profile", __file__), ("JSON",)),
        (("matmul", 5, 5, 5, "--profile", "/"), ("/",)),
        (("matmul", 5, 5, 5, "--nonsense"), ("--nonsense",)),
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


# -- calibrate -----------------------------------------------------------------------------------


def test_calibrate(data, run, profile_file):
    found = data("calibrate", "--quick")
    assert found.keys() == {"path", "devices", "residuals"}
    assert found["path"] == str(profile_file)
    assert "cpu" in found["devices"]
    for key, errors in found["residuals"].items():
        assert {"mean", "p95", "worst"} <= errors.keys(), key
    assert any(key.startswith("cpu|matmul|blas|float32") for key in found["residuals"])
    stored = profile.read(profile_file)
    assert stored.data.keys() >= {"schema_version", "units", "fingerprint", "sha256", "created"}
    for model in stored.data["models"].values():
        assert model.keys() >= {"form", "constants", "samples"}
    # From now on it is this machine's.
    assert data("explain", "matmul", 64, 64, 64)["profile"] == stored.name
    assert data("info")["profile"] == {"name": stored.name, "file": str(profile_file)}


def test_calibrate_somewhere_else_and_one_device(run, profile_file, tmp_path, opencl):
    path = tmp_path / "elsewhere.json"
    arguments = ("--quick", "--path", path, "--device", "cpu", "--device", opencl)
    code, out, _ = run("calibrate", *arguments)
    assert code == OK
    assert str(path) in out
    assert not profile_file.exists()
    stored = profile.read(path)
    assert stored.data["links"].keys() == {opencl}
    assert stored.data["links"][opencl].keys() == {"upload", "download"}
    for kinds in stored.data["links"][opencl].values():
        assert kinds.keys() == {"pageable", "pinned"}
    assert {key.split("|")[0] for key in stored.data["models"]} == {"cpu", opencl}


def test_calibrate_refuses(run, tmp_path, profile_file):
    refused(run, "calibrate", "--quick", "--device", "mars", naming=("'cpu'", "'mars'"))
    blocked = tmp_path / "file"
    blocked.write_text("in the way")
    target = ("--quick", "--device", "cpu", "--path", blocked / "p.json")
    refused(run, "calibrate", *target, naming=(str(blocked),), code=FAILED)


# -- verify, demo, bench -------------------------------------------------------------------------

FIGURES = {"geometric_mean", "p95", "p99", "worst", "fastest_within_5_percent"}


def test_verify(data, run):
    found = data("verify", "--largest", 64, "--count", 3, "--seconds", 20)
    assert found.keys() == {"problems", "chosen_over_best", "fastest", "prediction_error", "links"}
    assert 1 <= found["problems"] <= 6
    assert found["chosen_over_best"].keys() == FIGURES
    assert found["chosen_over_best"]["worst"] >= found["chosen_over_best"]["geometric_mean"] >= 1.0
    assert any("matvec blas on cpu" in name for name in found["prediction_error"])
    assert sum(found["fastest"].values()) == found["problems"]
    code, out, _ = run("verify", "matvec", "--largest", 64, "--count", 2, "--seconds", 20)
    assert code == OK
    assert "geometric mean" in out
    assert "99th" in out
    assert "matmul" not in out


def test_verify_draws_the_same_problems_again():
    from random import Random

    from hetero.calibration.verify import random_problem

    first, second = (
        [random_problem(Random(5), "matmul", "host", 256) for _ in range(3)] for _ in range(2)
    )
    assert first == second


def test_verify_that_measures_nothing(run):
    code, out, _ = run("verify", "--count", 0, "--json")
    assert code == NO_CHOICE
    assert json.loads(out)["problems"] == 0
    code, _, _ = run("verify", "--count", 0)
    assert code == NO_CHOICE


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("sort",), ("'matvec'", "'matmul'", "'sort'")),
        (("--on", "mars"), ("'cpu'", "'mars'")),
        (("--largest", "1"), ("--largest", "1")),
        (("--largest", "-5"), ("--largest", "-5")),
        (("--count", "few"), ("few",)),
    ],
    ids=str,
)
def test_verify_refuses(run, arguments, naming):
    refused(run, "verify", *arguments, naming=naming)


def test_verify_on_a_device_without_arrays(run, opencl):
    refused(run, "verify", "--on", opencl, "--count", 1, naming=("--on", opencl))


def test_demo(data, run, tmp_path):
    found = data("demo", "--largest", 16)
    assert found.keys() >= {"calls", "problems", "chosen_over_best"}
    assert found["chosen_over_best"].keys() == FIGURES
    for call in found["calls"]:
        assert call.keys() == {
            "call",
            "operands_on",
            "device",
            "method",
            "predicted",
            "measured",
            "best_alternative",
        }
        assert call["measured"] > 0
    assert {c["call"].split()[0] for c in found["calls"]} == {"matvec", "matmul"}
    assert {row["filter"].split(",")[0] for row in found["picture"]} == {
        "edges",
        "blur",
        "out of focus",
    }
    picture = tmp_path / "picture.pgm"
    code, out, _ = run("demo", "--largest", 16, "--picture", picture)
    assert code == OK
    content = picture.read_bytes()
    assert content.startswith(b"P5 2048 2048 255\n")
    assert len(content) == 17 + 2048**2
    assert len(set(content[17:])) > 100
    for word in ("calibrated in", "predicted", "measured", "best alternative", "geometric mean"):
        assert word in out


def test_demo_stores_nothing(run, profile_file):
    assert run("demo", "--largest", 16)[0] == OK
    assert not profile_file.exists()


def test_demo_refuses(run):
    refused(run, "demo", "--largest", 3, naming=("--largest", "16", "3"))


def test_bench_without_a_gpu(run):
    if any(name.startswith("cuda") for name in devices.available()):
        pytest.skip("there is a GPU: test_gpu.py runs it")
    refused(run, "bench", "matmul", naming=("'cpu'", "'cuda:0'"))


# -- All of them ---------------------------------------------------------------------------------

COMMANDS = ["info", "calibrate", "explain", "verify", "bench", "demo"]


def test_help_names_every_command_and_the_exit_codes(run):
    code, out, _ = run("--help")
    assert code == OK
    for command in COMMANDS:
        assert f"    {command}" in out
        code, sub, _ = run(command, "--help")
        assert code == OK
        assert "--json" in sub
        assert "Exit codes: 0 done" in sub
    assert "Exit codes: 0 done" in out


def test_no_command_is_wrong_usage(run):
    assert run()[0] == USAGE
    assert run("nonsense")[0] == USAGE


def test_module_and_script():
    arguments = ["explain", "matvec", "4096", "4096", "--profile", "tesla-t10", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hetero", *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["chosen"]["device"] == "cuda:0"


def test_a_bar_on_a_terminal_only(monkeypatch, capsys):
    assert cli.progress_bar() is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = cli.progress_bar()
    show(0.5, "half")
    show(1.0, "done")
    err = capsys.readouterr().err
    assert "half" in err
    assert err.endswith("\n")
    assert err.count("#") == 15 + 30


def test_a_reader_that_has_seen_enough():
    """As `hetero explain ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hetero", "explain", "matmul", "64", "64", "64"]
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "pipe" not in done.stderr.lower()
