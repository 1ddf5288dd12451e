"""`hetero ladder` and `hetero sweep`, on an OpenCL device at small sizes."""

from __future__ import annotations

import dataclasses
import functools
import importlib
import itertools
import json
import time

import numpy as np
import pytest
import runtimes
from compiled import compile_cuda

from hetero import cli, devices, registry
from hetero.calibration import request
from hetero.errors import DeviceError, DeviceNotAvailable
from hetero.evaluation import climbing, ladder, last, report, sweep
from hetero.evaluation.causes import binding, roof
from hetero.evaluation.causes.launches import Launched
from hetero.host import blas, limits
from hetero.host.threads import thread_count
from hetero.kernels.common.peak import peaks
from hetero.kernels.procedure import counts, metrics
from hetero.kernels.procedure.metrics import Launch, Resources
from hetero.ops import benchmark
from hetero.ops.cases import Place
from hetero.pricing import pricing
from hetero.profile import inventory
from hetero.registry import thread_counts

LADDERS = [o for o in registry.operations() if o.ladder]
MATMUL = registry.operation("matmul")


@pytest.fixture(scope="module", autouse=True)
def short():
    """Few samples and steps, of little."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(climbing, "_POINT", 0.004)
        patch.setattr(climbing, "_MOST_STEPS", 3)
        patch.setattr(roof, "_COPIED_OTHERS", 1 << 20)
        patch.setattr(roof, "_ROUNDS_OTHERS", 4)
        patch.setattr(roof, "_PRODUCT", 64)
        yield


@pytest.fixture(scope="module")
def device():
    return runtimes.opencl_device().name


@pytest.fixture(scope="module")
def climbed(device):
    return ladder.ladder(MATMUL, "float32", (8, 40), device=device)


def test_every_rung_is_measured_in_order(climbed, device):
    rungs = registry.rungs("matmul", "opencl")
    names = [*(row.method for row in rungs), "tiled", "blas"]
    assert [row["method"] for row in climbed["rows"]] == 2 * names
    numbers = [row.rung.number for row in rungs]
    assert [row["number"] for row in climbed["rows"]] == 2 * [*numbers, 13, 14]
    assert [row["device"] for row in climbed["rows"]] == 2 * [*[device] * (len(names) - 1), "cpu"]
    assert (climbed["device"], climbed["dtype"], climbed["what"]) == (device, "float32", "call")
    before, taken = None, {}
    assert climbed["roof"]["times"] in (2, 3)
    above = {rate: climbed["roof"][rate] for rate in ladder._RATES}
    beside = {row["size"]: row["seconds"] for row in climbed["rows"] if row["device"] == "cpu"}
    for row in own(climbed):
        n = row["size"]
        assert row["over_cpu"] == beside[n] / row["seconds"]
        assert row["dims"] == [n, n, n]
        assert row["rung"] == (row["method"] != "tiled")
        assert row["flops_per_second"] == pytest.approx(2 * n**3 / row["seconds"])
        assert row["bytes_per_second"] == pytest.approx(12 * n**2 / row["seconds"])
        share = max(row[rate] / above[rate] for rate in above)
        assert row["measured_share"] == pytest.approx(share)
        last = taken[n, row["instead_of"]] if row["instead_of"] else before
        if row["number"] == 1:
            assert row["gain"] is None
        else:
            assert row["gain"] == pytest.approx(last / row["seconds"])
        taken[n, row["method"]] = row["seconds"]
        before = before if row["instead_of"] else row["seconds"]


def test_a_branch_stands_behind_its_rung(climbed):
    """With a gain over that one; the next rung's is over the rung, not the branch."""
    rows = [{**row, "gain": row["gain"] and 0.5} for row in own(climbed)]
    lines = ladder.text({**climbed, "rows": rows}).splitlines()
    lines = [line.split(" | ") for line in lines if "| or | " in line or "naive |" in line]
    at = [line[1] for line in lines].index("uncoalesced")
    assert lines[at - 1][:2] == ["| 2", "naive"]
    assert lines[at - 1][5] == "0.50"
    assert (lines[at][0], lines[at][5]) == ("| or", "0.50 of naive")


def own(found):
    """A device's rows, without the CPU's."""
    return [row for row in found["rows"] if row["device"] == found["device"]]


def test_a_device_is_seen_beside_the_cpu(climbed):
    """A line of the table without a share of the device's roof, and no rung that is beaten."""
    lines = [line for line in ladder.text(climbed).splitlines() if "| blas on cpu |" in line]
    assert len(lines) == 2
    assert [line.split(" | ")[5:8] for line in lines] == [["", "", ""]] * 2
    rows = [{**row, "seconds": 1.0, "reason": ""} for row in climbed["rows"] if row["rung"]]
    rows += [{**row, "seconds": 2.0} for row in climbed["rows"] if row["device"] == "cpu"]
    assert "times as fast as" not in ladder.text({**climbed, "rows": rows})


