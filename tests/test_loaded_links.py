"""Links right after a product of the CPU, and of several devices at once: measured, kept, used."""

from __future__ import annotations

import dataclasses
import math
import random
from types import SimpleNamespace

import numpy as np
import pytest
import toys
from fakes import FakeCuda
from made_up import GPU, machine, roofline, square
from made_up import link as straight
from test_profiles import links as links_of
from test_profiles import measured as measured_profile

import hetero
from hetero import cli, devices, profile, registry
from hetero.calibration import machine as machine_of_calibration
from hetero.calibration import modelling
from hetero.calibration.environment import (
    copies,
    links_at_once,
    loaded_links,
    overheads,
    quiet_links,
    twins,
)
from hetero.calibration.failures import Failure
from hetero.calibration.fit import fit_link
from hetero.calibration.measure import loop, sampling
from hetero.calibration.measure.loop import Measured
from hetero.calibration.measure.samples import Samples
from hetero.calling import call_cache, planner
from hetero.devices import at_once
from hetero.evaluation import links as evaluated
from hetero.evaluation import report
from hetero.host import blas_spin
from hetero.ops.cases import grid
from hetero.pricing import pricing
from hetero.profile import inventory
from hetero.registry import blas_use

BESIDE = blas_use.BESIDE_BLAS
WAYS = copies.Copies.WAYS


# -- Measuring -------------------------------------------------------------------------------------


def quiet_seconds(nbytes):
    """A link with a step, as pageable memory has one."""
    return 1e-5 + nbytes / (1e10 if nbytes < 2**24.5 else 4e9)


def ratio(way, nbytes):
    """What company does to it: much to large pageable copies, nothing to pinned ones."""
    if way[1] == "pinned":
        return 1.0
    return 1.0 + 0.4 * min(max(math.log2(nbytes / 2**20) / 8.0, 0.0), 1.0)


@pytest.mark.parametrize("spikes", [0.0, 0.1])
@pytest.mark.parametrize("seed", range(5))
def test_the_ratio_is_found_and_noise_is_not(seed, spikes):
    draw = random.Random(seed)

    def noisy(seconds):
        far = draw.uniform(3.0, 10.0) if draw.random() < spikes else 1.0
        return seconds * far * draw.uniform(1.0, 1.03)

    lengths = loaded_links.sizes(2**28, 2**12)
    times = loaded_links.compared(
        lambda way, n: noisy(quiet_seconds(n)),
        lambda way, n: noisy(quiet_seconds(n) * ratio(way, n)),
        lengths,
    )
    assert times.keys() == set(WAYS)
    quiet = [2**n for n in range(12, 31)]
    model = fit_link.segments(quiet, [quiet_seconds(n) for n in quiet])
    kinds = {"pageable": model, "pinned": model}
    found = loaded_links.curves({"upload": kinds, "download": kinds}, times)
    assert all(times[way][n] == 1.0 for way in WAYS[1::2] for n in lengths) or spikes
    for direction in ("upload", "download"):
        curve = profile.Profile(
            {"name": "", "devices": {}, "links": {"gpu": {direction: found[direction]}}}
        ).link("gpu", direction)
        for n in (9_000, 300_000, 5_000_000, 26_000_000, 90_000_000, 700_000_000):
            assert curve(n) == pytest.approx(quiet_seconds(n) * ratio(("", ""), n), rel=0.15)


def test_what_hardly_differs_is_not_kept():
    times = {way: dict.fromkeys((2**20, 2**24), 1.0) for way in WAYS}
    times["upload", "pageable"][2**24] = 1.2
    model = fit_link.segments([2**20, 2**22, 2**24], [1e-4, 4e-4, 16e-4])
    kinds = {"pageable": model, "pinned": model}
    found = loaded_links.beside({"upload": kinds, "download": kinds}, times)
    assert found["upload"].keys() == {"pageable", "pinned", f"pageable {BESIDE}"}
    assert found["download"].keys() == {"pageable", "pinned"}
    assert found["upload"]["pageable"] is model
    assert found["upload"][f"pageable {BESIDE}"]["residuals"]["worst"] < 0.15
    assert loaded_links.beside(found, {}) == found


