"""Tuning tables, and that measuring a card's figures finds what its clock was made with."""

from __future__ import annotations

import contextlib
import importlib
import math
import re

import numpy as np
import pytest
import scipy.sparse as sp

import hetero
from hetero import devices, kernels, profile
from hetero.calibration.tuning import measure_table
from hetero.errors import ProfileError
from hetero.kernels.common import refit as common
from hetero.kernels.common import tuning
from hetero.kernels.common.refit import Limits, RefitCase, Search, Timer, search
from hetero.kernels.matmul import refit as matmul_refit
from hetero.kernels.matmul import tiles
from hetero.kernels.matvec import refit as matvec_refit
from hetero.profile import tuning as tuning_tables

calibrate = importlib.import_module("hetero.calibration.calibrate")  # the name is a function too
LIMITS = Limits(132, 1024, 227 << 10, (9, 0))


def changed(table, **values):
    return table.replaced({name.replace("__", "."): value for name, value in values.items()})


# -- Tables --------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", tuning.shipped_names())
def test_shipped_tables_are_whole(name):
    table = tuning.shipped(name)
    assert table.data["figures"].keys() == tuning.default().data["figures"].keys()
    assert tuning.parse(table.data).data == table.data
    for figure in table.data["figures"].values():
        assert figure.keys() == {"unit", "meaning", "value"}


def test_every_tile_has_its_figures():
    table = tuning.default()
    for dtype in ("float32", "float64"):
        named = {t.name: t for c in (None, (9, 0)) for t in tiles.tiles(dtype, c)}
        rates = table["matmul.tile_rates"][dtype]
        assert rates.keys() == named.keys()
        assert all(len(rates[name]) == tile.resident for name, tile in named.items())


def test_the_nearest_table():
    assert tuning.nearest("NVIDIA H200", "sm_90", 132) is tuning.default()
    assert tuning.nearest("NVIDIA H200 NVL", "sm_90", 132) is tuning.default()
    assert tuning.nearest("Tesla T4", "sm_75", 40) is tuning.default()
    for name in tuning.shipped_names():
        table = tuning.shipped(name)
        assert tuning.nearest(table.card, table.architecture, table.multiprocessors) is table
    with pytest.raises(ValueError, match=re.escape("must be one of 'h200'")):
        tuning.shipped("t4")


def test_a_table_that_lacks_figures_is_filled_up():
    data = changed(tuning.default(), matvec__launch_bytes=5.0)
    data["figures"] = {name: data["figures"][name] for name in ("matvec.launch_bytes",)}
    table = tuning.parse(data)
    assert table["matvec.launch_bytes"] == 5.0
    assert table["matvec.short_row"] == tuning.default()["matvec.short_row"]


@pytest.mark.parametrize(
    "values",
    [
        {"matvec__launch_bytes": 0},
        {"matvec__launch_bytes": math.nan},
        {"matvec__launch_bytes": "7"},
        {"matvec__column_speeds": {"128": 1.0}},
        {"matmul__launch": 3e-6},
        {"cg__threads": 192},
        {"cg__blocks": 4.5},
    ],
)
def test_a_wrong_table_is_refused(values):
    name = next(iter(values)).replace("__", ".")
    with pytest.raises(ValueError, match=re.escape(name)):
        tuning.parse(changed(tuning.default(), **values))


def test_a_plan_takes_a_table():
    shape = {"m": 64, "n": 8192, "k": 8192, "batch": 1, "dtype": "float32", "alignment": 16}
    strides = {"a_strides": (0, 8192, 1), "b_strides": (0, 8192, 1), "c_strides": (0, 8192, 1)}
    limits = LIMITS._asdict()
    usual = kernels.plan_matmul(**shape, **strides, **limits)
    slow = {**tuning.default()["matmul.second_launch"], "float32": 1.0}
    whole = tuning.parse(changed(tuning.default(), matmul__second_launch=slow))
    assert usual == kernels.plan_matmul(**shape, **strides, **limits, tuning=tuning.default())
    assert len(kernels.plan_matmul(**shape, **strides, **limits, tuning=whole).launches) == 1