@pytest.mark.parametrize("operation", LADDERS, ids=lambda o: o.name)
def test_every_ladder_is_climbed(operation, device, monkeypatch):
    """From its first rung to the first method above the rungs."""
    first = registry.rungs(operation.name, "opencl")[0].method
    last = next(iter(operation.ladder))
    rows = [i for i in registry.lookup(operation.name) if i.method in (first, last)]
    monkeypatch.setitem(registry._implementations, operation.name, rows)
    found = ladder.ladder(operation, "float32", (24,), device=device)
    for row in found["rows"]:
        assert row.get("seconds", 0.0) > 0.0, row
    assert [row["method"] for row in own(found)] == [first, last]
    solves = operation.name in ("poisson", "kmeans")
    assert found["what"] == ("iteration" if solves else "call")
    assert ladder.text(found).count("\n| ") == 1 + len(found["rows"])


def test_a_filter_of_another_extent(device):
    """Of the device and of the CPU; what does not take it is left out with the reason."""
    operation = registry.operation("convolve2d")
    found = ladder.ladder(operation, "float64", (16,), device=device, filter=91)
    assert {tuple(row["dims"]) for row in found["rows"]} == {(16, 16, 91, 91)}
    reasons = {row["method"]: row["reason"] for row in found["rows"] if "reason" in row}
    assert [*reasons] == ["constant"]
    assert "room for 8192 taps, not 91 x 91" in reasons["constant"]
    found = ladder.ladder(operation, "float64", (16,), device=device)
    assert {tuple(row["dims"]) for row in found["rows"]} == {(16, 16, 15, 15)}


@pytest.mark.parametrize("order", [1, -1])
def test_the_roof_is_measured_before_and_after_the_rungs(device, monkeypatch, order):
    """Other load beside one of the two lowers neither rate."""
    both = [roof.Roof(1e6, 2e12, "slow"), roof.Roof(4e6, 1e12, "fast")][::order]
    monkeypatch.setattr(roof, "roof_of_device", lambda *_: both.pop(0))
    monkeypatch.setattr(climbing.Ground, "seconds", lambda *_: 1.0)
    found = ladder.ladder(MATMUL, sizes=(100,), device=device)
    assert [*found["roof"].values()] == [4e6, 2e12, "fast", 0.0, 0.0, 2]
    assert {row["share"] for row in own(found)} == {0.5}  # 2e6 flops a second
    assert "100 % is" not in ladder.text(found)


def test_a_rung_above_its_roof_has_the_roof_measured_again(device, monkeypatch):
    """What other load disturbed twice is right the third time."""
    all_three = [roof.Roof(rate, 2e12, "") for rate in (1e6, 1.5e6, 8e6)]
    monkeypatch.setattr(roof, "roof_of_device", lambda *_: all_three.pop(0))
    monkeypatch.setattr(climbing.Ground, "seconds", lambda *_: 1.0)
    found = ladder.ladder(MATMUL, sizes=(100,), device=device)
    assert not all_three
    assert (found["roof"]["flops_per_second"], found["roof"]["times"]) == (8e6, 3)
    assert {row["share"] for row in own(found)} == {0.25}
    assert "both the best of 3 measurements now" in ladder.text(found)
    assert "raised" not in ladder.text(found)


def test_what_exceeds_the_roof_is_the_roof_and_it_is_said(device, monkeypatch):
    """As where other load goes on beside both measurements."""
    monkeypatch.setattr(roof, "roof_of_device", lambda *_: roof.Roof(1e6, 1e12, "slow"))
    seconds = {"naive": 1.0, "rows2": 4.0}
    monkeypatch.setattr(climbing.Ground, "seconds", lambda _, row, n: seconds.get(row.method, 2.0))
    found = ladder.ladder(MATMUL, sizes=(100, 50), device=device)
    shares = {(row["method"], row["size"]): row["share"] for row in own(found)}
    assert max(shares.values()) == shares["naive", 100] == 1.0
    assert (shares["rows2", 100], shares["naive", 50], shares["rows2", 50]) == (0.25, 0.25, 0.0625)
    said = [line for line in ladder.text(found).splitlines() if line.startswith("100 % is")]
    told = "100 % is what naive reached, 2.00 times the measured roof: other load disturbed that"
    assert [line[: len(told)] for line in said] == [told]
    raised = [line for line in ladder.text(found).splitlines() if "| 100 %, raised |" in line]
    assert [line.split(" | ")[1] for line in raised] == ["naive"]
    needs = {(row["method"], row["size"]): row["needs"]["arithmetic"] for row in own(found)}
    assert needs["naive", 100] == 1.0  # what it reached is there for the others
    assert needs["rows2", 100] == 1.0
    assert needs["rows2", 50] == 0.25


