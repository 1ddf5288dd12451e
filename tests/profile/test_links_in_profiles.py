"""Links of several devices at once: priced, measured in a calibration, shown and verified."""

from __future__ import annotations

import dataclasses
import importlib
import math

import pytest
from fakes import FakeCuda
from made_up import GPU, machine, roofline
from made_up import link as straight
from test_profiles import measured as measured_profile

import hetero
from hetero import profile, registry
from hetero.calibration import fit, overheads, samples
from hetero.calibration import links as transfers
from hetero.calibration.samples import Samples
from hetero.calibration.sizes import Place, cases
from hetero.calling import planner
from hetero.devices import at_once, peers
from hetero.evaluation import report
from hetero.pricing import pricing
from hetero.profile import inventory

calibration = importlib.import_module("hetero.calibration.calibrate")
WAYS = transfers.Copies.WAYS
TWO = {"cpu": {"kind": "cpu", "name": "made up"}, "cuda:0": GPU}
ALONE_LINKS = {"cuda:*": {"upload": straight(1e-5, 1e9), "download": straight(2e-5, 5e8)}}


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
    return machine(models=models, links={**ALONE_LINKS, **links})


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
    in_turn = group(n, together(True, {}))  # by one bus, where that was not measured
    assert in_turn.terms["upload"] == pytest.approx(2 * (1e-5 + share / 1e9))


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
    info = pricing.groups(SEVERAL)["cuda:*"]
    place = Place("cuda*2", info, (FakeCuda(0), FakeCuda(1)))
    found = [c for c in cases("cg", place, False) if (c.dtype, c.layout) == ("float64", "stencil2")]
    case = dataclasses.replace(found[0], axes=[[2**12, 2**20, 2**24]])
    setup = {(2**k,): 3e-4 + 2.0**k * 8 / 3e8 for k in (12, 20, 24)}
    step = {(2**k,): 1e-5 + 2.0**k * 1e-11 for k in (12, 20, 24)}
    measured = case, place, Samples(seconds=step, setup=setup)
    links = {**ALONE_LINKS, **AT_ONCE}
    model = fit.model(*measured, machine(models={}, links=links))
    assert model["moves_apart"] is True
    constants = machine(models={KEY: model}, links=links)
    side = math.isqrt(n)
    candidate = group(side, constants)
    problem = operation.problem(hetero.Poisson((side, side)), hetero.spec((n,), "float64"))
    steps = row.work(problem, info).repeat  # as many as its prediction counts
    assert candidate.seconds == pytest.approx(setup[(n,)] + steps * step[(n,)], rel=1e-3)
    assert "moves_apart" not in fit.model(*measured, machine(models={}, links={}))


# -- In profiles ----------------------------------------------------------------------------------


def test_shown(cuda, monkeypatch):
    data = measured_profile()
    data["links"] = {
        "cuda:0": {
            "upload": {
                "pageable": straight(1e-5, 1e10)["pageable"],
            }
        },
        "cuda*2": {"upload": {"pageable": straight(1e-5, 6e9)["pageable"]}},
    }
    found = profile.parse(profile.encode(data))
    text = report.calibration(found)
    assert "cuda:0 upload, pageable: 10 us + bytes at 10.0 GB/s" in text
    assert "cuda*2 upload, pageable: 10 us + bytes at 6.0 GB/s" in text
    assert "cuda*2 host work" not in text
    profile.set_current(found)
    shown = hetero.machine()["links"]
    assert shown["cuda:0"]["upload, pageable"] == "10.0 GB/s"
    assert "cuda*2" not in shown, "one device is here"


# -- In a calibration ------------------------------------------------------------------------------

BYTES = [2**n for n in range(12, 29)]
ALONE = {"samples": {"bytes": BYTES, "seconds": [1e-5 + n / 1e10 for n in BYTES]}}
LINE = straight(1e-5, 1e10)["pageable"]
LINKS = {way: {"pageable": LINE | ALONE, "pinned": LINE | ALONE} for way in ("upload", "download")}