@pytest.mark.parametrize("product", [5e-4, 5e-3, 5e-2])
@pytest.mark.parametrize("rate", [1e8, 1e9, 4e9, 3e10])
def test_the_time_is_kept_to(rate, product):
    """Slow links are compared in fewer rounds, and not at the largest sizes; so beside load."""
    now = [0.0]

    def take(more):
        def copy(way, nbytes):
            seconds = 1e-5 + nbytes / rate
            now[0] += seconds + more
            return seconds

        return copy

    lengths = loaded_links.sizes(2**28, 2**12)
    times = loaded_links.compared(take(0.0), take(product), lengths, clock=lambda: now[0])
    assert now[0] <= 1.4 * loaded_links.SECONDS
    found = set(times["upload", "pageable"])
    assert 2**12 in found <= set(lengths)
    if rate >= 4e9 and product < 1e-3:  # as of GPUs on idle hosts
        assert found == set(lengths)
    if rate <= 1e9 or product > 1e-2:
        assert found < set(lengths)


# Samples alone, and in company -> how many times as long
RATIOS = {
    "slower": ([1.0, 1.1, 1.0], [1.5, 1.6, 1.5], 1.5),
    "faster, as after something that woke the processor": ([1.5, 1.6, 1.5], [1.0, 1.1, 1.0], 2 / 3),
    "the same": ([1.0, 1.1, 1.0], [1.0, 1.0, 1.1], 1.0),
    "slower, within what samples differ": ([1.0, 1.2, 1.1], [1.1, 1.4, 1.3], 1.0),
    "faster, within what samples differ": ([1.1, 1.4, 1.3], [1.0, 1.2, 1.1], 1.0),
    "hardly slower": ([1.0, 1.001, 1.002], [1.04, 1.041, 1.042], 1.0),
    "one far off": ([1.0, 1.1, 9.0], [1.5, 1.6, 1.5], 1.5 / 1.05),
}


@pytest.mark.parametrize("case", RATIOS)
def test_what_differs_by_more_than_its_samples(case):
    quiet, loaded, expected = RATIOS[case]
    assert loaded_links._times(quiet, loaded) == pytest.approx(expected)


@pytest.mark.parametrize(("seconds", "rounds"), [(0.01, 3), (0.9, 2), (1.2, 2)])
def test_a_third_round_where_there_is_time(seconds, rounds):
    now, calls = [0.0], []

    def take(way, nbytes):
        now[0] += seconds / (2 * len(WAYS) * loaded_links._FEW)  # a round takes them
        calls.append(nbytes)
        return 1.0

    loaded_links.compared(take, take, [2**12], clock=lambda: now[0])
    assert len(calls) == rounds * 2 * len(WAYS) * loaded_links._FEW


def test_no_more_than_fits():
    def place(memory):
        return SimpleNamespace(
            devices=[SimpleNamespace(describe=lambda m=m: {"memory_bytes": m}) for m in memory]
        )

    budget = SimpleNamespace(largest_transfer=1000)
    assert loaded_links.largest(place([8000, 2000]), budget) == 500
    assert loaded_links.largest(place([8000, 9000]), budget) == 1000


class Timed(FakeCuda):
    """A device that notes what was done to it."""

    def __init__(self, ordinal, done):
        super().__init__(ordinal)
        self.done = done

    def upload(self, source, target, offset=0, stream=None):
        super().upload(source, target, offset, stream)
        self.done.append(f"upload to {self.ordinal}")
        self.largest = max(getattr(self, "largest", 0), source.nbytes)

    def download(self, source, target, offset=0, stream=None):
        super().download(source, target, offset, stream)
        self.done.append(f"download from {self.ordinal}")