OTHER = {
    "convolution__tile_threads": 64,
    "convolution__resident_threads": 256,
    "convolution__stage_bytes": 16384,
    "convolution__stage_columns": 16,
    "jacobi__depth": {"float32": 2, "float64": 2},
    "cg__threads": 128,
    "cg__blocks": 1,
    "cg__short_row": 3,
    "cg__row_depth": 2,
    "cg__row_blocks": {"128": 2, "64": 3, "256": 1},
    "cg__diagonal_row_blocks": {"128": 1, "64": 2, "256": 1},
    "cg__least_rows": 2,
    "cg__stencil_threads": 64,
    "cg__stencil_blocks": 2,
    "multigrid__pairs": 64,
    "multigrid__resident": {"float32": 4, "float64": 3},
    "multigrid__ahead": 2,
    "multigrid__window_rows": {"float32": 16, "float64": 12},
    "multigrid__most_planes": 16,
    "multigrid__least_planes": 2,
    "multigrid__blocks": 2,
}


def test_another_table_gives_other_launches_and_the_same_results(opencl, monkeypatch):
    """The device's own table is what every operation's kernels are planned by."""
    device = devices.get(opencl)
    random = np.random.default_rng(7)
    image, filter = random.random((60, 70)), random.random((9, 13))
    square = random.random((70, 60))
    matrix = sp.random_array((900, 900), density=0.006, rng=random).tocsr()
    matrix = (matrix @ matrix.T + 4 * sp.eye_array(900)).tocsr()
    right = random.random(900)
    calls = {
        "direct": lambda: hetero.convolve2d(image, filter, method="direct"),
        "jacobi": lambda: hetero.solve_poisson(square, method="jacobi", maxiter=20, rtol=0),
        "multigrid": lambda: hetero.solve_poisson(square, method="multigrid"),
        "cg": lambda: hetero.solve_cg(hetero.Poisson(square.shape), square.ravel())[0],
        "csr": lambda: hetero.solve_cg(matrix, right)[0],
    }
    found = []
    build = type(device).build

    def noted(self, source, kernel, defines):
        found.append((source, defines))
        return build(self, source, kernel, defines)

    monkeypatch.setattr(type(device), "build", noted)

    def run():
        results, launched = {}, {}
        for name, call in calls.items():
            found.clear()
            with hetero.use(device=opencl):
                results[name] = np.asarray(call())
            launched[name] = frozenset(found)
        return results, launched

    hetero.reset()
    usual, before = run()
    hetero.reset()
    with tuning_tables.using({device.describe()["name"]: changed(tuning.default(), **OTHER)}):
        other, after = run()
    hetero.reset()
    for name in calls:
        assert before[name] != after[name], name
        np.testing.assert_allclose(other[name], usual[name], rtol=1e-6, err_msg=name)


# -- Refitting -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_planted_figures_of_tiles_are_found(dtype):
    """A clock by the formula with other figures: its choices, and times, are found again."""
    table = tuning.default()
    random = np.random.default_rng(5)

    def other(value):
        if isinstance(value, dict):
            return {key: other(v) for key, v in value.items()}
        if isinstance(value, list):
            return [other(v) for v in value]
        return value * math.exp(random.normal(0, 0.15))

    names = [name for name in table.data["figures"] if name.startswith("matmul.")]
    planted = tuning.parse(table.replaced({name: other(table[name]) for name in names}))
    samples = list(matmul_refit.cases(dtype, LIMITS, table))
    clock = [tiles.seconds(s.product, s.tile, s.split_k, planted)[1] for s in samples]
    found = matmul_refit.fit(table, dtype, LIMITS, samples, clock)
    fitted = tuning.parse(table.replaced({k: {**table[k], dtype: v} for k, v in found.items()}))
    for name in ("launch", "latency", "second_launch"):
        figure = f"matmul.{name}"
        assert fitted[figure][dtype] == pytest.approx(planted[figure][dtype], rel=0.05)
    for tile in tiles.tiles(dtype, LIMITS.capability):
        figure = planted["matmul.tile_rates"][dtype][tile.name]
        assert fitted["matmul.tile_rates"][dtype][tile.name] == pytest.approx(figure, rel=0.05)
    for product in {s.product for s in samples}:
        chosen = tiles.choose(product, fitted)[:2]
        taken = tiles.seconds(product, *chosen, planted)[1]
        assert taken <= 1.03 * tiles.choose(product, planted)[2]