@pytest.mark.parametrize("operation", registry.operations(), ids=lambda o: o.name)
def test_a_method_is_timed_on_what_calibration_measures_it_on(operation):
    place = Place("cpu", inventory.devices()["cpu"])
    ground = climbing.Ground(operation, place, "float64", 1.0)
    own = {}
    for case in importlib.import_module(operation.cases).cases(place, request.QUICK):
        if case.dtype == "float64":
            own.setdefault(case.implementation.method, case)
    for row in ground.measured():
        found, expected = ground.case(row), own[row.method]
        assert (found.implementation, found.axes) == (row, expected.axes)
        if expected.axes:
            dims = [axis[0] for axis in expected.axes]
            assert found.problem(*dims) == expected.problem(*dims)


def test_what_takes_too_long_is_left_out(device, monkeypatch):
    """The longest tried is a step from what is allowed; each rung for itself."""
    tried = []

    def once(ground, row, size):
        tried.append((row.method, size))
        rate = {"sequential": 125e3}.get(row.method, 1e9)
        return 2.0 * size**3 / rate

    monkeypatch.setattr(climbing.Ground, "once", once)
    monkeypatch.setattr(climbing.Ground, "seconds", lambda ground, row, size: 0.25)
    found = ladder.ladder(MATMUL, sizes=(256,), device=device, limit=1.0)
    first, *others = own(found)
    assert first["reason"] == "would take about 4.5 min"
    assert "seconds" not in first
    assert all(row["seconds"] == 0.25 for row in others)
    assert others[0]["gain"] is None
    assert max(size for method, size in tried if method == "sequential") == 32
    assert "sequential is left out: would take about 4.5 min" in ladder.text(found)


def test_what_fails_is_left_out(device, monkeypatch):
    def failing(devices, problem, arguments):
        raise DeviceError("no such luck\nin detail")

    rows = [
        dataclasses.replace(i, run=failing) if i.method == "rows2" else i
        for i in registry.lookup("matmul")
    ]
    monkeypatch.setitem(registry._implementations, "matmul", rows)
    found = ladder.ladder(MATMUL, sizes=(8,), device=device)
    reasons = {row["method"]: row["reason"] for row in found["rows"] if "reason" in row}
    assert reasons == {"rows2": "no such luck"}


def test_a_rung_that_beats_the_best_is_told(climbed):
    rows = [{**row, "seconds": 1.0} for row in own(climbed)]
    assert "times as fast as" not in ladder.text({**climbed, "rows": rows})
    next(row for row in rows if row["method"] == "rows4")["seconds"] = 0.5
    assert "rows4 is 2.00 times as fast as tiled here" in ladder.text({**climbed, "rows": rows})


@pytest.mark.parametrize("operation", LADDERS, ids=lambda o: o.name)
def test_the_cpu_has_rungs_and_the_best_of_its_methods(operation):
    """In order, each timed, gains over the one before."""
    found = ladder.ladder(operation, "float64", (24,), device="cpu")
    rungs = [row.method for row in benchmark.rungs(operation, "cpu")]
    assert rungs[0] == "sequential"
    assert rungs[-1] == "parallel"
    best = {"poisson": "jacobi", "kmeans": "lloyd", "convolve2d": "direct"}
    assert [row["method"] for row in found["rows"]] == [*rungs, best.get(operation.name, "blas")]
    assert [row["number"] for row in found["rows"]] == [*range(1, len(rungs) + 2)]
    assert all(row["device"] == "cpu" and row["threads"] is None for row in found["rows"])
    assert not any("over_cpu" in row for row in found["rows"])
    times = [row["seconds"] for row in found["rows"]]
    gains = [before / after for before, after in itertools.pairwise(times)]
    assert [row["gain"] for row in found["rows"]] == [None, *map(pytest.approx, gains)]
    assert found["roof"]["how"] == "a product by BLAS"


def test_what_has_no_rungs_on_the_cpu_has_its_methods():
    found = ladder.ladder(registry.operation("cg"), "float64", (64,), device="cpu")
    assert {row["rung"] for row in found["rows"]} == {False}


def test_methods_are_timed_on_numbers_of_threads(monkeypatch):
    """Those that have several; more than there are is a reason, and nothing runs then."""
    monkeypatch.setattr(blas, "others", list)  # threads of the test runner, which call no BLAS
    most = {pool: limits.most(pool) for pool in (limits.BLAS, limits.LOOPS)}
    if min(most.values()) < 2:
        pytest.skip("needs two threads of BLAS and of the loops")
    counted = {limits.BLAS: limits.number, limits.LOOPS: thread_count, None: lambda: None}
    seen = []

    def note(pool, *_):
        seen.append(counted[pool]())

    probes = [
        dataclasses.replace(i, run=functools.partial(note, thread_counts.pool(i)))
        for i in (*registry.lookup("matmul"), *benchmark.rungs(MATMUL, "cpu"))
    ]
    monkeypatch.setitem(registry._implementations, "matmul", [i for i in probes if not i.rung])
    own = [i for i in probes if i.rung and i.kind == "cpu"]
    monkeypatch.setattr("hetero.ops.matmul.benchmarks.LOOPS", own)
    monkeypatch.setattr(climbing.Ground, "seconds", lambda _, row, n: row.run((), 0, 0) or 1.0)
    found = ladder.ladder(MATMUL, "float64", (24,), device="cpu", threads=(1, 2, 999))
    rows = [(row["method"], row["threads"]) for row in found["rows"] if row["method"] != "blas"]
    single = [row.method for row in benchmark.rungs(MATMUL, "cpu") if not row.rung.threads]
    assert rows == [*((name, 1) for name in single), *(("parallel", n) for n in (1, 2, 999))]
    assert seen == [*[None] * len(single), 1, 2, 1, 2]
    reasons = [row["reason"] for row in found["rows"] if "reason" in row]
    numbers = most[limits.LOOPS], most[limits.BLAS]
    assert reasons == [f"it has {number} threads here, not 999" for number in numbers]
    text = ladder.text(found)
    assert "| parallel, 2 threads |" in text
    assert "| blas, 1 thread |" in text
    assert "blas, 999 threads is left out: it has" in text


