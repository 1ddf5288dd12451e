"""Whatever is typed is answered or refused in one line, before anything runs."""

from __future__ import annotations

import random
import re
import time

import pytest
from command_line import FAILED, NO_CHOICE, OK, USAGE, refused

import hetero
from hetero import errors

pytestmark = pytest.mark.usefixtures("hasty")

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
        (("bench", "matmul", "--cases", "CMU"), ("'blog'", "'cmu'", "'dtu'", "'CMU'")),
        (("bench", "matvec", "--cases", "cmu"), ("matvec", "there are none", "'cmu'")),
        (("bench", "movement", "--cases", "cmu"), ("--cases", "movement")),
        (("transfer", "--case", "cmu"), ("'blog'", "'strasbourg'", "'cmu'")),
        (("transfer", "--case", "blog", "--work", "1"), ("--case", "--work")),
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
        (("probe", "bank"), ("PROBE must be one of 'camping', 'banks',", "did you mean 'banks'?")),
        (("bench", "matmull"), ("did you mean 'matmul'?",)),
        (("bench", "movemen"), ("did you mean 'movement'?",)),
        (("bench", "matmul", "--dtype", "float23"), ("--dtype", "did you mean 'float32'?")),
        (("bench", "matmul", "--order", "Z"), ("--order must be one of 'C', 'F', got 'Z'",)),
        (("bench", "convolve2d", "--order", "F"), ("convolve2d has no --order; it has --dtype",)),
        (("bench", "solve_cg", "--device", "cpu"), ("solve_cg has no --device",)),
        (("bench", "programs"), ("hetero bench programs was removed in 0.2: ",)),
        (("bench", "movement", "--order", "C"), ("movement has no --order",)),
        (("sweep", "matmul", "--metrics"), ("hetero sweep --metrics was removed in 0.2: ",)),
        (("explain", "convolve2d", "9", "9", "3", "3", "--mode", "sam"), ("mean 'same'?",)),
        (("explain", "matmul", "4", "4", "4", "--dtype", "flot32"), ("--dtype", "'flot32'")),
        (("explain", "matmul", "4", "4", "4", "--on", "hos"), ("'host'", "'hos'")),
        (("explain", "matmul", "4", "4", "4", "--profile", "h10"), ("did you mean 'h100'?",)),
        *(
            ((*words, "gpu", "--profile", "h100"), ("'cpu'", "did you mean 'cuda:0'?"))
            for words in (("explain", "matvec", "4", "4", f"--{name}") for name in ("on", "device"))
        ),
        (("transfer", "1MB", "1MB", "--profile", "h100", "--device", "gpu"), ("mean 'cuda:0'?",)),
        (("advise", "--on", "a100", __file__), ("profile must be a file", "'hetero calibrate --")),
        (("ladder", "matmul", "--filter", "3"), ("--filter", "convolution", "matmul")),
    ],
    ids=lambda a: str(a)[:40],
)
def test_refused_at_the_door(run, arguments, naming):
    """In one line: no usage of all options before it."""
    refused(run, *arguments, naming=naming, code=USAGE)
    assert len(run(*arguments)[2].splitlines()) == 1


def test_lists_have_one_name_for_an_operation_and_both_are_taken(run):
    for command in ("bench", "ladder", "sweep", "explain", "verify"):
        words = re.findall(r"\w+", run(command, "--help")[1].partition("positional")[2])
        assert "solve_poisson" in words
        assert "poisson" not in words
    for name in ("poisson", "solve_poisson"):
        assert run("explain", name, 8, 8)[1].startswith("solve_poisson float64: (8, 8)")


PICTURES = [
    *(("demo", "--picture"), ("ladder", "matmul", "--plot")),
    *(("transfer", "1MiB", "1MiB", "--plot"), ("report",)),
]


@pytest.mark.parametrize("command", PICTURES)
def test_a_picture_that_cannot_be_saved_is_refused_before_anything_runs(run, tmp_path, command):
    path = tmp_path / "nowhere" / "picture.svg"
    refused(run, *command, path, naming=("no folder", str(path)), code=FAILED)
    refused(run, "demo", "--picture", tmp_path, naming=(str(tmp_path), "folder"), code=FAILED)
    refused(run, "calibrate", "--path", tmp_path, naming=(str(tmp_path), "folder"), code=FAILED)


def test_a_removed_name_says_what_to_use():
    gone = r"device='cpu\+cuda:0' was removed in 0\.2: .*cuda:\*"
    with pytest.raises(errors.DeviceNotAvailable, match=gone):
        hetero.plan("matmul", [[1.0]], [[1.0]], device="cpu+cuda:0")
    with pytest.raises(AttributeError, match=r"hetero\.graph was removed in 0\.2: .*CUDA graphs"):
        hetero.graph  # noqa: B018
