"""The profile of two H200: composed of one's and of what two of one host were measured to take.

`composed` is how `calibration/profiles/h200x2.json` was made; its notes say the same in words.
"""

from __future__ import annotations

import copy
import math
import sys

import pytest

from hetero import profile
from hetero.registry.models import ModelKey, Work, bind

BETWEEN = 55e-6  # seconds an iteration takes beyond half of one device's: docs/clusters.md
FIXED = 163e-3 / (2 * 8 * 2**26)  # seconds a byte of operands and result: CG on 8192^2, float64
MEASURED = {2**22: 93e-6, 2**24: 215e-6, 2**26: 560e-6}  # of a step, the same solve
UNKNOWN = "stencil2-multigrid"  # whose cycles were not measured on two
GRID = ("float64", "stencil2"), ("float64", "2d")  # layouts of cg and of poisson: that solve


def composed():
    """The content of the profile but for its checksum."""
    one = profile.shipped("h200").data
    data = copy.deepcopy(
        {name: part for name, part in one.items() if name not in ("sha256", "load")}
    )
    data["name"] = "h200x2"
    data["devices"]["cuda:1"] = data["devices"]["cuda:0"] | {"same_as": "cuda:0"}
    for text, model in one["models"].items():
        key = ModelKey.parse(text)
        several = key.method in ("fused", "cg") and key.layout not in ("dense", UNKNOWN)
        if key.place == "cuda:0" and several:
            data["models"][str(key._replace(place="cuda*2"))] = of_two(key, model)
    return data


def of_two(key, model):
    """A solve on two devices, host to host; each has half of the unknowns."""
    setup, step = model["constants"]["setup"], model["constants"]["step"]
    assert setup["axes"] == step["axes"]
    axes = [sorted({*step["axes"][0], *MEASURED}), *step["axes"][1:]]
    is_grid = (key.dtype, key.layout) in GRID
    found = {"setup": {"axes": axes, "seconds": []}, "step": {"axes": axes, "seconds": []}}
    for n in axes[0]:
        for more in axes[1] if len(axes) > 1 else [None]:
            dims = (n,) if more is None else (n, more)
            half = seconds_of(model, (n // 2, *dims[1:]))
            taken = MEASURED.get(n) if is_grid else None
            found["step"]["seconds"].append(rounded(taken or BETWEEN + half[1]))
            fixed = seconds_of(model, dims)[0] + FIXED * nbytes(key, *dims)
            found["setup"]["seconds"].append(rounded(fixed))
    return {"form": "solve", "constants": found}


def seconds_of(model, dims):
    """Set-up and step."""
    few, many = (sum(bind(model)(Work(dims, 0.0, 0.0, repeat=count))) for count in (1, 2))
    return 2 * few - many, many - few


def nbytes(key, n, entries=0):
    """Of right-hand side, result and sparse matrix, the entries with an index of 4 bytes."""
    size = 4 if key.dtype == "float32" else 8
    return 2 * n * size + n * entries * (size + 4)


def rounded(seconds):
    return float(f"{seconds:.5g}")


def write(path):
    """Compose it anew, as where h200.json was: ``python tests/profile/test_h200x2.py FILE``."""
    notes = profile.shipped("h200x2").data["notes"]
    with open(path, "wb") as file:
        file.write(profile.encode(composed() | {"notes": notes}))


def test_it_is_composed_as_its_notes_say():
    data = dict(profile.shipped("h200x2").data)
    notes = data.pop("notes")
    assert {name: data[name] for name in composed()} == composed()
    for figure in ("55 us", "163 ms", "93, 215 and 560 us", "composed", "measured"):
        assert figure in notes


@pytest.mark.parametrize(("n", "micro"), [(2048, 93), (4096, 215), (8192, 560)])
def test_the_step_that_was_measured(data, n, micro):
    times = []
    for iterations in (100, 1100):
        words = ("explain", "solve_cg", n, n, "--iterations", iterations, "--method", "fused")
        found = data(*words, "--device", "cuda:*", "--profile", "h200x2")
        assert found["chosen"]["device"] == "cuda:*"
        times.append(found["chosen"]["seconds"])
    assert (times[1] - times[0]) / 1000 == pytest.approx(micro * 1e-6, rel=1e-3)


def test_a_step_of_a_sparse_matrix_was_1_70_times_as_fast():
    """CSR 4096^2, which no constant was made from: docs/benchmarks.md."""
    models = profile.shipped("h200x2").data["models"]
    one, two = (models[f"{place}|cg|fused|float64|csr"] for place in ("cuda:0", "cuda*2"))
    assert seconds_of(one, (2**24, 5))[1] / seconds_of(two, (2**24, 5))[1] == pytest.approx(
        1.7, 0.05
    )


@pytest.mark.parametrize(
    ("words", "methods"),
    [
        (("solve_cg", 4096, 4096), {"fused"}),
        (("solve_cg", 200, 200, 200, "--dtype", "float32"), {"fused"}),
        (("solve_poisson", 8192, 8192, "--method", "cg"), {"cg"}),
        (("matmul", 16384, 16384, 16384), {"library", "tiled", "streamed"}),
        (("convolve2d", 8192, 8192, 9, 9), {"direct", "streamed"}),
    ],
)
def test_plans_with_two_devices(run, data, words, methods):
    found = data("explain", *words, "--device", "cuda:*", "--profile", "h200x2")
    assert found["chosen"]["device"] == "cuda:*"
    assert found["chosen"]["method"] in methods
    assert math.isfinite(found["chosen"]["seconds"])
    _, out, _ = run("explain", *words, "--device", "cuda:*", "--profile", "h200x2")
    assert "no other of that kind" not in out


if __name__ == "__main__":
    write(sys.argv[1])
