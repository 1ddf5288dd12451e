"""The command line: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import json

import pytest
from command_line import FAILED, NO_CHOICE, OK, USAGE

import hetero
from hetero import cli, devices, errors, profile, registry
from hetero.cli.parser import parser

pytestmark = pytest.mark.usefixtures("hasty")


def test_info(run, data):
    found = data("info")
    assert found.keys() == {"cpu", "devices", "links", "broken", "missing", "profile", "profiles"}
    assert {"name", "cores", "memory_bytes", "blas", "blas_version"} <= found["cpu"].keys()
    tracking = found["cpu"]["write_tracking"]
    assert tracking == "on" or tracking.startswith("off, ")
    parts = {"name", "disturbed", "doubtful", "file", "calibrate_writes"}
    assert found["profile"].keys() == parts
    assert set(found["devices"]) == set(devices.available())
    for info in found["devices"].values():
        assert {"kind", "name", "memory_bytes", "multiprocessors", "driver"} <= info.keys()
    code, out, _ = run("info")
    assert code == OK
    assert found["cpu"]["name"] in out
    assert all(missing in out for missing in found["missing"])
    assert len(out.splitlines()) < len(run("info", "--verbose")[1].splitlines()) / 2


def test_calibrate(data, run, profile_file, monkeypatch):
    found = data("calibrate", "--quick")
    parts = {"path", "trusted", "devices", "residuals", "not_acceptable", "doubtful"}
    assert found.keys() == parts
    assert found["path"] == str(profile_file)
    assert "cpu" in found["devices"]
    for key, figures in found["residuals"].items():
        assert {"mean", "p95", "worst"} <= figures.keys(), key
    stored = profile.read(profile_file)
    assert "cpu|matmul|blas|float32|*" in stored.data["models"]
    assert stored.data.keys() >= {"schema_version", "units", "fingerprint", "sha256", "created"}
    for model in stored.data["models"].values():
        assert model.keys() >= {"form", "constants"}
    # From now on it is this machine's.
    assert data("explain", "matmul", 64, 64, 64)["profile"] == stored.name
    path = str(profile_file)
    assert data("info")["profile"] == {
        "name": stored.name,
        "disturbed": None,
        "doubtful": [],
        "file": path,
        "calibrate_writes": path,
    }


def test_calibrate_says_which_constants_not_to_trust(run, monkeypatch):
    """A fit that is off by a factor is named, in the text and in the JSON."""
    from hetero.evaluation import report

    for module in (profile, report):  # fits in a hurry do not count
        monkeypatch.setattr(module, "OFF", 1.0)
    content = json.loads(json.dumps(profile.shipped("h200").data))
    assert profile.Profile(content).doubtful() == []
    assert "calibrate again" not in report.calibration(profile.Profile(content))
    key = "cpu|matmul|blas|float32|*"
    for wrong in (54.05, float("nan")):
        content["models"][key]["residuals"] = {"mean": wrong, "p95": 448.9, "worst": 448.9}
        measured = profile.Profile(content)
        assert measured.doubtful() == [key]
        text = report.calibration(measured)
        assert "off by more than 100% in the mean: cpu matmul blas float32 *" in text
        assert "calibrate again" in text
        monkeypatch.setattr(hetero, "calibrate", lambda *_, found=measured, **__: found)
        code, out, _ = run("calibrate", "--json")
        assert code == FAILED
        assert json.loads(out)["doubtful"] == [key]
        profile.set_current(measured)
        assert hetero.machine()["profile"]["doubtful"] == [key]
        assert "in the mean (run 'hetero calibrate' again" in run("info")[1]
        assert "when nothing else runs): cpu matmul blas float32 *\n" in run("info")[1]
        for dtype, off in (("float32", True), ("float64", False)):
            code, out, _ = run("explain", "matmul", 64, 64, 64, "--dtype", dtype)
            blas = next(line for line in out.splitlines() if "blas on cpu" in line)
            assert blas.endswith("; not to be trusted: calibrate again") == off
            A = hetero.spec((64, 64), dtype)
            plan = hetero.plan("matmul", A, A, device="cpu")
            assert plan.to_dict()["candidates"][0].get("doubtful", False) == off
            assert ("not to be trusted" in str(plan)) == off


SUMMARY = {"chosen_over_best", "fastest", "prediction_error"}
FIGURES = {"geometric_mean", "p95", "p99", "worst", "fastest_within_5_percent"}


def test_verify(data, run):
    found = data("verify", "--largest", 64, "--count", 3, "--seconds", 20)
    assert found.keys() == {"left_out", "problems", "worst_choices", *SUMMARY}
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
    code, out, _ = run("verify", "--count", 0, "--json")
    assert (code, json.loads(out)["problems"]) == (NO_CHOICE, 0)


def test_demo(data, tmp_path, profile_file, hasty):
    """Each call has the libraries beside it that do the same, and gives the same result."""
    picture = tmp_path / "picture.pgm"
    rows = data("demo", "--largest", 64, "--picture", picture)["calls"]
    libraries = {}
    for row in rows:
        assert min(*row["seconds"].values(), row["predicted"]) > 0
        libraries.setdefault(row["case"].split()[0], set()).update(row["peers"])
        for far in row["difference"].values():
            assert far < (1e-7 if "float64" in row["case"] else 1e-4)
        if row["case"].startswith("kmeans"):
            assert len(set(row["iterations"].values())) == 1
    firsts = {name: {found.split()[0] for found in libraries[name]} for name in libraries}
    assert firsts["matvec"] == firsts["matmul"] == {"NumPy"}
    assert firsts["solve_cg"] == {"SciPy,"}
    assert firsts["solve_poisson"] == {"SciPy", "PyAMG"}
    assert firsts["kmeans"] == {"scikit-learn"}
    assert libraries["convolve2d"] >= {"SciPy fftconvolve", "SciPy oaconvolve", "SciPy ndimage"}
    assert sum(row["case"].startswith("convolve2d") for row in rows) == 3
    assert not profile_file.exists(), "stored"
    content = picture.read_bytes()
    assert content.startswith(b"P5 64 64 255\n")
    assert len(content) == 13 + 64**2
    assert len(set(content[13:])) > 20


def test_help_names_every_command_and_the_exit_codes(run):
    code, out, _ = run("--help")
    assert code == OK
    for command in parser()[1]:
        assert f"    {command}" in out
        code, sub, _ = run(command, "--help")
        assert code == OK
        assert "--json" in sub
        assert "Exit codes: 0 done" in sub
    assert "Exit codes: 0 done" in out
    shown = " ".join(run("explain", "--help")[1].split())
    for operation in registry.operations():
        assert all(f"{operation.function} {dims}" in shown for dims in operation.dims[:1])
        assert all(f"--{name}" in shown for name in operation.options)


def test_no_command_is_wrong_usage(run):
    code, out, err = run()
    assert (code, out) == (USAGE, "")
    assert run("--version")[1].split() == ["hetero", hetero.__version__]
    assert err == run("--help")[1]
    assert run("nonsense")[0] == USAGE


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

    monkeypatch.setattr(cli.commands, "info", fail)
    found, out, err = run("info")
    assert (found, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("hetero: ")


def test_a_mistake_of_our_own_is_not_called_wrong_arguments(run, monkeypatch):
    monkeypatch.setattr(cli.commands, "info", lambda arguments: {}["oops"])
    with pytest.raises(KeyError):
        run("info")