@pytest.mark.parametrize("apart", [0.0, 0.3])
def test_disturbed_times_give_no_wild_figures_of_tiles(monkeypatch, apart):
    """Figures are the planted ones or the table's, or lie between; exactly the table's where the
    clock goes by these."""
    monkeypatch.setattr(matmul_refit, "_SQUARES", (64, 256, 512, 1000, 1024, 2048, 4096))
    monkeypatch.setattr(matmul_refit, "_SHAPES", matmul_refit._SHAPES[:8])
    table = tuning.default()
    random = np.random.default_rng(1)
    names = [n for n in table.data["figures"] if n.startswith("matmul.") and "sustained" not in n]

    def other(value):
        if isinstance(value, dict):
            return {key: other(v) for key, v in value.items()}
        if isinstance(value, list):
            return [other(v) for v in value]
        return value * math.exp(random.normal(0.0, apart))

    planted = tuning.parse(table.replaced({name: other(table[name]) for name in names}))
    samples = {
        matmul_refit.launches(sample)[0].launches: sample
        for dtype in ("float32", "float64")
        for sample in matmul_refit.cases(dtype, LIMITS, table)
    }

    def clock(launch_plan, buffers):
        return disturbed(tiles.seconds(*samples[launch_plan.launches], planted)[1], random)

    def numbers(value):
        if isinstance(value, dict | list):
            inside = value.values() if isinstance(value, dict) else value
            return [number for one in inside for number in numbers(one)]
        return [value]

    found = matmul_refit.refit(table, LIMITS, clock)
    assert (found == {name: table[name] for name in found}) == (apart == 0.0)
    for name in names:
        for one, *ends in zip(
            *map(numbers, (found[name], planted[name], table[name])), strict=True
        ):
            assert min(ends) / 1.4 < one < 1.4 * max(ends), name


def test_a_threshold_is_found():
    """The value by which what is faster on the clock is chosen."""

    def plan(k):
        def planned(table):
            kernel = "short" if k <= table["matvec.short_row"] else "long"
            launch = kernels.Launch("", kernel, (("K", k),), 1, 1, ())
            return kernels.LaunchPlan((launch,), 0, kernel)

        return planned

    def clock(launch_plan, buffers, cold):
        (launch,) = launch_plan.launches
        long = launch.kernel == "long"
        return 1.0 if long == (dict(launch.defines)["K"] > 16) else 2.0

    cases = [RefitCase(plan(k), {}) for k in (4, 12, 24, 48, 96)]
    wanted = Search("matvec.short_row", (8, 16, 32, 64), cases)
    found = search(tuning.default(), wanted, Timer(clock))
    assert found["matvec.short_row"] == 16


SEARCHED = [family for family in kernels.REFITTED if family != "matmul"]


def disturbed(seconds, random):
    """A time with 5 % noise, and one in twenty ten times too long."""
    return seconds * math.exp(random.normal(0.0, 0.05)) * (10.0 if random.random() < 0.05 else 1.0)


def bytes_of(launch_plan, buffers):
    """What the launches' operands have together."""
    names = {a for launch in launch_plan.launches for a in launch.arguments if type(a) is str}
    known = (buffers[name] for name in names if name != "partial" or not launch_plan.workspace)
    return sum(b.nbytes if isinstance(b, np.ndarray) else b for b in known)


@pytest.mark.parametrize("family", SEARCHED)
def test_noise_changes_no_figure(family):
    refit = importlib.import_module(f"hetero.kernels.{family}.refit").refit
    random = np.random.default_rng(3)

    def clock(launch_plan, buffers, cold):
        return disturbed(bytes_of(launch_plan, buffers) / 4e12, random)

    table = tuning.default()
    assert [n for n, v in refit(table, LIMITS, clock).items() if v != table[n]] == []