def test_threads_that_cannot_be_are_refused(device, run):
    with pytest.raises(ValueError, match="threads must be 1 or more, got 2, 0"):
        ladder.ladder(MATMUL, device="cpu", threads=(2, 0))
    with pytest.raises(ValueError, match=f"threads are of device 'cpu', got '{device}'"):
        ladder.ladder(MATMUL, device=device, threads=(1,))
    code, _, err = run("ladder", "matmul", "--device", "cpu", "--threads", "1,x")
    assert code == cli.USAGE
    assert "must be whole numbers" in err


def test_methods_of_the_cpu_are_told_from_the_slowest():
    times = (("a", 1.0), ("b", 4.0), ("c", 2.0))
    rows = [{"size": 8, "method": name, "seconds": seconds} for name, seconds in times]
    ladder._in_order(rows)
    assert [(row["number"], row["method"], row["gain"]) for row in rows] == [
        (1, "b", None),
        (2, "c", 2.0),
        (3, "a", 2.0),
    ]


def test_an_iteration_is_not_what_its_first_call_compiles(device, monkeypatch):
    """A kernel of a size's own may be compiled in the first solve, which takes long then."""
    first = [0.25]

    def solve(steps):
        time.sleep(first.pop() if first else 0.001 * steps)

    monkeypatch.setattr(climbing.solving, "prepared", lambda *_: solve)
    with climbing.ground(registry.operation("kmeans"), climbing.place_of(device), None) as ground:
        (row, *_) = climbing.rows(registry.operation("kmeans"), ground)
        assert 0.0005 < ground.seconds(row, 64) < 0.05


def test_what_cannot_be_climbed_is_said(device):
    with pytest.raises(ValueError, match="solve_cg has no rungs on opencl"):
        ladder.ladder(registry.operation("cg"), device=device)
    with pytest.raises(ValueError, match="sizes must be 1 or more, got 4, 0"):
        ladder.ladder(MATMUL, sizes=(4, 0), device=device)
    with pytest.raises(DeviceNotAvailable, match="cuda:7"):
        ladder.ladder(MATMUL, device="cuda:7")


def test_a_size_at_which_it_is_another_operation_is_left_out(device):
    found = ladder.ladder(MATMUL, sizes=(1, 1), device=device)
    rows = [row for row in found["rows"] if row["method"] == "naive"]
    assert [row["reason"] for row in rows] == ["such a matmul is a matvec"]
    assert not [row for row in found["rows"] if "seconds" in row]
    assert "tiled is left out: such a matmul is a matvec" in ladder.text(found)
    with pytest.raises(ValueError, match="naive cannot be swept at size 1: such a matmul is a"):
        sweep.sweep(MATMUL, "naive", 1, device=device)


def above_rungs(operation):
    rows = registry.considered(operation.name)
    return [i for i in rows if i.kind == "opencl" and i.method in operation.ladder]


def test_equal_devices_are_a_rung_more(monkeypatch):
    """Of what they can share: the last row of each size, beside what one of them takes."""
    names = [d.name for d in devices.proven().values() if d.kind == "opencl"][:2]
    if len(names) < 2:
        pytest.skip("needs two OpenCL devices")
    info = {**inventory.devices()[names[0]], "members": tuple(names), "constants": "opencl*2"}
    monkeypatch.setattr(pricing, "groups", lambda devices: {"opencl:*": info})
    operation = registry.operation("poisson")
    monkeypatch.setattr(climbing, "rows", lambda operation, ground: above_rungs(operation))
    found = ladder.ladder(operation, "float64", (64,), device=names[0])
    one, both = own(found)[0], found["rows"][1]
    assert (one["method"], both["method"]) == ("jacobi", "jacobi by 2")
    assert (one["number"], both["number"]) == (1, 2)
    assert both["gain"] == pytest.approx(one["seconds"] / both["seconds"])
    rates = [both[rate] / found["roof"][rate] for rate in ladder._RATES]
    assert both["measured_share"] == pytest.approx(max(rates) / 2)
    alone = ladder.ladder(MATMUL, sizes=(8,), device=names[0])  # which they share in ranges only
    assert not [row for row in alone["rows"] if " by " in row["method"]]