@pytest.fixture
def calibrated(monkeypatch, hasty, profile_file, two):
    """Calibrates two equal GPUs; and what was measured of links, in order."""
    order, slow_one = [], []
    slow = dict.fromkeys(WAYS, 1.5 * (1e-5 + 2**12 / 1e10))

    def planted(name, result):
        def measure(*given):
            order.append(name)
            return result

        return measure

    equal = two[0].describe()
    monkeypatch.setattr(FakeCuda, "describe", lambda device: dict(equal))
    with monkeypatch.context() as patch:
        patch.setattr(
            registry, "_operations", {n: registry._operations[n] for n in ("matvec", "matmul")}
        )
        rows = registry.lookup("matmul")
        together = [registry.Can(row.excludes, lambda problem: True) for row in rows]
        rows = [dataclasses.replace(r, excludes=can) for r, can in zip(rows, together, strict=True)]
        patch.setitem(registry.problem._implementations, "matmul", rows)
        patch.setattr(samples, "take", lambda case, *_: Samples(dict.fromkeys(case.knots, 1)))
        patch.setattr(calibration, "compile_first", lambda *_: None)
        patch.setattr(transfers, "links", planted("quiet", LINKS))
        patch.setattr(overheads, "dispatch", lambda *_: {"host": 1e-5})
        patch.setattr(overheads, "pack", lambda budget: LINE)
        patch.setattr(transfers, "of_others", lambda devices, *_: devices[1:] if slow_one else [])
        patch.setattr(transfers, "_SIZES", (2**12,))  # of what is measured
        patch.setattr(transfers, "at_once_seconds", planted("at once", slow))
        inventory.changed()

        def calibrate(quick=False, slower=False, **options):
            order.clear()
            slow_one[:] = [slower] * slower
            return hetero.calibrate(quick, **options), list(order)

        yield calibrate
    inventory.changed()


def test_a_full_calibration_measures_links_at_once(calibrated):
    found, order = calibrated()
    assert order == ["quiet", "at once"]
    kinds = {"pageable", "pinned"}
    for way in ("upload", "download"):
        assert found.data["links"]["cuda:0"][way].keys() == kinds
        assert found.data["links"]["cuda*2"][way].keys() == kinds
        alone = found.link("cuda:0", way)
        for nbytes in (2**12, 2**28):
            seconds = found.link("cuda*2", way)(nbytes)
            assert seconds == pytest.approx(1.5 * alone(nbytes), rel=0.01)
    assert found.data["host"]["dispatch"] == {"cuda:0": {"host": 1e-5}, "cuda*2": {}}
    assert profile.current().data["links"] == found.data["links"]


def test_an_equal_device_on_a_slower_bus_has_links_of_its_own(calibrated, warnings_of):
    found, order = calibrated(slower=True)
    assert order == ["quiet", "quiet", "at once"]
    assert found.data["links"]["cuda:1"] == LINKS
    assert warnings_of() == ["copies of cuda:1 are slower, so its links are measured"]


def test_devices_with_direct_paths_have_a_link_from_each_other(calibrated, monkeypatch):
    monkeypatch.setattr(peers, "trusted", lambda one, other: True)
    found, _ = calibrated()
    seconds = found.at_once("cuda*2").link("cuda:0", "peer", "device")(2**12)
    assert 0.0 < seconds < 0.1
    with pytest.raises(KeyError):
        found.link("cuda:0", "peer", "device")


def test_so_does_a_quick_one(calibrated):
    found, order = calibrated(True)
    assert order == ["quiet", "at once"]
    assert found.data["links"].keys() == {"cuda:0", "cuda*2"}


def test_only_other_things_leave_them(calibrated):
    before, _ = calibrated()
    after, order = calibrated(only=["matvec"])
    assert order == []
    assert after.data["links"] == before.data["links"]
    _, order = calibrated(only=["cuda"])
    assert order == ["quiet", "at once"]
    _, order = calibrated(only=["cuda*2"])
    assert order == ["at once"]