@pytest.mark.parametrize(
    ("figure", "value"),
    [
        ("matvec.misaligned_row", 1024),
        ("matvec.cluster_columns", 256),
        ("convolution.stage_columns", 16),
        ("convolution.small_outputs", 512),
        ("cg.blocks", 8),
        ("cg.row_depth", 2),
        ("multigrid.ahead", 8),
        ("multigrid.window_rows", {"float32": 24, "float64": 20}),
        ("kmeans.small_blocks", 8),
        ("kmeans.sums_blocks", 8),
    ],
)
def test_a_planted_figure_is_found(figure, value):
    """Through disturbed times, by a clock to which one table's launches are the fastest."""
    family = figure.partition(".")[0]
    module = importlib.import_module(f"hetero.kernels.{family}.refit")
    table = tuning.default()
    planted = tuning.parse(table.replaced({figure: value}))
    searches = list(module._searches(table, LIMITS))
    fast = {p.launches for s in searches for p in common.plans(planted, s.cases)}
    random = np.random.default_rng(4)

    def clock(launch_plan, buffers, cold):
        seconds = bytes_of(launch_plan, buffers) / 4e12
        return disturbed(seconds if launch_plan.launches in fast else 1.4 * seconds, random)

    found = module.refit(table, LIMITS, clock)
    assert {n: v for n, v in found.items() if v != table[n]} == {figure: value}


def test_speeds_of_pieces_are_found():
    """A clock that knows how long the pieces are that a block loads."""

    def clock(launch_plan, buffers, cold):
        defines = dict(launch_plan.launches[0].defines)
        size = {"float": 4, "double": 8}[defines["REAL"]]
        piece = defines["LANES"] * defines["WIDTH"] * size
        return bytes_of(launch_plan, buffers) / 4e12 / (1.0 if piece >= 128 else 0.5)

    found = matvec_refit.refit(tuning.default(), LIMITS, clock)["matvec.column_speeds"]
    assert found == {"256": 1.02, "128": 1.0, "64": 0.5, "32": 0.5}  # 1.02 and 1 are alike


# -- On a device ---------------------------------------------------------------------------------

SMALL = {
    "convolution": {"_TILED": ((40, 11),), "_LINES": ((40, 15),), "_SMALL": ((30, 3),)},
    "jacobi": {"_GRIDS": ((40, 50),)},
    "cg": {"_FLAT": ((40, 50),), "_SMALL": ((9, 10),), "_SOLID": ((9, 10, 12),)},
    "multigrid": {"_FLAT": ((31, 1, 32),), "_SOLID": ((15, 16, 17),)},
}
SMALL["convolution"] |= {"_MEDIUM": 32, "_LARGE": 48}
SMALL["cg"] |= {"_LENGTHS": (1000,), "_ENTRIES": 2000}
WRITTEN = {"out", "u_new", "u", "x", "r", "p", "q", "next", "now", "work", "coarse"}


