"""The command line: what it prints, as text, as JSON and on a terminal, and its exit codes."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import fakes
import pytest
from command_line import FAILED, NO_CHOICE, OK, USAGE

import hetero
from hetero import cli, devices, errors, profile, registry
from hetero.cli.parser import parser
from hetero.devices.cuda import libraries
from hetero.evaluation import problems, report
from hetero.host import cpu
from hetero.ops.convolve2d import fft

pytestmark = pytest.mark.usefixtures("hasty")


def test_info(run, data):
    found = data("info")
    known = {"cpu", "devices", "links", "broken", "failed", "missing", "profile", "profiles"}
    assert found.keys() == known
    assert {"name", "cores", "memory_bytes", "blas", "blas_version"} <= found["cpu"].keys()
    tracking = found["cpu"]["write_tracking"]
    assert tracking == "on" or tracking.startswith("off, ")
    assert set(found["devices"]) == set(devices.available())
    for info in found["devices"].values():
        assert {"kind", "name", "memory_bytes", "multiprocessors", "driver"} <= info.keys()
    code, out, _ = run("info")
    assert code == OK
    assert found["cpu"]["name"] in out
    assert all(missing in out for missing in found["missing"])
    assert len(out.splitlines()) < len(run("info", "--verbose")[1].splitlines()) / 2


def test_calibrate(data, profile_file):
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
    # From now on it is this machine's.
    assert data("explain", "matmul", 64, 64, 64)["profile"] == stored.name
    path = str(profile_file)
    expected = {"name": stored.name, "disturbed": None, "doubtful": []}
    assert data("info")["profile"] == expected | {"file": path, "calibrate_writes": path}


@pytest.mark.parametrize("wrong", [54.05, float("nan")])
def test_calibrate_says_which_constants_not_to_trust(run, monkeypatch, wrong):
    """A fit that is off by a factor is named, in the text and in the JSON."""
    for module in (profile, report):  # fits in a hurry do not count
        monkeypatch.setattr(module, "OFF", 1.0)
    content = copy.deepcopy(profile.shipped("h200").data)
    assert profile.Profile(content).doubtful() == []
    assert "calibrate again" not in report.calibration(profile.Profile(content))
    # What is left of the conservative profile is no device that was measured.
    assert "cuda:*" not in report.calibration(profile.shipped("conservative"))
    key = "cpu|matmul|blas|float32|*"
    content["models"][key]["residuals"] = {"mean": wrong, "p95": 448.9, "worst": 448.9}
    measured = profile.Profile(content)
    assert measured.doubtful() == [key]
    text = report.calibration(measured)
    assert "off by more than 100% in the mean: cpu matmul blas float32 *" in text
    assert "calibrate again" in text
    monkeypatch.setattr(hetero, "calibrate", lambda *_, **__: measured)
    code, out, _ = run("calibrate", "--json")
    assert code == FAILED
    assert json.loads(out)["doubtful"] == [key]
    profile.set_current(measured)
    assert hetero.machine()["profile"]["doubtful"] == [key]
    shown = run("info")[1]
    assert "in the mean (run 'hetero calibrate' again" in shown
    assert "when nothing else runs): cpu matmul blas float32 *\n" in shown
    for dtype, off in (("float32", True), ("float64", False)):
        out = run("explain", "matmul", 64, 64, 64, "--dtype", dtype)[1]
        blas = next(line for line in out.splitlines() if "blas on cpu" in line)
        assert blas.endswith("; not to be trusted: calibrate again") == off
        A = hetero.spec((64, 64), dtype)
        (row,) = hetero.plan("matmul", A, A, device="cpu").to_dict()["candidates"]
        assert row.get("doubtful", False) == off


def test_verify(data, run):
    found = data("verify", "--largest", 64, "--count", 3, "--seconds", 20)
    parts = {"left_out", "problems", "worst_choices", "chosen_over_best", "fastest"}
    assert found.keys() == parts | {"prediction_error"}
    assert 1 <= found["problems"] <= 6
    figures = found["chosen_over_best"]
    assert figures.keys() == {"geometric_mean", "p95", "p99", "worst", "fastest_within_5_percent"}
    assert figures["worst"] >= figures["geometric_mean"] >= 1.0
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
    """Each call has the libraries beside it that do the same."""
    picture = tmp_path / "picture.pgm"
    rows = data("demo", "--largest", 64, "--picture", picture)["calls"]
    libraries = {}
    for row in rows:
        assert min(*row["seconds"].values(), row["predicted"]) > 0
        libraries.setdefault(row["case"].split()[0], set()).update(row["peers"])
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


# -- explain --------------------------------------------------------------------------------------


def test_explain_one_method(data):
    by_method = data("explain", "matvec", 64, 64, "--method", "blas")
    assert [row["method"] for row in by_method["candidates"]] == ["blas"]


@pytest.mark.parametrize("cores", [1, 64])
def test_another_machine_has_its_own_cores_and_packages(data, monkeypatch, cores):
    """Nothing of this machine is in the answer."""
    lines = [
        ("convolve2d", 2000, 3000, 33, 33, "--dtype", "float32"),
        ("convolve2d", 700, 900, 65, 65),
        ("poisson", 300, 400),
        ("solve_cg", 300, 400),
        ("matmul", 300, 200, 100),
    ]
    here = [data("explain", *line, "--profile", "h200") for line in lines]
    monkeypatch.setattr(libraries, "cufft_obstacle", lambda: "cuFFT is not here")
    other = {**cpu.describe(), "cores": cores}
    monkeypatch.setattr(cpu, "describe", lambda: other)
    monkeypatch.setattr(fft, "on_cpu", fft.on_cpu.__wrapped__)  # which remembers nothing
    assert [data("explain", *line, "--profile", "h200") for line in lines] == here


def test_what_another_machine_was_not_measured_for(run, data):
    """Nothing is chosen, exit code 3; but whole numbers are NumPy's on every machine."""
    code, out, _ = run("explain", "solve_cg", 64, "--profile", "tesla-t10", "--json")
    assert (code, json.loads(out)["chosen"]) == (NO_CHOICE, None)
    found = data("explain", "matmul", 64, 64, 64, "--dtype", "int32", "--profile", "tesla-t10")
    assert found["chosen"] == {"device": "cpu", "method": "blas", "seconds": None}


