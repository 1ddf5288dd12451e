"""The command line: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import hetero
from hetero import devices, errors, terminal
from hetero.calibration import budgets
from hetero.cli import commands
from hetero.devices import cpu
from hetero.ops.convolve2d import tiles_cpu
from hetero.runtime import inventory, profile, registry

OK, FAILED, USAGE, NO_CHOICE = 0, 1, 2, 3


@pytest.fixture(autouse=True)
def short(hasty):
    """Calibrating takes a second here."""


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
    assert found.keys() == {
        "cpu",
        "devices",
        "links",
        "broken",
        "missing",
        "profile",
        "profiles",
        "kernels",
    }
    assert {"name", "cores", "memory_bytes", "blas", "blas_version"} <= found["cpu"].keys()
    assert found["profile"].keys() == {"name", "file", "calibrate_writes"}
    assert set(found["devices"]) == set(devices.available())
    for info in found["devices"].values():
        assert {"kind", "name", "memory_bytes", "multiprocessors", "driver"} <= info.keys()
    code, out, _ = run("info")
    assert code == OK
    assert found["cpu"]["name"] in out


def test_info_says_what_is_missing_and_what_to_install(data):
    missing = " ".join(data("info")["missing"])
    for backend in ("cuda", "opencl"):
        if not any(name.startswith(backend) for name in devices.everything()):
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


def test_calibrate(data, run, profile_file, believed, monkeypatch):
    patient = dataclasses.replace(
        budgets.QUICK, patience=1e3
    )  # nothing is left out for want of time
    monkeypatch.setattr(budgets, "QUICK", patient)
    found = data("calibrate", "--quick")
    parts = {"path", "written", "devices", "residuals", "not_acceptable", "doubtful"}
    assert found.keys() == parts
    assert found["path"] == str(profile_file)
    assert "cpu" in found["devices"]
    for key, figures in found["residuals"].items():
        assert {"mean", "p95", "worst"} <= figures.keys(), key
    assert any(key.startswith("cpu|matmul|blas|float32") for key in found["residuals"])
    stored = profile.read(profile_file)
    assert "cpu|matmul|blas|float32|*" in stored.data["models"]
    assert stored.data.keys() >= {"schema_version", "units", "fingerprint", "sha256", "created"}
    for model in stored.data["models"].values():
        assert model.keys() >= {"form", "constants", "samples"}
    # From now on it is this machine's.
    assert data("explain", "matmul", 64, 64, 64)["profile"] == stored.name
    path = str(profile_file)
    assert data("info")["profile"] == {
        "name": stored.name,
        "file": path,
        "calibrate_writes": path,
    }


def test_calibrate_somewhere_else_and_one_device(run, profile_file, tmp_path, opencl, monkeypatch):
    """Of one operation: the kernels of all would take a minute to compile."""
    one = registry.operation("matvec")
    monkeypatch.setattr(registry, "operations", lambda: (one,))
    path = tmp_path / "elsewhere.json"
    arguments = ("--quick", "--path", path, "--device", "cpu", "--device", opencl)
    code, out, err = run("calibrate", *arguments)
    assert code == OK
    assert "\r" not in err, "no bar in a pipe"
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


def test_calibrate_says_which_constants_not_to_trust(run, monkeypatch):
    """A fit that is off by a factor is named, in the text and in the JSON."""
    calibrate = importlib.import_module("hetero.calibration.calibrate")  # a function's name too
    from hetero.evaluation import report

    content = json.loads(json.dumps(profile.shipped("h200").data))
    assert report.doubtful(profile.Profile(content)) == []
    assert "calibrate again" not in report.calibration(profile.Profile(content))
    key = "cpu|matmul|blas|float32|*"
    for wrong in (54.05, float("nan")):
        content["models"][key]["residuals"] = {"mean": wrong, "p95": 448.9, "worst": 448.9}
        measured = profile.Profile(content)
        assert report.doubtful(measured) == [key]
        text = report.calibration(measured)
        assert "off by more than 100% in the mean: cpu matmul blas float32 *" in text
        assert "calibrate again" in text
        outcome = calibrate.Outcome(measured, is_new=True)
        monkeypatch.setattr(calibrate, "outcome", lambda *_, found=outcome, **__: found)
        code, out, _ = run("calibrate", "--json")
        assert code == OK
        assert json.loads(out)["doubtful"] == [key]


def test_calibrate_says_which_errors_are_acceptable():
    from hetero.evaluation import report

    content = json.loads(json.dumps(profile.shipped("conservative").data))
    good, bad = "cpu|matvec|blas|float32|*", "cpu|matmul|blas|float32|*"
    content["links"]["cuda:0"] = content["links"]["cuda:*"]
    link = content["links"]["cuda:0"]["upload"]["pageable"]
    errors = {"mean": 0.4, "p95": 1.0, "worst": 9.0}
    content["models"][good]["residuals"] = errors
    text = report.calibration(profile.Profile(content))
    assert "all are acceptable" in text
    assert "40% in the mean and 100% at the 95th percentile; of links 10% and 30%" in text
    for wrong in ({"mean": 0.41}, {"p95": 1.01}, {"mean": float("nan")}):
        content["models"][bad]["residuals"] = errors | wrong
        measured = profile.Profile(content)
        assert report.not_acceptable(measured) == [bad]
        (line,) = (x for x in report.calibration(measured).splitlines() if x.endswith("% *"))
        assert line.startswith("cpu matmul blas float32")
        assert "marked with *: 1 of 2" in report.calibration(measured)
    link["residuals"] = {"mean": 0.11, "p95": 0.2, "worst": 0.2}
    found = report.not_acceptable(profile.Profile(content))
    assert {bad, "cuda:0|upload|pageable"} <= set(found)


# -- verify, demo, bench -------------------------------------------------------------------------

SUMMARY = {"chosen_over_best", "fastest", "prediction_error"}
FIGURES = {"geometric_mean", "p95", "p99", "worst", "fastest_within_5_percent"}


def test_verify(data, run):
    found = data("verify", "--largest", 64, "--count", 3, "--seconds", 20)
    assert found.keys() == {"left_out", "problems", "links", *SUMMARY}
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

    from hetero.evaluation.draws import draw

    for operation in registry.operations():
        first, second = (
            [
                str(operation.problem(*trial.operands, **trial.options))
                for trial in (draw(operation, source, "host", 256) for _ in range(3))
            ]
            for source in (Random(5), Random(5))
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


def test_demo(data, tmp_path, profile_file, small_demo):
    picture = tmp_path / "picture.pgm"
    found = data("demo", "--largest", 16, "--picture", picture)
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
    assert not profile_file.exists(), "stored"
    content = picture.read_bytes()
    assert content.startswith(b"P5 256 256 255\n")
    assert len(content) == 15 + 256**2
    assert len(set(content[15:])) > 100
    content = (tmp_path / "picture-16-colours.ppm").read_bytes()
    assert content.startswith(b"P6 128 128 255\n")
    pixels = np.frombuffer(content, np.uint8, offset=15).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) == found["quantised"]["colours"] == 16


def test_the_demos_equation_is_an_ordinary_one():
    """Conjugate gradients take about the steps that are priced; the error is of second order."""
    from hetero.ops.poisson.demonstration import example

    errors_seen = []
    for n in (31, 63):
        f, exact, h = example(n)
        u, info = hetero.solve_poisson(
            f, spacing=h, method="cg", device="cpu", rtol=1e-8, return_info=True
        )
        (row,) = info["plan"].candidates
        expected = row.implementation.work(info["plan"].problem, {"kind": "cpu"}).repeat
        assert 0.5 * expected < info["iterations"] < 2.0 * expected
        errors_seen.append(abs(u - exact).max())
    assert 3.5 < errors_seen[0] / errors_seen[1] < 4.5


def test_demo_refuses(run):
    refused(run, "demo", "--largest", 3, naming=("--largest", "16", "3"))


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
    arguments = ["explain", "matvec", "4096", "4096", "--dtype", "float32"]
    arguments += ["--profile", "tesla-t10", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hetero", *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["chosen"]["device"] == "cuda:0"


def test_a_bar_on_a_terminal_only(monkeypatch, capsys):
    assert terminal.progress_bar() is None
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    show = terminal.progress_bar()
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


# -- Whatever is typed --------------------------------------------------------------------------

USUAL = ["1", "2", "3", "7", "64", "1023", "2048", "100000"]
NUMBERS = [
    *("0", "-1", "3e8", "1.5", "nan", "inf", "0x10", "1_000", "", " ", "١٢", "--", "\0"),
    *("2147483647", "2147483648", "4294967296", str(2**40), str(2**61), str(2**62)),
    *(str(2**63 - 1), str(2**63), str(2**64), "9" * 400, "9" * 5000),
]
DTYPES = [
    *("int32", "complex128", "float16", "bool", "object", "U", "V8", "S0", "f4,f4", "(2,3)f8"),
    *("(99999999999,)f4", "datetime64[q]", ">f8", "", "float 64", "\0", "d" * 400),
]
PLACES = ["cuda", "cuda:*", "cuda:9" * 50, "opencl:0", ":", "", "\0", "/", "mars"]
METHODS = ["blas", "tiled", "library", "direct", "fft", "dst", "fused", "", "magic", "\0"]
PROFILES = ["../h200", "/", "/dev/null", "", "\0", "x" * 5000, "mars"]


def hostile_lines(seed, number):
    """Command lines of `explain` with anything anywhere, drawn anew from the seed."""
    draw = random.Random(seed)
    sizes = {"matvec": 2, "matmul": 3, "convolve2d": 4, "cg": 2, "poisson": 2, "solve_cg": 1}
    for _ in range(number):
        operation = draw.choice([*sizes, *sizes, "solve_poisson", "", "sort", "__class__"])
        usual = sizes.get(operation, 2)
        count = draw.choice([usual] * 8 + [0, 1, 3, 9])
        numbers = draw.choice([USUAL, USUAL + NUMBERS, NUMBERS])
        line = ["explain", operation, *(draw.choice(numbers) for _ in range(count))]
        for option, usual_values, values in (
            ("--dtype", ["float32", "float64"], DTYPES),
            ("--on", ["host", "cuda:0"], PLACES),
            ("--device", ["cpu", "cuda:0"], PLACES),
            ("--method", ["blas", "direct"], METHODS),
            ("--profile", ["tesla-t10", "h100", "h200", "conservative"], PROFILES),
            ("--mode", ["full", "same", "valid"], ["", "\0"]),
        ):
            if draw.random() < 0.2:
                line += [option, draw.choice(draw.choice([usual_values, values]))]
        if draw.random() < 0.2:
            line.append("--json")
        yield line


@pytest.mark.parametrize("seed", range(4))
def test_no_arguments_of_explain_end_in_a_traceback(run, seed):
    """An answer, or exit code 2 or 3 and one line; a traceback fails here as what raised it."""
    codes = []
    for line in hostile_lines(seed, 150):
        code, out, err = run(*line)
        codes.append(code)
        assert code in (OK, USAGE, NO_CHOICE), (line, code, err)
        if code == USAGE:
            assert not out, line
            message = err.splitlines()[-1]
            assert message.startswith("hetero"), (line, err)
            assert len(message) < 6000, line
            assert "usage:" in err or len(err.splitlines()) == 1, (line, err)
    assert codes.count(OK) >= 5, "lines that mean something are among them"
    assert codes.count(USAGE) >= 50


@pytest.mark.parametrize(
    "extent",
    [2**61, 2**62, 2**63 - 1, 2**63, 10**30, int("9" * 400)],
    ids=["2^61", "2^62", "2^63 - 1", "2^63", "10^30", "400 digits"],
)
@pytest.mark.parametrize(
    "shape",
    ["matvec 5 {}", "matmul 5 5 {}", "convolve2d {} 5 3 3", "cg {}", "cg 5 {}", "poisson {} 5"],
)
def test_arrays_that_cannot_be(run, shape, extent):
    words = shape.format(extent).split()
    refused(run, "explain", *words, "--profile", "h200", naming=("2^63",))


@pytest.mark.parametrize("operation", ["matvec 5 0", "matmul 0 5 5", "poisson 5 -3"])
def test_extents_are_at_least_one(run, operation):
    refused(run, "explain", *operation.split(), naming=("at least 1",))


@pytest.mark.parametrize(
    "words",
    [
        *("poisson 536870912 1073741824", "poisson 2 300000000", "poisson 1 1152921504606846975"),
        *(
            "cg 536870912 1073741824",
            "convolve2d 1099511627776 1 3 1",
            "matvec 1 1152921504606846975",
        ),
    ],
)
def test_the_largest_arrays_have_a_plan_at_once(run, words):
    begin = time.perf_counter()
    for machine in ("h100", "h200", "conservative"):
        code, _, err = run("explain", *words.split(), "--profile", machine)
        assert code == OK, err
    assert time.perf_counter() - begin < 5.0


@pytest.mark.parametrize(
    ("arguments", "naming"),
    [
        (("verify", "--count", "-1"), ("--count", "-1")),
        (("verify", "--seconds", "nan"), ("--seconds", "nan")),
        (("verify", "--seconds", "-1"), ("--seconds", "-1")),
        (("verify", "--largest", "9" * 400), ("--largest",)),
        (("verify", "--seed", "9" * 5000), ("--seed", "5000 characters")),
        (("demo", "--largest", "9" * 400), ("--largest",)),
        (("bench", "sort"), ("'matvec'", "'sort'")),
        (("bench", "matmul", "--device", "mars"), ("'cpu'", "'mars'")),
        (("bench", "matmul", "--order", "Z"), ("'C'", "'Z'")),
        (("explain", "matmul", "9" * 5000, "5", "5"), ("whole number", "5000 characters")),
        (("explain", "matmul", "5", "5", "5", "--mode", "same"), ("--mode", "convolve2d")),
        (("demo", "--picture", ""), ("--picture", "''")),
        (("demo", "--picture", "a\0b"), ("--picture", "a")),
        (("ladder", "matmul", "--plot", ""), ("--plot", "must name a file", "''")),
        (("transfer", "1MiB", "--plot", ""), ("--plot", "must name a file", "''")),
        (("calibrate", "--path", "\0"), ("--path", "file")),
        (("report", ""), ("FILE", "must name a file", "''")),
        (("report", "page.html", "--profile", ""), ("--profile", "''")),
        (("calibrate", "--device", ""), ("'cpu'", "''")),
        (("verify", "--on", "\0"), ("'cpu'", "x00")),
        (("verify", "\0"), ("'matvec'", "x00")),
        (("info", "please"), ("please",)),
    ],
    ids=lambda a: str(a)[:40],
)
def test_refused_at_the_door(run, arguments, naming):
    refused(run, *arguments, naming=naming)


PICTURES = [
    *(("demo", "--picture"), ("bench", "movement", "--timeline"), ("ladder", "matmul", "--plot")),
    *(("transfer", "1MiB", "1MiB", "--plot"), ("report",)),
]


@pytest.mark.parametrize("command", PICTURES)
def test_a_picture_that_cannot_be_saved_is_refused_before_anything_runs(run, tmp_path, command):
    path = tmp_path / "nowhere" / "picture.svg"
    refused(run, *command, path, naming=("no folder", str(path)), code=FAILED)
    refused(run, "demo", "--picture", tmp_path, naming=(str(tmp_path), "folder"), code=FAILED)
    refused(run, "calibrate", "--path", tmp_path, naming=(str(tmp_path), "folder"), code=FAILED)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OverflowError("int too large"), USAGE),
        (TypeError("no such\ndtype"), USAGE),
        (ValueError(""), USAGE),
        (ZeroDivisionError("division by zero"), USAGE),
        (errors.DeviceNotAvailable("no"), USAGE),
        (errors.NotPriced("no constants"), NO_CHOICE),
        (errors.DeviceError("it failed"), FAILED),
        (errors.DeviceMemoryError("full"), FAILED),
        (MemoryError(), FAILED),
        (PermissionError("not yours"), FAILED),
        (KeyboardInterrupt(), 130),
    ],
    ids=lambda e: type(e).__name__ if isinstance(e, BaseException) else None,
)
def test_what_an_error_is_for_the_caller(run, monkeypatch, error, code):
    """The table of exit codes; the message is one line."""

    def fail(arguments):
        raise error

    monkeypatch.setattr(commands, "info", fail)
    found, out, err = run("info")
    assert (found, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("hetero: ")


def test_a_mistake_of_our_own_is_not_called_wrong_arguments(run, monkeypatch):
    monkeypatch.setattr(commands, "info", lambda arguments: {}["oops"])
    with pytest.raises(KeyError):
        run("info")


# -- One default, one name, one answer -----------------------------------------------------------

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


@pytest.mark.parametrize("mode", ["full", "same", "valid"])
def test_explain_of_each_mode(data, mode):
    found = data("explain", "convolve2d", 64, 48, 3, 5, "--mode", mode)
    assert (
        found == hetero.plan("convolve2d", *map(hetero.spec, SHAPES["convolve2d"]), mode).to_dict()
    )


def test_a_solve_by_its_functions_name(data):
    f = hetero.spec((30, 40))
    assert hetero.plan("solve_poisson", f).to_dict() == hetero.plan("poisson", f).to_dict()
    A, b = hetero.spec((50, 50)), hetero.spec(50)
    assert hetero.plan("solve_cg", A, b).to_dict() == hetero.plan("cg", A, b).to_dict()
    assert data("explain", "solve_cg", 50) == data("explain", "cg", 50)
    with pytest.raises(ValueError, match=r"'solve_poisson', got 'solve_matmul'"):
        hetero.plan("solve_matmul", A, A)
    with pytest.raises(ValueError, match="operation must be one of"):
        hetero.plan(A, A)


# -- Another machine -----------------------------------------------------------------------------


def lacking(monkeypatch):
    """Neither cuFFT, cuBLAS nor OpenCV here."""
    from hetero.devices import cufft
    from hetero.ops.convolve2d import opencv

    monkeypatch.setattr(cufft, "obstacle", lambda: "cuFFT is not here")
    monkeypatch.setattr(opencv, "is_here", lambda: False)


def test_another_machine_has_its_own_packages(data, monkeypatch):
    lacking(monkeypatch)
    found = data("explain", "poisson", 1024, 1024, "--profile", "h200")
    assert (found["chosen"]["method"], found["chosen"]["device"]) == ("dst", "cuda:0")
    size = ("convolve2d", 2048, 2048, 5, 5, "--dtype", "float32", "--mode", "same")
    rows = data("explain", *size, "--profile", "h200")["candidates"]
    priced = {(row["method"], row["device"]) for row in rows if row["seconds"] is not None}
    for expected in (("fft", "cuda:0"), ("overlap_save", "cuda:0"), ("library", "cpu")):
        assert expected in priced
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
    tiles_cpu.tiles.cache_clear()
    try:
        assert [data("explain", *line, "--profile", "h200") for line in lines] == here
    finally:
        tiles_cpu.tiles.cache_clear()


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


def test_info_names_a_profile_file_only_where_there_is_one(data, profile_file):
    found = data("info")["profile"]
    assert found == {
        "name": "conservative",
        "file": None,
        "calibrate_writes": str(profile_file),
    }
    profile_file.parent.mkdir(parents=True)
    profile_file.write_text("{}")  # there, and of no use
    profile.set_current(None)
    assert data("info")["profile"]["file"] is None
    content = profile.shipped("h200").data | {"fingerprint": inventory.fingerprint()}
    profile.Profile(content).save(profile_file)
    profile.set_current(None)
    assert data("info")["profile"]["file"] == str(profile_file)


# -- bench ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["matvec", "matmul"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bench_of_products_on_the_cpu(run, data, monkeypatch, operation, order):
    """Beside NumPy: without a GPU by itself, with one by --device cpu."""
    module = importlib.import_module(registry.operation(operation).benchmarks)
    small = {operation: [(8,) * len(module.SHAPES[0])]}
    monkeypatch.setattr(module, "SHAPES", small[operation])
    rows = data("bench", operation, "--device", "cpu", "--order", order, "--dtype", "float64")
    assert [row["case"].split(",")[0] for row in rows] == [
        f"{operation} {'x'.join([n] * len(small[operation][0]))}" for n in ("32", "8")
    ]
    for row in rows:
        assert row["seconds"].keys() == {"automatic", f"NumPy {operation}"}
        assert row["chosen"] == "blas on cpu"
    if not any(name.startswith("cuda") for name in devices.available()):
        code, out, err = run("bench", operation)
        assert code == OK, err
        assert "times the fastest" in out


def test_bench_counts_from_the_fastest_of_all():
    """A peer that is faster than every method is the one that counts as 1."""
    from hetero.evaluation import report

    seconds = {"direct on cpu": 2e-3, "SciPy ndimage": 1e-3, "fft on cpu": 4e-3}
    text = report.benchmarks([{"case": "one", "what": "call", "seconds": seconds}])
    cells = [
        [c.strip() for c in line.split("|")[1:-1]] for line in text.splitlines() if "ms" in line
    ]
    assert cells == [
        ["SciPy ndimage", "1 ms", "1.00"],
        ["direct on cpu", "2 ms", "2.00"],
        ["fft on cpu", "4 ms", "4.00"],
    ]


def test_version(run):
    code, out, _ = run("--version")
    assert (code, out.split()) == (OK, ["hetero", hetero.__version__])
    setup = (Path(__file__).parent.parent / "setup.cfg").read_text("utf-8")
    assert f"version = {hetero.__version__}\n" in setup