@pytest.fixture
def calm(monkeypatch):
    """A process whose BLAS spins as long as it does by itself, on several threads."""
    here = inventory.devices()
    here = {**here, "cpu": {**here["cpu"], "blas_threads": 2}}
    monkeypatch.setattr(inventory, "devices", lambda: here)
    monkeypatch.setattr(blas_spin, "_told", {})
    monkeypatch.setitem(blas_spin._state, "looked", True)
    monkeypatch.setattr(blas_use, "_last", {"end": -math.inf})
    return here


def test_after_a_product(calm, monkeypatch):
    done = []
    monkeypatch.setattr(loaded_links.time, "sleep", lambda seconds: done.append(f"rest {seconds}"))

    def product(a, b):
        done.append("product")
        return a

    class Factor(np.ndarray):
        __matmul__ = product

    monkeypatch.setattr(loaded_links.np, "ones", lambda *_: np.empty(1).view(Factor))
    times = loaded_links.beside_blas(Timed(0, done), 2**14)
    assert times.keys() == set(WAYS)
    rests = [n for n, what in enumerate(done) if what.startswith("rest")]
    assert len(rests) == loaded_links._ROUNDS
    assert done[rests[0]] == f"rest {blas_use.SPINS}"
    for begin, end in zip(rests, [*rests[1:], len(done)], strict=True):
        copies = done[begin + 1 : end]
        half = copies.index("product")
        assert "product" not in copies[:half]
        assert copies[half::2] == ["product"] * (len(copies[half:]) // 2)
        assert [c for c in copies[half:] if c != "product"] == copies[:half]


@pytest.mark.parametrize("why", ["one thread", "short"])
def test_nothing_is_measured_where_no_thread_spins(calm, monkeypatch, why):
    if why == "short":
        monkeypatch.setattr(blas_spin, "_told", {"/x/numpy.libs/lib.so": "2^10 cycles"})
        assert blas_spin.is_cut()
    else:
        calm["cpu"]["blas_threads"] = 1
    assert loaded_links.beside_blas(FakeCuda(), 2**14) == {}


def test_a_spin_that_the_user_wants_long_is_not_short(monkeypatch):
    monkeypatch.setitem(blas_spin._state, "looked", True)
    monkeypatch.setattr(blas_spin, "_told", {"/x/numpy.libs/lib.so": "2^28 cycles"})
    monkeypatch.setenv(blas_spin.OPTION, "28")
    assert not blas_spin.is_cut()
    monkeypatch.setattr(blas_spin, "_told", {"/x/numpy.libs/lib.so": "as it was: why"})
    monkeypatch.delenv(blas_spin.OPTION)
    assert not blas_spin.is_cut()


def test_a_device_that_fails_is_named(calm):
    class Broken(FakeCuda):
        def pinned(self, nbytes):
            raise RuntimeError("no memory")

    place = SimpleNamespace(name="cuda:0", devices=(Broken(),))
    failures: list[Failure] = []
    budget = SimpleNamespace(largest_transfer=2**14)
    assert loaded_links.after_products([place], budget, failures) == {}
    assert [f.what for f in failures] == ["after products"]


# -- Pricing ---------------------------------------------------------------------------------------


def slower(factor):
    """The links of `machine`, and beside BLAS so many times slower."""
    up, down = straight(1e-5, 1e9), straight(2e-5, 5e8)
    up[f"pageable {BESIDE}"] = straight(1e-5, 1e9 / factor)["pageable"]
    down[f"pageable {BESIDE}"] = straight(2e-5, 5e8 / factor)["pageable"]
    return {"cuda:*": {"upload": up, "download": down}}


TWO = {"cpu": {"kind": "cpu", "name": "made up"}, "cuda:0": GPU}


def test_a_plan_beside_blas():
    constants = machine(links=slower(1.25))
    quiet, loaded = (
        pricing.price(square(2000), constants, TWO, beside=beside) for beside in ("", BESIDE)
    )
    tiled, other = (next(c for c in p.candidates if c.method == "tiled") for p in (quiet, loaded))
    assert tiled.terms["upload"] == pytest.approx(2 * (1e-5 + 16e6 / 1e9))
    assert other.terms["upload"] == pytest.approx(2 * (1e-5 + 16e6 / 0.8e9))
    assert other.terms["download"] == pytest.approx(2e-5 + 16e6 / 4e8)
    assert (tiled.seconds, tiled.otherwise) == pytest.approx((other.otherwise, other.seconds))
    assert (tiled.links, other.links) == ("", BESIDE)
    assert f", links {BESIDE}" in str(loaded)
    assert "links" not in str(quiet)
    row = next(r for r in loaded.to_dict()["candidates"] if r["method"] == "tiled")
    assert row["links"] == BESIDE
    assert not quiet.turns
    assert next(c for c in loaded.candidates if c.method == "blas").links == ""


def test_an_old_profile_has_one_curve():
    plan = pricing.price(square(2000), machine(), TWO, beside=BESIDE)
    assert plan.candidates == pricing.price(square(2000), machine(), TWO).candidates
    assert not machine().has_links(BESIDE)


@pytest.fixture
def near(cuda, monkeypatch):
    """A machine on which a product of 1000^2 is the GPU's while the link is quiet, by a little."""
    constants = machine(links=slower(1.5))
    n = 1000
    device = {**inventory.devices(), "cuda:0": {**GPU, "library": None}}
    plan = pricing.price(square(n), constants, {"cpu": TWO["cpu"], "cuda:0": device["cuda:0"]})
    gpu = next(c for c in plan.candidates if c.method == "tiled").seconds
    flops = 2.0 * n**3
    rate = flops / (1.15 * gpu)
    constants.data["models"]["cpu|matmul|blas|float32|*"] = roofline(1e-6, rate, 1e12)
    now = [1000.0]
    monkeypatch.setattr(blas_use, "_clock", lambda: now[0])
    monkeypatch.setattr(blas_use, "_last", {"end": -math.inf})
    monkeypatch.setattr(blas_spin, "_told", {})
    monkeypatch.setitem(blas_spin._state, "looked", True)
    profile.set_current(profile.parse(profile.encode(constants.data)))
    return cuda, now, n


def test_a_call_right_after_a_product_is_placed_by_the_links_then(near):
    device, now, n = near
    A = np.ones((n, n), np.float32)
    other = np.ones((150, 150), np.float32)  # 6.7e6 flops, by the CPU

    def place(call):
        device.log.clear()
        call()
        return "cuda:0" if "compute" in device.log else "cpu"

    def planned():
        return hetero.plan("matmul", A, A)

    assert planned().turns
    assert place(lambda: hetero.matmul(A, A)) == planned().chosen.device == "cuda:0"
    assert place(lambda: hetero.matmul(other, other, device="cpu")) == "cpu"
    assert planned().beside == BESIDE
    assert place(lambda: hetero.matmul(A, A)) == planned().chosen.device == "cpu"
    now[0] += 0.5 * blas_use.SPINS
    assert planned().chosen.device == "cpu"
    now[0] += blas_use.SPINS
    assert place(lambda: hetero.matmul(A, A)) == planned().chosen.device == "cuda:0"


def test_not_where_the_threads_sleep_early(near, monkeypatch):
    _, _, n = near
    A = np.ones((n, n), np.float32)
    blas_use.note()
    assert hetero.plan("matmul", A, A).beside == BESIDE
    monkeypatch.setattr(blas_spin, "_told", {"/x/numpy.libs/lib.so": "2^10 cycles"})
    assert hetero.plan("matmul", A, A).beside == ""


def test_small_products_are_not_noted(near):
    small = np.ones((20, 20), np.float32)
    hetero.matmul(small, small, device="cpu")
    assert blas_use.beside() == ""
    assert blas_use.noted(0.99 * blas_use.LEAST, len)("ab") == 2
    assert blas_use.beside() == ""
    assert blas_use.noted(blas_use.LEAST, len)("ab") == 2
    assert blas_use.beside() == BESIDE


def test_remembered_products_are_numpys_own_where_links_do_not_matter(cuda):
    """No curve, nothing to note: what is remembered of a product by NumPy is NumPy's function."""
    profile.set_current(machine())
    plan = planner.plan(square(300), "cpu")
    assert planner.noted(plan, np.matmul) is np.matmul


def test_remembered_plans_follow(monkeypatch):
    """One whose prices differ beside BLAS is made anew; others stay."""
    state, made = [""], []
    monkeypatch.setattr(blas_use, "beside", lambda: state[0])
    for constants in (machine(links=slower(1.2)), machine()):
        calls = call_cache.Calls()

        def make(constants=constants):
            made.append(state[0])
            return pricing.price(square(500), constants, TWO, beside=state[0])

        for now in ("", "", BESIDE, BESIDE, ""):
            state[0] = now
            calls.plan("key", make)
    assert made == ["", BESIDE, "", ""]


# -- Several devices -------------------------------------------------------------------------------

SEVERAL = {
    **TWO,
    "cuda:0": {**GPU, "memory_bytes": 2**40},
    "cuda:1": {**GPU, "memory_bytes": 2**40, "same_as": "cuda:0"},
}
KEY = "cuda*2|cg|fused|float64|stencil2"


def together(apart, links):
    """A profile in which two share conjugate gradients."""
    model = roofline(1e-3, 1e12, 1e12)
    models = {KEY: {**model, "moves_apart": True} if apart else model}
    return machine(models=models, links={**slower(1.0), **links})


def group(n, constants, on="host"):
    spec = hetero.spec((n * n,), "float64", on=on)
    problem = planner.registry.operation("cg").problem(hetero.Poisson((n, n)), spec)
    plan = pricing.price(problem, constants, SEVERAL)
    return next(c for c in plan.candidates if c.device == "cuda:*" and c.method == "fused")


AT_ONCE = {"cuda*2": {"upload": straight(1e-5, 0.7e9), "download": straight(2e-5, 3e8)}}


def test_copies_of_several_devices_are_at_once():
    n = 2000
    share = n * n * 8 / 2
    assert share >= at_once.LEAST
    found = group(n, together(True, AT_ONCE))
    assert found.terms["upload"] == pytest.approx(1e-5 + share / 0.7e9)
    assert found.terms["download"] == pytest.approx(2e-5 + share / 3e8)
    assert found.links == "all at once"
    alone = group(n, together(True, {}))  # as fast as alone, where that was not seen to differ
    assert alone.terms["upload"] == pytest.approx(1e-5 + share / 1e9)


def test_little_is_copied_one_after_the_other():
    n = 512
    share = n * n * 8 / 2
    assert share < at_once.LEAST
    found = group(n, together(True, AT_ONCE))
    assert found.terms["upload"] == pytest.approx(2 * (1e-5 + share / 1e9))


def test_what_an_older_profile_measured_from_host_to_host_is_not_counted_twice():
    found = group(2000, together(False, AT_ONCE))
    assert found.terms.keys() == {"overhead", "compute"}
    assert found.links == ""


@pytest.mark.parametrize("apart", [False, True])
def test_operands_on_one_of_them_come_by_way_of_the_host(apart):
    n = 2000
    here, there = (group(n, together(apart, AT_ONCE), on) for on in ("host", "cuda:0"))
    nbytes = n * n * 8
    way = 2e-5 + nbytes / 5e8 + 1e-5 + nbytes / 1e9
    assert there.seconds == pytest.approx(here.seconds + way)


@pytest.mark.parametrize("n", [2**12, 2**20, 2**24])
def test_what_was_measured_is_predicted(n):
    """The model without what is moved, and that, add up to what was measured."""
    operation = planner.registry.operation("cg")
    row = next(r for r in planner.registry.lookup("cg") if (r.method, r.kind) == ("fused", "cuda"))
    from hetero.ops.cases import Case, Place, TimedSolves
    from hetero.ops.cg import cases

    info = pricing.groups(SEVERAL)["cuda:*"]
    place = Place("cuda*2", info, (FakeCuda(0), FakeCuda(1)))
    case = Case(
        row,
        "float64",
        "stencil2",
        TimedSolves(8, 40),
        [[2**12, 2**20, 2**24]],
        lambda unknowns: cases._problem("stencil2", "float64", unknowns),
        None,
    )
    setup = {(2**k,): 3e-4 + 2.0**k * 8 / 3e8 for k in (12, 20, 24)}
    step = {(2**k,): 1e-5 + 2.0**k * 1e-11 for k in (12, 20, 24)}
    measured = Measured(case, place, Samples(seconds=step, setup=setup))
    links = {**slower(1.0), **AT_ONCE}
    failures: list[Failure] = []
    found = modelling.models([measured], failures, links)
    assert not failures
    (model,) = found.values()
    assert model["moves_apart"] is True
    constants = machine(models={KEY: model}, links=links)
    side = math.isqrt(n)
    candidate = group(side, constants)
    problem = operation.problem(hetero.Poisson((side, side)), hetero.spec((n,), "float64"))
    steps = row.work(problem, info).repeat  # as many as its prediction counts
    assert candidate.seconds == pytest.approx(setup[(n,)] + steps * step[(n,)], rel=1e-3)
    known = {}
    modelling.models([measured], failures, links, known)
    without = modelling.models([measured], failures, known=known)[measured.key]
    assert "moves_apart" not in without, "other links, another model of the same samples"


# -- In profiles -----------------------------------------------------------------------------------


def test_shown(cuda, monkeypatch):
    data = measured_profile()
    data["links"] = {
        "cuda:0": {
            "upload": {
                "pageable": straight(1e-5, 1e10)["pageable"],
                f"pageable {BESIDE}": straight(1e-5, 8e9)["pageable"],
            }
        },
        "cuda*2": {"upload": {"pageable": straight(1e-5, 6e9)["pageable"]}},
    }
    found = profile.parse(profile.encode(data))
    text = report.calibration(found)
    assert f"cuda:0 upload, pageable {BESIDE}: 10 us + bytes at 8.0 GB/s" in text
    assert "cuda*2 upload, pageable: 10 us + bytes at 6.0 GB/s" in text
    assert "cuda*2 host work" not in text
    profile.set_current(found)
    shown = hetero.machine()["links"]
    assert shown["cuda:0"][f"upload, pageable {BESIDE}"] == "8.0 GB/s"
    assert "cuda*2" not in shown, "one device is here"


def test_explained(tmp_path, capsys):
    data = {**machine(links=slower(2.0)).data, "devices": TWO}
    path = tmp_path / "mine.json"
    path.write_bytes(profile.encode(data))
    command = ["explain", "matmul", "999", "999", "999", "--dtype", "float32"]
    command += ["--profile", str(path)]
    assert cli.main(command) == cli.DONE
    quiet = capsys.readouterr().out
    assert cli.main([*command, "--after-product"]) == cli.DONE
    loaded = capsys.readouterr().out
    assert loaded.count(f", links {BESIDE}") == 2  # own kernels, and cuBLAS's
    assert loaded.replace(f", links {BESIDE}", "") != quiet
    assert "links" not in quiet


def test_another_blas_puts_aside_what_was_measured_beside_it(cuda):
    from hetero.profile import validity

    data = measured_profile(blas__blas_version="0.0.0")
    kinds = data["links"]["cuda:0"]["upload"]
    kinds[f"pageable {BESIDE}"] = kinds["pageable"]
    holding = validity.holding(data)
    assert holding.data["links"]["cuda:0"]["upload"].keys() == {"pageable"}
    assert f"cuda:0|links {BESIDE}" in {n for names in holding.aside.values() for n in names}
    data = measured_profile()
    data["links"]["cuda:0"]["upload"][f"pageable {BESIDE}"] = kinds["pageable"]
    data["links"]["cuda*2"] = links_of(1e-3)
    data["host"]["dispatch"]["cuda*2"] = {"host": 3e-4}
    holding = validity.holding(data)
    assert f"pageable {BESIDE}" in holding.data["links"]["cuda:0"]["upload"]
    assert "cuda*2" not in holding.data["links"], "one device is here"
    assert "cuda*2" not in holding.data["host"]["dispatch"]
    assert not holding.aside


# -- In a calibration ------------------------------------------------------------------------------

BYTES = [2**n for n in range(12, 29)]
ALONE = {"samples": {"bytes": BYTES, "seconds": [1e-5 + n / 1e10 for n in BYTES]}}
LINE = straight(1e-5, 1e10)["pageable"]
LINKS = {way: {"pageable": LINE | ALONE, "pinned": LINE | ALONE} for way in ("upload", "download")}


@pytest.fixture
def calibrated(monkeypatch, hasty, profile_file):
    """Calibrates two equal toys; and what was measured of links, in order."""
    order = []
    times = {way: {2**12: 1.5, 2**28: 1.5} for way in WAYS}
    slow = {way: {n: 1.5 * (1e-5 + n / 1e10) for n in (2**12, 2**28)} for way in WAYS}

    def planted(name, result):
        def measure(*given):
            order.append(name)
            return result

        return measure

    with toys.installed(), monkeypatch.context() as patch:
        devices.unregister_kind("toy")
        devices.register_kind("toy", lambda: ([toys.Toy(0), toys.Toy(1)], []))
        patch.setattr(
            registry, "_operations", {n: registry._operations[n] for n in ("matvec", "double")}
        )
        rows = registry._implementations["double"]
        rows[:] = [dataclasses.replace(row, shared=lambda problem: True) for row in rows]
        patch.setattr(sampling, "take", lambda case, *_: Samples(dict.fromkeys(grid(case.axes), 1)))
        patch.setattr(loop.repeats, "settle", lambda *_: (0, 0, 0))
        patch.setattr(twins, "difference", lambda *_: None)
        patch.setattr(machine_of_calibration.thread_counts, "tables", lambda *_: {})
        patch.setattr(machine_of_calibration.compiling, "compile_ahead", lambda *_: None)
        patch.setattr(blas_spin, "find", planted("find", None))
        patch.setattr(blas_spin, "rest", lambda: None)
        patch.setattr(quiet_links, "links", planted("quiet", LINKS))
        patch.setattr(overheads, "of_calls", lambda *_: ({"host": 1e-5}, {}))
        patch.setattr(overheads, "pack", lambda budget: LINE)
        patch.setattr(loaded_links, "beside_blas", planted("after products", times))
        patch.setattr(links_at_once, "_SIZES", (2**12,))  # of what toys have room for
        patch.setattr(links_at_once, "Together", planted("at once", None))
        patch.setattr(links_at_once, "measured", lambda *_: links_at_once.Found(slow, 3e-4))
        inventory.changed()

        def calibrate(quick=False, **options):
            order.clear()
            return hetero.calibrate(quick, **options), list(order)

        yield calibrate
    inventory.changed()


def test_a_full_calibration_measures_links_in_company(calibrated):
    found, order = calibrated()
    assert order == ["find", "after products", "quiet", "at once"]
    kinds = {"pageable", "pinned"}
    for way in ("upload", "download"):
        beside = {f"{kind} {BESIDE}" for kind in kinds}
        assert found.data["links"]["toy:0"][way].keys() == kinds | beside
        assert found.data["links"]["toy*2"][way].keys() == kinds
        alone = found.link("toy:0", way)
        for loaded in (found.link("toy:1", way, beside=BESIDE), found.link("toy*2", way)):
            for nbytes in (2**12, 2**28):
                assert loaded(nbytes) == pytest.approx(1.5 * alone(nbytes), rel=0.01)
    assert found.data["host"]["dispatch"] == {"toy:0": {"host": 1e-5}, "toy*2": {"host": 3e-4}}
    assert "toy*2 to begin on all of them: 300 us" in report.calibration(found)
    assert profile.current().data["links"] == found.data["links"]


def test_a_quick_one_does_not(calibrated):
    found, order = calibrated(True)
    assert order == ["find", "quiet"]
    assert found.data["links"].keys() == {"toy:0"} == found.data["host"]["dispatch"].keys()
    assert not found.has_links(BESIDE)


def test_only_other_things_leave_them(calibrated):
    before, _ = calibrated()
    after, order = calibrated(only=["matvec"])
    assert order == ["find"]
    assert after.data["links"] == before.data["links"]
    _, order = calibrated(only=["toy"])
    assert order == ["find", "after products", "quiet", "at once"]
    _, order = calibrated(only=["toy*2"])
    assert order == ["find", "at once"]


# -- Verified --------------------------------------------------------------------------------------


@pytest.fixture
def verified(two, monkeypatch):
    """Verifies the links of two equal fake GPUs; what a copy takes is told by a formula."""
    infos = [device.describe() | {"name": "fake"} for device in two]
    for device, info in zip(two, infos, strict=True):
        monkeypatch.setattr(device, "describe", lambda info=info: dict(info))
    inventory.changed()

    def seconds(factor):
        return lambda way, nbytes: factor * (1e-5 + nbytes / 1e9)

    def transfers(device, sizes, budget):
        return {("upload", "pageable"): {n: seconds(1.0)(None, n) for n in sizes}}

    monkeypatch.setattr(quiet_links, "transfers", transfers)
    monkeypatch.setattr(loaded_links, "after_product", lambda copies: seconds(1.25))
    at_once = SimpleNamespace(once=lambda way, nbytes: 2e-3 + seconds(1.5)(way, nbytes))
    monkeypatch.setattr(evaluated, "Together", lambda *_: at_once)
    none = type("Copies", (), {"WAYS": WAYS, "__init__": lambda *_: None})
    monkeypatch.setattr(evaluated, "Copies", none)
    monkeypatch.setattr(blas_spin, "_told", {})
    monkeypatch.setitem(blas_spin._state, "looked", True)
    data = measured_profile()
    data["links"] = {
        "cuda:0": {"upload": {"pageable": straight(1e-5, 1e9)["pageable"]}},
        "cuda*2": {"upload": {"pageable": straight(1.5e-5, 1e9 / 1.5)["pageable"]}},
    }
    kinds = data["links"]["cuda:0"]["upload"]
    kinds[f"pageable {BESIDE}"] = straight(1e-5, 1e9)["pageable"]  # off by a fifth
    data["host"]["dispatch"]["cuda*2"] = {"host": 2e-3}
    profile.set_current(profile.parse(profile.encode(data)))
    yield evaluated.verified
    inventory.changed()


def test_curves_are_verified_where_they_hold(verified, monkeypatch):
    found = verified()
    assert found.keys() == {"cuda:0", "cuda:1", "cuda*2"}
    assert found["cuda:0"].keys() == {"upload, pageable", f"upload, pageable {BESIDE}"}
    assert found["cuda:0"]["upload, pageable"]["worst"] < 1e-9
    assert found["cuda:0"][f"upload, pageable {BESIDE}"]["mean"] == pytest.approx(0.2, abs=1e-6)
    assert found["cuda*2"].keys() == {"upload, pageable"}
    assert found["cuda*2"]["upload, pageable"]["worst"] < 1e-9
    monkeypatch.setattr(blas_spin, "_told", {"/x/numpy.libs/lib.so": "2^10 cycles"})
    assert verified()["cuda:0"].keys() == {"upload, pageable"}