# -- On a terminal --------------------------------------------------------------------------------

# What takes long shows what it does and how far it is; in a pipe, nothing.
COMMANDS = [
    *("info", "calibrate --quick --device cpu", "verify matvec --count 2 --largest 32"),
    *("bench matvec --device cpu", "demo --largest 16"),
]


@pytest.mark.parametrize("command", COMMANDS)
def test_a_bar_on_a_terminal_and_none_in_a_pipe(command, run, monkeypatch, profile_file):
    matvec = registry.operation("matvec")
    monkeypatch.setattr(type(problems.of(matvec)), "sizes", ((64, 64),))
    monkeypatch.setattr(registry, "operations", lambda: (matvec,))
    arguments = [*command.split(), "--json"]
    code, _, err = run(*arguments)
    assert code == OK
    assert "\r" not in err
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    code, out, err = run(*arguments)
    assert code == OK
    assert err.count("\r[") >= 1, "no bar"
    assert "\r" not in out
    # In the end the line is free: the bar is taken away.
    assert err.endswith("\r")


def test_a_shell_completes_commands_and_their_options(data):
    ask = f"""{data("completion", "bash")["script"]}
    complete() {{ COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)); COMPREPLY=(); _shtab_hetero; }}
    complete hetero cal; echo "${{COMPREPLY[@]}}"
    complete hetero verify --se; echo "${{COMPREPLY[@]}}"
    """
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True)
    assert done.stdout.split("\n")[:2] == ["calibrate", "--seconds --seed"], done.stderr
    assert all("calibrate" in data("completion", shell)["script"] for shell in ("zsh", "fish"))


# -- Help and errors ------------------------------------------------------------------------------


def test_help_names_every_command_and_the_exit_codes(run):
    code, out, _ = run("--help")
    assert code == OK
    for command in parser()[1]:
        assert f"    {command}" in out
        assert "Exit codes: 0 done" in run(command, "--help")[1]
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
        (TypeError("no such\ndtype"), USAGE),
        (ValueError(""), USAGE),
        (ZeroDivisionError("division by zero"), USAGE),
        (errors.NotPriced("no constants"), NO_CHOICE),
        (errors.DeviceError("it failed"), FAILED),
        (MemoryError(), FAILED),
        (PermissionError("not yours"), FAILED),
        (KeyboardInterrupt(), 130),
    ],
)
def test_what_an_error_is_for_the_caller(run, monkeypatch, error, code):
    """The table of exit codes; the message is one line."""
    monkeypatch.setattr(cli.commands, "info", fakes.raising(error))
    found, out, err = run("info")
    assert (found, out) == (code, "")
    assert len(err.splitlines()) == 1
    assert err.startswith("hetero: ")


def test_a_mistake_of_our_own_is_not_called_wrong_arguments(run, monkeypatch):
    monkeypatch.setattr(cli.commands, "info", lambda arguments: {}["oops"])
    with pytest.raises(KeyError):
        run("info")
