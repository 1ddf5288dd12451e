"""Which kernels are compiled before they are measured, and which of an operation's sizes are."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import json
import sys
import types

import pytest

from hetero import registry
from hetero.calibration.ahead import compiling, kernel_compiler, listing
from hetero.calibration.ahead.compiling import Kernels
from hetero.calibration.ahead.listing import Listing, kernels_of
from hetero.calibration.request import FULL, QUICK
from hetero.calibration.worklist import all_cases
from hetero.errors import DeviceError
from hetero.ops.cases import Case, Place, TimedSolves, thinned
from hetero.ops.linear_systems.solve import Solve
from hetero.registry import Arguments

_SIZES = [2**8 * 4**i for i in range(9)]


@pytest.mark.parametrize("step", [1.0, 4.0, 8.0, 64.0, 1e9])
@pytest.mark.parametrize("sizes", [_SIZES, [3, 4, 5, 900], [7]])
def test_thinned_sizes_are_far_apart_and_have_both_ends(sizes, step):
    found = thinned(sizes, step)
    assert found == sorted({*found} & {*sizes})
    assert (found[0], found[-1]) == (sizes[0], sizes[-1])
    ratios = [b / a for a, b in itertools.pairwise(found)]
    assert all(ratio >= step for ratio in ratios[1:])
    assert not ratios or len(found) == 2 or ratios[0] >= step**0.5


def test_nothing_is_left_out_without_a_step():
    assert thinned(_SIZES, FULL.step) == _SIZES
    assert thinned(_SIZES, QUICK.solve_step) == [_SIZES[0], _SIZES[2], _SIZES[5], _SIZES[8]]


INFO = {
    "kind": "cuda",
    "name": "a card",
    "memory_bytes": 80 << 30,
    "multiprocessors": 132,
    "block_limit": 1024,
    "shared_limit": 227 << 10,
    "arch": "sm_90",
    "library": "13.0",
}


def cases_of(device, budget=QUICK):
    place = Place(device.name, INFO, (device,))
    failures = []
    portions = all_cases(registry.operations(), [place], budget, failures)
    assert not failures
    return [case for portion in portions for case in portion.cases]


@pytest.fixture
def with_libraries(monkeypatch):
    """As where NVIDIA's are installed."""
    package, bindings = types.ModuleType("nvmath"), types.ModuleType("nvmath.bindings")
    bindings.cufft = types.ModuleType("nvmath.bindings.cufft")
    bindings.cufft.get_version = int
    bindings.cublas = types.ModuleType("nvmath.bindings.cublas")
    for name in ("d2z", "r2c", "z2d", "c2r"):
        setattr(bindings.cufft, f"exec_{name}", None)
    package.bindings = bindings
    for module in (package, bindings, bindings.cufft, bindings.cublas):
        monkeypatch.setitem(sys.modules, module.__name__, module)


def test_kernels_of_every_case_are_listed_but_those_of_libraries(with_libraries):
    device = Listing("cuda:0", INFO)
    found, rows = {}, set()
    for case in cases_of(device):
        device.wanted.clear()
        found[str(case)] = {file for file, _ in kernels_of(device, [case])}
        rows.add((case.implementation.operation, case.implementation.method))
    assert rows >= {
        *(("convolve2d", m) for m in ("direct", "separable", "fft")),
        *(("poisson", m) for m in ("dst", "multigrid", "jacobi")),
        *(("cg", "fused"), ("kmeans", "lloyd"), ("matmul", "tiled"), ("matvec", "tiled")),
    }
    assert not [name for name, files in found.items() if not files and " library " not in name]
    expected = {
        "convolve2d fft float32": {"convolve_fft.cu", "convolve_small.cu"},
        "poisson dst 2d float64": {"dst.cu"},
        "poisson multigrid 2d float32": {"multigrid.cu", "multigrid_coarse.cu"},
        "cg fused stencil2-multigrid float64": {"multigrid.cu", "cg_preconditioned.cu"},
        "cg fused stencil2 float32": {"cg_stencil.cu"},
    }
    assert {name: files & found[name] for name, files in expected.items()} == expected