SHAPES = ((8, 8, 1), (32, 4, 1), (32, 1, 1), (1, 64, 1))  # some of the legal ones


@pytest.fixture(scope="module")
def swept(device):
    launched = []
    with pytest.MonkeyPatch.context() as patch:
        fewer(patch, launched)
        yield {**sweep.sweep(MATMUL, "naive", 24, "float64", device=device), "launched": launched}


def fewer(patch, launched, fails=None):
    """Let matmul's naive kernel have only some shapes, one of which fails; notes what runs."""

    def change(row):
        def shaping(device, problem):
            found = row.shaping(device, problem)
            assert set(SHAPES) <= set(found.shapes)

            def run(shape, arguments):
                launched.append(shape)
                if shape == fails:
                    raise DeviceError("too large")
                return found.run(shape, arguments)

            return found._replace(shapes=SHAPES, run=run)

        return dataclasses.replace(row, shaping=shaping) if row.method == "naive" else row

    rows = [change(row) for row in registry.lookup("matmul")]
    patch.setitem(registry._implementations, "matmul", rows)


def test_a_sweep_launches_legal_blocks_alone(swept):
    assert set(swept["launched"]) == set(SHAPES)
    assert [one["shape"] for one in swept["shapes"]] == [*SHAPES]


def test_programs_of_a_sweep_are_compiled_ahead(device, monkeypatch):
    """Those of its shapes, all at once."""
    wanted = []
    own = devices.get(device)
    monkeypatch.setattr(type(own), "compile_ahead", lambda self, some: wanted.extend(some))
    fewer(monkeypatch, [])
    sweep.sweep(MATMUL, "naive", 8, device=device)
    blocks = [(dict(defines)["BX"], dict(defines)["BY"]) for _, defines in wanted]
    assert blocks == [shape[:2] for shape in SHAPES]


def test_a_block_that_fails_is_told(device, monkeypatch):
    fewer(monkeypatch, [], fails=SHAPES[1])
    found = sweep.sweep(MATMUL, "naive", 8, device=device)
    assert found["shapes"][1] == {"shape": SHAPES[1], "reason": "too large"}
    assert found["distance"] is None
    assert "its own block, 32 x 4 x 1, does not run" in sweep.text(found)


def test_a_sweep_tells_how_far_its_own_block_is(swept):
    times = {one["shape"]: one["seconds"] for one in swept["shapes"]}
    assert swept["chosen"] == (32, 4, 1)
    assert times[swept["best"]] == min(times.values())
    assert swept["distance"] == pytest.approx(times[32, 4, 1] / min(times.values()) - 1)
    text = sweep.text(swept)
    assert "32 x 4 x 1, its own" in text
    assert f"takes {100 * swept['distance']:.1f} % longer than the best" in text


def test_what_cannot_be_swept_is_said(device):
    with pytest.raises(
        ValueError,
        match=r"--method for matmul on opencl must be .* got 'tiled'",
    ):
        sweep.sweep(MATMUL, "tiled", device=device)
    with pytest.raises(ValueError, match="no method of solve_cg on opencl has blocks"):
        sweep.sweep(registry.operation("cg"), "fused", device=device)
    with pytest.raises(ValueError, match="size must be 1 or more, got -1"):
        sweep.sweep(MATMUL, "naive", -1, device=device)


def drawn(module, found):
    """What a picture is made of, with everything in its place."""
    pytest.importorskip("matplotlib")
    made = report.figure(*module.PICTURE)
    module.draw(found, made)
    made.draw_without_rendering()
    return made