@pytest.mark.parametrize("family", SMALL)
def test_what_is_timed_runs(opencl, monkeypatch, family):
    """The launches have the arguments that the kernels take, and do what a solve's would do."""
    device = devices.get(opencl)
    refit = importlib.import_module(f"hetero.kernels.{family}.refit")
    for name, value in SMALL[family].items():
        monkeypatch.setattr(refit, name, value)
    limits = Limits(device.multiprocessors, device.block_limit, device.shared_limit, None)
    random = np.random.default_rng(0)
    table = tuning.default()
    cases = [c for wanted in refit._searches(table, limits) for c in wanted.cases]
    plans = {}
    for case in cases:  # one for each set of kernels; another dtype would only compile for longer
        plan = case.plan(table)
        if ("REAL", "float") in plan.launches[0].defines:
            key = tuple((one.kernel, len(one.arguments)) for one in plan.launches[:2])
            plans.setdefault(key, (plan, case.buffers))
    for plan, buffers in plans.values():
        names = {a for one in plan.launches for a in one.arguments if type(a) is str}
        held, before, owners = {}, {}, []
        for name in names:
            content = buffers[name]
            if not isinstance(content, np.ndarray):
                content = before[name] = random.random(content // 4).astype(np.float32)
            held[name], owner = device.allocate(content.nbytes)
            device.upload(np.ascontiguousarray(content), held[name])
            owners.append(owner)
        device.run_launches(plan, dict(held), 4)
        device.synchronize()
        after = {name: np.empty_like(content) for name, content in before.items()}
        for name in after:
            device.download(held[name], after[name])
        written = {n for n in names & WRITTEN if not np.array_equal(before[n], after[n])}
        assert written, plan.launches[0].kernel
        assert all(np.isfinite(after[name]).all() for name in written)


class FakeCard:
    """A device whose clock knows how many bytes and flops a launch has, and nothing else."""

    kind, name, multiprocessors, block_limit = "cuda", "cuda:0", 132, 1024
    shared_limit, capability = 227 << 10, (9, 0)

    def __init__(self):
        self.now = 0.0

    def describe(self):
        return {"name": "Some Card", "arch": "sm_90"}

    def active(self):
        return contextlib.nullcontext()

    def allocate(self, nbytes):
        return 0, None

    def compiled(self, *_):
        pass

    def upload(self, *_):
        pass

    def synchronize(self):
        pass

    def copy_from_peer(self, target, peer, source, nbytes):
        self.now += 2 * nbytes / 4e12

    def event(self):
        return self.now

    def passed(self, mark):
        return False

    def elapsed(self, start, end):
        return end - start

    def build(self, *_):
        return None

    def launch(self, kernel, grid, block, arguments, shared_bytes):
        assert not any(type(argument) is str for argument in arguments)
        self.now += 2e-6 + 1e-9 * grid


def test_a_table_of_a_card_is_measured(monkeypatch):
    """From the device's own clock; a profile holds it, and its card's kernels are planned by it."""
    few = [(256, 256, 256), (64, 4096, 4096)]
    monkeypatch.setattr(matmul_refit, "_SHAPES", few)
    monkeypatch.setattr(matmul_refit, "_SQUARES", (1024,))
    monkeypatch.setattr(kernels, "REFITTED", ("matmul",))
    data = measure_table(FakeCard())
    table = tuning.parse(data)
    assert (table.card, table.multiprocessors) == ("Some Card", 132)
    assert any(table[name] != tuning.default()[name] for name in table.data["figures"])
    assert table["matvec.short_row"] == tuning.default()["matvec.short_row"]
    stored = {**profile.shipped("conservative").data, "kernels": {"Some Card": data}}
    monkeypatch.setattr(profile.finding, "_current", profile.parse(profile.encode(stored)))
    tuning_tables._forget()
    info = {"kind": "cuda", "name": "Some Card", "arch": "sm_90", "multiprocessors": 132}
    assert tuning_tables.of_info(info).data["figures"] == table.data["figures"]
    assert tuning_tables.of_info({**info, "name": "Other"}) is tuning.nearest("", "sm_90", 132)
    with tuning_tables.using({"Other": data}):
        assert tuning_tables.of_info({**info, "name": "Other"}).card == "Some Card"
    elsewhere = {**info, "elsewhere": True, "kernels": data}
    assert tuning_tables.of_info(elsewhere).card == "Some Card"
    data["figures"]["matmul.launch"]["value"] = {"float32": -1.0, "float64": 1.0}
    with pytest.raises(ProfileError, match=re.escape("matmul.launch float32 must be positive")):
        profile.parse(profile.encode(stored))
    tuning_tables._forget()


def test_calibrate_stores_the_tables(monkeypatch, tmp_path):
    card = {"kind": "cuda", "name": "Some Card", "arch": "sm_90", "multiprocessors": 132}
    here = {"cpu": {"kind": "cpu", "name": "a CPU"}, "cuda:0": card}
    data = tuning.default().replaced({}, card="Some Card")
    used = []

    def measure(*_):
        used.append(tuning_tables.of_info(card).card)
        return dict(profile.shipped("conservative").data)

    monkeypatch.setattr(calibrate.inventory, "devices", lambda: here)
    monkeypatch.setattr(calibrate.backends, "get", lambda name: name)
    monkeypatch.setattr(calibrate.tuning, "measure_table", lambda device, progress: data)
    monkeypatch.setattr(calibrate.machine, "measure", measure)
    monkeypatch.setattr(profile.finding, "_current", profile.shipped("conservative"))
    monkeypatch.setenv("HETERO_PROFILE", str(tmp_path / "one.json"))
    found = calibrate.calibrate(kernels=True)
    assert found.data["kernels"] == {"Some Card": data}
    again = calibrate.calibrate(path=tmp_path / "two.json")  # which keeps them
    assert again.data["kernels"] == found.data["kernels"]
    assert used[:2] == ["Some Card", "Some Card"]
    profile.set_current(None)