def test_kernels_of_solves_that_two_devices_share(with_libraries, monkeypatch):
    """Those that one device does not launch; the smallest solves launch all of them."""
    infos = {"cuda:0": INFO, "cuda:1": {**INFO, "same_as": "cuda:0"}}
    monkeypatch.setattr(kernel_compiler.inventory, "devices", lambda: infos)
    device, second = (Listing(name, INFO) for name in infos)
    kernels_of(device, cases_of(device, FULL))
    assert kernel_compiler._of_several(second, FULL) == [], "it is not their first one"
    assert kernel_compiler._of_several(device, QUICK) == [], "nothing is measured of them"
    found = kernel_compiler._of_several(device, FULL)
    assert {file for file, _ in found} == {"kmeans_seeds.cu"}
    assert {dict(defines)["GATHERED"] for _, defines in found} == {0}
    (group,) = kernel_compiler.pricing.groups(infos).values()
    place = Place("cuda*2", group, (device, device))
    shared = all_cases(registry.operations(), [place], FULL, [])
    larger = [
        dataclasses.replace(case, axes=[case.axes[0][1:2], *case.axes[1:]])
        for portion in shared
        for case in portion.cases
    ]
    assert larger
    assert kernels_of(device, larger, 2) == []
    monkeypatch.setattr(kernel_compiler.inventory, "devices", lambda: {"cuda:0": INFO})
    assert kernel_compiler._of_several(Listing("cuda:0", INFO), FULL) == []


def test_plans_of_the_transforms_are_made_once_each(with_libraries, monkeypatch):
    device = Listing("cuda:0", INFO)
    cases = [case for case in cases_of(device) if str(case).startswith("poisson dst 2d")]
    kernels_of(device, cases)
    lengths = {layouts[0][1][0] for layouts in device.layouts.values()}
    assert lengths == {2 * round(n**0.5) for n in cases[0].axes[0]}
    made = []

    class Real:
        def transforms(self, layouts):
            made.append(layouts)
            if len(made) == 3:
                raise DeviceError("no room")

        def trim(self):
            made.append(None)

        active = contextlib.nullcontext

    monkeypatch.setattr(kernel_compiler.devices, "get", {"cuda:0": Real()}.get)
    kernel_compiler._make_plans("cuda:0", device)
    assert made[::2] == [*device.layouts.values()]
    assert made[1::2] == [None] * len(device.layouts), "no memory is kept"
    assert len(device.layouts) > 3


def test_a_run_that_does_not_end_is_ended_and_others_are_listed(monkeypatch):
    row = next(i for i in registry.lookup("poisson") if i.kind == "cuda")
    device = Listing("cuda:0", INFO)

    def never(devices, problem, arguments):
        while True:
            devices[0].build("a.cu", "a", (("N", problem),))
            devices[0].launch(None, 1, 1, [])

    row = dataclasses.replace(row, run=never)
    case = Case(row, "float32", "2d", TimedSolves(1, 1), [[3, 4]], problem=lambda n: n)
    made = Arguments((), None, Solve(None, 0.0, 0.0, 1))
    case = dataclasses.replace(case, arguments=lambda n, devices: made)
    monkeypatch.setattr(listing, "_MOST", 5)
    assert kernels_of(device, [case]) == [("a.cu", (("N", 3),)), ("a.cu", (("N", 4),))]
    assert kernels_of(device, [case]) == [], "they are listed"


@pytest.fixture
def started(monkeypatch):
    """What processes are asked that are begun, none of which runs."""
    asked = []

    class Process:
        def __init__(self, command, **_):
            self.ours = "compile_asked" in command[-1]  # others may look for a compiler
            self.stdin, self.stdout = io.StringIO(), io.StringIO("first\n")
            self.stdin.close = lambda: self.ours and asked.append(json.loads(self.stdin.getvalue()))

        def wait(self):
            return 0

    monkeypatch.setattr(compiling.subprocess, "Popen", Process)
    return asked


def test_a_list_is_compiled_once_until_its_kernels_change(started, monkeypatch):
    row = next(i for i in registry.lookup("poisson") if i.kind == "cuda")
    place = Place("cuda:0", INFO)
    cases = [Case(row, dtype, "2d", TimedSolves(8, 40)) for dtype in ("float32", "float64")]
    monkeypatch.setattr(compiling, "_sources", lambda: "these")
    Kernels(place, cases, False, {}).wait()
    (asked,) = started
    assert asked["cases"] == sorted(map(str, cases))

    compiling.disk_cache.write(kernel_compiler.KIND, asked["mark"], b"")
    started.clear()
    Kernels(place, cases[::-1], False, {}).wait()
    assert not started, "they are in the cache"

    Kernels(place, cases, True, {})
    Kernels(place, cases[:1], False, {})
    Kernels(place, cases, False, {"a card": {"figures": 1}})
    monkeypatch.setattr(compiling, "_sources", lambda: "others")
    Kernels(place, cases, False, {})
    assert len({asked["mark"] for asked in started}) == 4, "other sizes, cases, plans and kernels"