def test_a_ladder_is_drawn_over_the_size(climbed):
    """A line for each row, the CPU's best one for all, and the roof, with a legend below."""
    made = drawn(ladder, climbed)
    rates, gains = made.axes
    names = [row["method"] for row in climbed["rows"][: len(climbed["rows"]) // 2]]
    drawn_lines = {line.get_label(): line for line in rates.lines}
    assert [*drawn_lines] == [*names[:-1], "blas on cpu", "roof"]
    for row in climbed["rows"]:
        name = "blas on cpu" if row["device"] == "cpu" else row["method"]
        over = next(line for line in gains.lines if line.get_label() == name)
        at = [8, 40].index(row["size"])
        assert drawn_lines[name].get_ydata()[at] == row["flops_per_second"] * 1e-9
        assert over.get_ydata()[at] == pytest.approx(row.get("over_cpu", 1.0))
    assert rates.get_xlim()[0] < 8 < 40 < rates.get_xlim()[1]
    legend = made.legends[0].get_window_extent()
    assert legend.y1 <= rates.get_window_extent().y0


def test_a_curve_has_the_sizes_between(device, monkeypatch):
    monkeypatch.setattr(climbing.Ground, "seconds", lambda *_: 1.0)
    monkeypatch.setattr(climbing.Ground, "obstacle", lambda *_: None)
    monkeypatch.setattr(binding, "counts", lambda *_: {})
    monkeypatch.setattr(ladder, "_SIZES_OTHERS", (16, 40, 64))
    asked = {"device": device}
    for given, sizes in (
        (asked, [16, 40, 64]),
        (asked | {"curve": True}, [16, 32, 64]),
        (asked | {"curve": True, "sizes": (24,)}, [24]),
    ):
        found = ladder.ladder(MATMUL, **given)
        assert [*dict.fromkeys(row["size"] for row in found["rows"])] == sizes


def test_the_picture_of_a_sweep_frames_its_own_block(swept):
    axes = drawn(sweep, swept).axes[0]
    framed = {
        (int(axes.get_xticklabels()[x].get_text()), int(axes.get_yticklabels()[y].get_text()))
        for x, y in (t.get_position() for t in axes.texts if t.get_bbox_patch().get_linewidth() > 0)
    }
    assert framed == {swept["chosen"][:2]}


def test_commands(device, capsys, tmp_path, monkeypatch, climbed, swept):
    """They print what was found, keep the ladder for the report, and draw it."""
    kept = {}
    monkeypatch.setattr(ladder, "ladder", lambda *a, **k: climbed)
    monkeypatch.setattr(sweep, "sweep", lambda *a, **k: swept)
    monkeypatch.setattr(last, "keep", lambda kind, key, found: kept.update({(kind, key): found}))
    assert cli.main(["ladder", "matmul", "--sizes", "8,40", "--json"]) == cli.DONE
    assert json.loads(capsys.readouterr().out)["rows"][0]["method"] == "sequential"
    assert kept == {("ladder", f"matmul float32 on {device}"): climbed}
    for words, found in (
        (["ladder", "matmul"], climbed),
        (["sweep", "matmul", "--method", "x"], swept),
    ):
        pytest.importorskip("matplotlib")
        file = tmp_path / f"{words[0]}.png"
        assert cli.main([*words, "--plot", str(file)]) == cli.DONE
        assert file.read_bytes().startswith(b"\x89PNG")
        assert found["operation"] in capsys.readouterr().out
        with monkeypatch.context() as without:
            without.setattr(report, "figure", lambda *sizes: None)
            assert cli.main([*words, "--plot", str(file)]) == cli.FAILED
        printed = capsys.readouterr()
        assert found["operation"] in printed.out
        assert "pip install matplotlib" in printed.err
        assert cli.main([*words, "--plot", str(tmp_path / "a.nonsense")]) == cli.USAGE
        assert "must end in one of" in capsys.readouterr().err


def test_the_cpus_ladder_is_printed_as_json(run):
    words = "ladder matmul --device cpu --sizes 8 --threads 1 --json"
    code, out, _ = run(*words.split())
    assert code == cli.DONE
    rows = json.loads(out)["rows"]
    names = [*(row.method for row in benchmark.rungs(MATMUL, "cpu")), "blas"]
    assert [(row["method"], row["threads"]) for row in rows] == [(name, 1) for name in names]


def test_commands_with_bad_input(run):
    for words, message in (
        (["ladder", "nonsense"], "operation must be one of"),
        (["ladder", "matmul", "--sizes", "4,x"], "must be whole numbers, such as 512,4096"),
        (
            ["ladder", "matmul", "--dtype", "int8"],
            "'float64', got 'int8'",
        ),
        (["ladder", "matmul", "--filter", "3"], "--filter is of a convolution, not of matmul"),
        (["ladder", "convolve2d", "--filter", "0"], "filter must be 1 or more, got 0"),
        (["sweep", "matmul"], "--method"),
        (["ladder", "matmul", "--device", "cuda:99"], "cuda:99"),
    ):
        code, _, err = run(*words)
        assert code == cli.USAGE, words
        assert message in err


# -- The roof --------------------------------------------------------------------------------------


def test_the_peak_kernel_does_what_is_counted(device):
    """Its sums are those of so many multiply-adds."""
    own = devices.get(device)
    rounds, blocks = 2, 2
    for dtype in ("float32", "float64"):
        ((how, (launch, flops)),) = peaks(dtype, blocks, rounds, own.block_limit, None).items()
        threads = blocks * launch.block
        assert how == "multiply-adds"
        assert flops == threads * 2 * 8 * 32 * rounds
        result = np.zeros(threads, dtype)
        with own.active():
            out, _owner = own.allocate(result.nbytes)
            kernel = own.build(launch.source, launch.kernel, launch.defines)
            own.launch(kernel, launch.grid, launch.block, [out, rounds])
            own.download(out, result)
        at = np.arange(threads)
        x, y = 1 - (at % 7 + 1) / 1024, (at % 5) / 1024
        sums = [at % 3 + c for c in range(8)]
        for _ in range(32 * rounds):
            sums = [s * x + y for s in sums]
        np.testing.assert_allclose(result, np.sum(sums, axis=0), rtol=1e-4)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90"])
def test_peak_kernels_compile_without_spills(arch):
    for dtype in ("float32", "float64"):
        for launch, _ in peaks(dtype, 4, 4, 1024, (int(arch[3]), 0)).values():
            assert compile_cuda(launch, arch) == 0
    assert len(peaks("float64", 4, 4, 1024, (9, 0))) == 2


def test_the_roof_of_an_opencl_cpu_has_launches_and_no_shared_memory(device):
    own = devices.get(device)
    with own.active():
        above = roof.roof_of_device(own, "float32")
    assert 0.0 < above.launch < 0.1
    assert (above.wavefronts_per_second == 0.0) == own.describe()["is_host_cpu"]


@pytest.mark.parametrize("is_cpu", [False, True])
def test_a_roof_is_what_its_kernels_reach(device, monkeypatch, is_cpu):
    """Of a GPU shared memory too, by warps' reads; launches are timed in a row."""
    own, rows = devices.get(device), []

    def seconds_of(device, launch, buffers=None, number=1):
        rows.append((launch.kernel, launch.grid, number))
        return 2.0

    monkeypatch.setattr(roof, "seconds_of", seconds_of)
    monkeypatch.setattr(roof, "_least", lambda device, run: 4.0)
    monkeypatch.setattr(type(own), "describe", lambda self: {"is_host_cpu": is_cpu})
    with own.active():
        above = roof.roof_of_device(own, "float32")
    blocks = 32 * own.multiprocessors
    ((launch, flops),) = peaks("float32", blocks, 4, own.block_limit, None).values()
    reads = 8 * own.multiprocessors * launch.block * 32 * roof._SHARED_ROUNDS_OTHERS
    assert above.flops_per_second == flops / 2
    assert above.bytes_per_second == 2 * (1 << 20) / 4
    assert above.wavefronts_per_second == (0.0 if is_cpu else reads / 32 / 2)
    assert above.launch == 2.0
    assert rows[0] == ("peak", blocks, 1)
    assert rows[-1] == ("peak", 1, 32)


def test_the_better_of_two_roofs_is_the_best_of_each():
    one, other = roof.Roof(1.0, 5.0, "a", 7.0, 2.0), roof.Roof(3.0, 4.0, "b", 6.0, 1.0)
    assert one.raised(other) == other.raised(one) == roof.Roof(3.0, 5.0, "b", 7.0, 1.0)


# -- What limits a rung ----------------------------------------------------------------------------


def limited(roof_of, **row):
    rates = {"flops_per_second": 2.0, "bytes_per_second": 2.0}
    row = {"seconds": 1.0, **rates, **row}
    binding.add(row, roof_of)
    return row


def test_what_needs_half_of_the_time_limits_a_rung():
    waves = {"cache": 1.0, "banks": 2.0}
    for above, row, expected, shown in (
        ((4.0, 10.0), {}, "arithmetic", "arithmetic 50 %"),
        ((4.01, 10.0), {}, "latency or caches", "latency or caches (arithmetic 50 %)"),
        ((10.0, 2.5), {}, "memory", "memory 80 %"),
        ((10.0, 10.0, "", 4.0), {"wavefronts": waves}, "shared memory", "shared memory 75 %"),
        ((10.0, 10.0, "", 7.0), {"wavefronts": waves}, "latency", "latency (shared memory 43 %)"),
        ((9.0, 9.0, "", 2.0), {"wavefronts": {"cache": 9, "banks": 1}}, "caches", "caches 100 %"),
        ((9.0, 9.0, "", 9.0, 0.3), {"launches": 2}, "launches", "launches 60 %"),
    ):
        flops, nbytes, how, *more = (*above, "")[:3] + above[3:]
        found = limited(roof.Roof(flops, nbytes, how, *more), **row)
        assert found["limited_by"] == expected
        assert binding.cell(found) == shown
        assert max(found["needs"].values()) <= found["seconds"]


def test_a_ladder_says_what_limits_each_rung_and_why(climbed):
    for row in own(climbed):
        assert row["launches"] == 1
        assert row["limited_by"]
    rungs = [row for row in own(climbed) if row["method"] not in ("sequential", "tiled")]
    assert all(min(row["wavefronts"].values()) >= 0 for row in rungs)
    plain, why = ladder.text(climbed), ladder.text(climbed, why=True)
    assert "| limited by |" in plain
    assert "what each resource alone would need" not in plain
    assert why.count("what each resource alone would need") == 2
    assert why.count("| column |") == plain.count("| column |") + 2
    row = {"seconds": 2.0, "needs": {"memory": 0.5, "arithmetic": 1.0}, "in_flight": 0.25}
    lines = binding.table([row, {"seconds": 1.0, "needs": {"arithmetic": 0.5}}], ["a", "b"])
    assert lines[2:] == [
        "| a | 2 s | 500 ms (25 %) | 1 s (50 %) | 25 % |",
        "| b | 1 s |  | 500 ms (50 %) |  |",
    ]


def test_what_a_call_asks_of_a_device_is_of_its_counted_kernel(device, monkeypatch):
    """Else of the one with most threads; threads in flight only where registers are known."""
    operation = registry.operation("convolve2d")

    def one(kernel, grid, registers, block=64):
        needs = Resources(registers, 0)
        return Launched(kernel, (("BX", 32), ("BY", 2)), Launch(grid, 1, block, 1), needs, 0)

    many, few = one("unknown", 900, 16), one("other", 9, 16)
    for launched, waves, registers in (
        ({one("convolve_row", 8, 16): 2, many: 1, few: 1}, True, True),
        ({few: 3, many: 1}, False, True),
        ({one("convolve_row", 8, 0): 4}, True, False),
    ):
        monkeypatch.setattr(climbing.Ground, "launches", lambda *_, seen=launched: seen)
        with climbing.ground(operation, climbing.place_of(device), "float32") as ground:
            row = registry.rungs("convolve2d", "opencl")[2]
            problem = ground.problem(row, 32)
            work = row.work(problem, ground.place.info)
            seen = binding.counts(ground, row, 32, work)
            card = ground.place.devices[0].card()
        assert seen["launches"] == 4
        assert ("wavefronts" in seen) == waves
        assert ("in_flight" in seen) == registers
        launch = Launch(8 if waves else 900, 1, 64, 1)
        needs = Resources(16 if registers else 0, 0)
        assert seen["active_threads"] == metrics.active_threads(card, needs, launch)
        assert seen["waves"] == metrics.waves(card, needs, launch)
        assert seen["fragmented_threads"] == metrics.fragmented_threads(card, needs, launch)
        if registers:
            held = seen["active_threads"] / (card.multiprocessors * card.threads)
            assert seen["in_flight"] == held
    monkeypatch.setattr(climbing.Ground, "launches", lambda *_: {})
    assert binding.counts(ground, row, 32, work) == {}


def test_rungs_of_the_cpu_are_limited_by_what_one_thread_gives(monkeypatch):
    asked = []

    def of_host(dtype, threads):
        asked.append(threads)
        return roof.Roof(1e9 if threads == 1 else 4e9, 1e12, "")

    monkeypatch.setattr(roof, "roof_of_host", of_host)
    monkeypatch.setattr(climbing.Ground, "seconds", lambda *_: 1e-3)
    found = ladder.ladder(MATMUL, "float32", (50,), device="cpu")
    assert set(asked) == {None, 1}
    needs = {row["method"]: row["needs"]["arithmetic"] for row in found["rows"]}
    assert needs["sequential"] == pytest.approx(2.5e-4)
    assert needs["parallel"] == needs["blas"] == pytest.approx(2.5e-4 / 4)


def test_launches_are_recorded_and_the_device_is_as_before(device):
    """Of a call all of them, of an iteration those that one more takes."""
    for name, method, kernels in (
        ("convolve2d", "padded", {"pad_image": 1, "pad_taps": 1, "convolve_padded": 1}),
        ("poisson", "naive", {"jacobi_naive": 1}),
        ("kmeans", "coalesced", {"assign_points": 1, "sum_parts": 1}),
    ):
        operation = registry.operation(name)
        with climbing.ground(operation, climbing.place_of(device), "float32") as ground:
            row = next(r for r in climbing.rows(operation, ground) if r.method == method)
            seen = ground.launches(row, 40)
            names = {one.kernel: number for one, number in seen.items()}
            assert kernels.items() <= names.items()
            assert all(one.launch.x > 0 < one.launch.grid_x for one in seen)
    own = devices.get(device)
    assert not {"build", "launch", "constant_memory"} & set(vars(own))


def test_every_counted_kernel_is_one_that_a_rung_launches(device):
    seen = set()
    for operation in LADDERS:
        with climbing.ground(operation, climbing.place_of(device), "float32") as ground:
            for row in registry.rungs(operation.name, "opencl"):
                seen |= {one.kernel for one in ground.launches(row, 16)}
    assert set(counts._KERNELS) <= seen


def test_a_roof_is_the_longer_of_two_times():
    above = roof.Roof(1e12, 1e11, "")
    assert above.seconds(2e12, 1e11) == 2.0
    assert above.seconds(1e12, 3e11) == 3.0


@pytest.mark.parametrize("command", ["ladder matmul", "sweep matmul --method tuned"])
def test_without_a_device_it_is_said_what_to_install(command, monkeypatch, run):
    monkeypatch.setattr(climbing.benchmark, "cuda_device", lambda: None)
    monkeypatch.setattr(climbing.devices, "proven", dict)
    monkeypatch.setattr(climbing.devices, "missing", lambda: ["cuda: pip install pycuda"])
    code, _, told = run(*command.split())
    assert code == cli.USAGE
    assert "kernels need a GPU or an OpenCL device, and none is here: cuda: pip install" in told
    assert "'hetero ladder' with --device cpu" in told
