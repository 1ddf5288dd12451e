"""The command line: what it prints, as text and as JSON, and its exit codes."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import numpy as np
import pytest
from command_line import FAILED, NO_CHOICE, OK, USAGE, refused

import hetero
from hetero import cli, devices, errors, profile, registry, terminal
from hetero.evaluation.problems import of

pytestmark = pytest.mark.usefixtures("hasty")


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
    }
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


def test_info_says_what_is_missing_and_what_to_install(data):
    missing = " ".join(data("info")["missing"])
    for backend in ("cuda", "opencl"):
        if not any(name.startswith(backend) for name in devices.everything()):
            assert f"{backend}: " in missing
            assert "install" in missing


@pytest.mark.parametrize("fixture", ["opencl", "cuda"])
def test_info_names_no_further_kind_of_device_where_cuda_is_here(fixture, request, run):
    request.getfixturevalue(fixture)
    devices.here.available()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(devices.here, "absent", [f"{kind}: planted" for kind in ("cuda", "opencl")])
        out = run("info")[1]
        assert "missing: cuda: planted" in out
        assert ("missing: opencl: planted" in out) == (fixture == "opencl")
        assert "opencl: planted" in run("info", "--verbose")[1]


def test_calibrate(data, run, profile_file, monkeypatch):
    found = data("calibrate", "--quick")
    parts = {"path", "trusted", "devices", "residuals", "not_acceptable", "doubtful"}
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
    from hetero.evaluation import report

    monkeypatch.setattr(profile.constants, "OFF", 1.0)  # fits in a hurry do not count
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


def test_calibrate_says_which_errors_are_acceptable():
    from hetero.evaluation import report

    content = json.loads(json.dumps(profile.shipped("conservative").data))
    good, bad = "cpu|matvec|blas|float32|*", "cpu|matmul|blas|float32|*"
    content["links"]["cuda:0"] = content["links"]["cuda:*"]
    link = content["links"]["cuda:0"]["upload"]["pageable"]
    errors = {"mean": 0.4, "p95": 1.0, "worst": 9.0}
    content["models"][good]["residuals"] = errors
    text = report.calibration(profile.Profile(content))
    assert report.rough(profile.Profile(content)) == "all 1 fits are acceptable"
    assert "40% in the mean and 100% at the 95th percentile; of links 10% and 30%" in text
    for wrong in ({"mean": 0.41}, {"p95": 1.01}, {"mean": float("nan")}):
        content["models"][bad]["residuals"] = errors | wrong
        measured = profile.Profile(content)
        assert report.not_acceptable(measured) == [bad]
        for every in (True, False):
            lines = report.calibration(measured, every).splitlines()
            (line,) = (x for x in lines if x.endswith("% !"))
            assert line.startswith("cpu matmul blas float32")
            assert any(x.startswith("cpu matvec blas float32") for x in lines) == every
        assert report.rough(measured) == "rough fits, marked !: 1 of 2"
    link["residuals"] = {"mean": 0.11, "p95": 0.2, "worst": 0.2}
    found = report.not_acceptable(profile.Profile(content))
    assert {bad, "cuda:0|upload|pageable"} <= set(found)


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


def test_verify_that_measures_nothing(run):
    code, out, _ = run("verify", "--count", 0, "--json")
    assert code == NO_CHOICE
    assert json.loads(out)["problems"] == 0
    code, _, _ = run("verify", "--count", 0)
    assert code == NO_CHOICE


def test_verify_on_a_device_without_arrays(run, opencl):
    refused(run, "verify", "--on", opencl, "--count", 1, naming=("--on", opencl))


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
    content = (tmp_path / "picture-16-colours.ppm").read_bytes()
    assert content.startswith(b"P6 32 32 255\n")
    pixels = np.frombuffer(content, np.uint8, offset=13).reshape(-1, 3)
    assert len(np.unique(pixels, axis=0)) == 16


def test_demo_refuses(run):
    refused(run, "demo", "--largest", 3, naming=("--largest", "16", "3"))


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
    code, out, err = run()
    assert (code, out) == (USAGE, "")
    assert err == run("--help")[1]
    assert run("nonsense")[0] == USAGE


def test_module_and_script():
    arguments = ["explain", "matvec", "4096", "4096", "--dtype", "float32"]
    arguments += ["--profile", "tesla-t10", "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "hetero", *arguments], capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout)["chosen"]["device"] == "cuda:0"


def test_a_reader_that_has_seen_enough():
    """As `hetero explain ... | head -1`."""
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "hetero", "explain", "matmul", "64", "64", "64"]
    with os.fdopen(writer, "wb") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 0
    assert "pipe" not in done.stderr.lower()


@pytest.mark.parametrize("operation", ["matvec", "matmul"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_bench_of_products_on_the_cpu(run, data, monkeypatch, operation, order):
    """Beside NumPy: without a GPU by itself, with one by --device cpu."""
    axes, kind = {"matvec": 2, "matmul": 3}[operation], type(of(registry.operation(operation)))
    monkeypatch.setattr(kind, "sizes", ((32,) * axes, (8,) * axes))
    rows = data("bench", operation, "--device", "cpu", "--order", order, "--dtype", "float64")
    assert [row["case"].split(",")[0] for row in rows] == [
        f"{operation} {'x'.join([n] * axes)}" for n in ("32", "8")
    ]
    for row in rows:
        assert "automatic" in row["seconds"]
        assert [name.partition(",")[0] for name in row["peers"]] == [f"NumPy {operation}"]
        assert row["chosen"] == "blas on cpu"
    if not any(name.startswith("cuda") for name in devices.available()):
        code, out, err = run("bench", operation)
        assert code == OK, err
        assert "times the fastest" in out


def test_version(run):
    code, out, _ = run("--version")
    assert (code, out.split()) == (OK, ["hetero", hetero.__version__])


def test_tables_are_aligned_and_markdown_where_it_is_asked_for(run):
    asked = ("transfer", "64MiB", "16KiB", "--profile", "h100")
    _, plain, _ = run(*asked)
    _, markdown, _ = run(*asked, "--markdown")
    assert "| pageable | " in markdown
    assert "|---|" in markdown
    assert "|" not in plain
    cells = [line.strip("| ").split(" | ") for line in markdown.splitlines() if "GB/s" in line]
    assert all(cell.strip() in plain for row in cells for cell in row)
    head, *rows = [line for line in plain.splitlines() if "  " in line][:4]
    end = head.index("upload") + len("upload")
    assert all(row[: end + 1].rstrip()[-2:] in ("ms", "us", " s") for row in rows)
    text = terminal.aligned("a | b\n| n | x |\n|---|---|\n| 10 | y |\n| 9 |  |\nend")
    assert text == "a | b\n n  x\n10  y\n 9\nend"


def test_info_is_short_and_verbose(run, data):
    _, short, _ = run("info")
    _, whole, _ = run("info", "--verbose")
    assert len(short.splitlines()) < len(whole.splitlines()) / 2
    assert "loop_threads" in whole
    assert all(missing in short for missing in data("info")["missing"])
    assert "profile: conservative, not of this machine\n" in short


def test_plans_have_no_row_for_the_cpu_again(run, data, opencl):
    again = "this machine's CPU again"
    assert again not in run("explain", "matmul", 64, 64, 64)[1]
    reasons = [c["reason"] or "" for c in data("explain", "matmul", 64, 64, 64)["candidates"]]
    assert any(again in reason for reason in reasons)
    assert again in run("explain", "matmul", 64, 64, 64, "--all")[1]
    A = hetero.spec((64, 64))
    assert again not in str(hetero.plan("matmul", A, A))
    rows = [c for c in hetero.plan("matmul", A, A).candidates if c.device != "cpu"]
    none = dataclasses.replace(hetero.plan("matmul", A, A), candidates=tuple(rows))
    with pytest.raises(hetero.errors.NotPriced, match=r"^no candidate for matmul [^:]*: [^:]*: $"):
        none.chosen  # noqa: B018


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

    monkeypatch.setattr(cli.machine, "info", fail)
    found, out, err = run("info")
    assert (found, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("hetero: ")


def test_a_mistake_of_our_own_is_not_called_wrong_arguments(run, monkeypatch):
    monkeypatch.setattr(cli.machine, "info", lambda arguments: {}["oops"])
    with pytest.raises(KeyError):
        run("info")
