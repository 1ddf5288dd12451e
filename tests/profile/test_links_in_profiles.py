"""Links of several devices at once: priced, measured in a calibration, shown and verified."""

from __future__ import annotations

import dataclasses
import math

import pytest
from fakes import FakeCuda
from made_up import GPU, machine, roofline
from made_up import link as straight
from planted import LINE, plant

import hetero
from hetero import registry
from hetero.calibration import fit
from hetero.calibration import links as transfers
from hetero.calibration.samples import Samples
from hetero.calibration.sizes import Place, cases, grid
from hetero.evaluation import report
from hetero.pricing import pricing

ALONE_LINKS = {"cuda:*": {"upload": straight(1e-5, 1e9), "download": straight(2e-5, 5e8)}}
AT_ONCE = {"cuda*2": {"upload": straight(1e-5, 0.7e9), "download": straight(2e-5, 3e8)}}
SEVERAL = {
    "cpu": {"kind": "cpu", "name": "made up"},
    "cuda:0": {**GPU, "memory_bytes": 2**40},
    "cuda:1": {**GPU, "memory_bytes": 2**40, "same_as": "cuda:0"},
}
KEY = "cuda*2|cg|fused|float64|stencil2"
APART = {KEY: {**roofline(1e-3, 1e12, 1e12), "moves_apart": True}}
WITHIN = {KEY: roofline(1e-3, 1e12, 1e12)}


def group(n, models, links, on="host"):
    """How two share conjugate gradients on n x n points."""
    spec = hetero.spec((n * n,), "float64", on=on)
    problem = registry.operation("cg").problem(hetero.Poisson((n, n)), spec)
    constants = machine(models=models, links={**ALONE_LINKS, **links})
    plan = pricing.price(problem, constants, SEVERAL)
    return next(c for c in plan.candidates if c.device == "cuda:*" and c.method == "fused")


def test_copies_of_several_devices_are_counted_once():
    found = group(2000, APART, AT_ONCE)
    assert found.links == "all at once"
    in_turn = group(2000, APART, {})  # by one bus, where that was not measured
    assert in_turn.terms["upload"] == pytest.approx(2 * (1e-5 + 2000 * 2000 * 8 / 2 / 1e9))
    within = group(2000, WITHIN, AT_ONCE)
    assert within.terms.keys() == {"overhead", "compute"}, "it is not counted twice"


@pytest.mark.parametrize("models", [APART, WITHIN])
def test_operands_on_one_of_them_come_by_way_of_the_host(models):
    n = 2000
    here, there = (group(n, models, AT_ONCE, on) for on in ("host", "cuda:0"))
    nbytes = n * n * 8
    way = 2e-5 + nbytes / 5e8 + 1e-5 + nbytes / 1e9
    assert there.seconds == pytest.approx(here.seconds + way)


@pytest.mark.parametrize("n", [2**12, 2**20, 2**24])
def test_what_was_measured_is_predicted(n):
    """The model without what is moved, and that, add up to what was measured."""
    operation = registry.operation("cg")
    row = next(r for r in registry.lookup("cg") if (r.method, r.kind) == ("fused", "cuda"))
    info = pricing.groups(SEVERAL)["cuda:*"]
    place = Place("cuda*2", info, (FakeCuda(0), FakeCuda(1)))
    found = [c for c in cases("cg", place, False) if (c.dtype, c.layout) == ("float64", "stencil2")]
    case = dataclasses.replace(found[0], axes=[[2**12, 2**20, 2**24]])
    setup = {(2**k,): 3e-4 + 2.0**k * 8 / 3e8 for k in (12, 20, 24)}
    step = {(2**k,): 1e-5 + 2.0**k * 1e-11 for k in (12, 20, 24)}
    measured = Samples(seconds=step, setup=setup)
    model = fit.model(case, measured, machine(models={}, links={**ALONE_LINKS, **AT_ONCE}))
    assert model["moves_apart"] is True
    side = math.isqrt(n)
    candidate = group(side, {KEY: model}, AT_ONCE)
    problem = operation.problem(hetero.Poisson((side, side)), hetero.spec((n,), "float64"))
    steps = row.work(problem, info).repeat  # as many as its prediction counts
    assert candidate.seconds == pytest.approx(setup[(n,)] + steps * step[(n,)], rel=1e-3)
    assert "moves_apart" not in fit.model(case, measured, machine(models={}, links={}))


BYTES = [2**n for n in range(12, 29)]
ALONE = {"samples": {"bytes": BYTES, "seconds": [1e-5 + n / 1e10 for n in BYTES]}}
LINKS = {way: {"pageable": LINE | ALONE, "pinned": LINE | ALONE} for way in ("upload", "download")}


@pytest.fixture
def equal(monkeypatch, hasty, profile_file, two):
    """Two equal GPUs, of whose calibration the samples are planted."""
    described = two[0].describe()
    monkeypatch.setattr(FakeCuda, "describe", lambda device: dict(described))

    def take(case, *_):
        knots = case.knots or grid(case.axes)
        return Samples(dict.fromkeys(knots, 1.0), setup=dict.fromkeys(knots, 1.0))

    plant(monkeypatch, take, lambda *_: LINKS, only=("matvec", "poisson"))
    monkeypatch.setattr(transfers, "_SIZES", (2**12,))  # of what is measured
    slow = dict.fromkeys(transfers.Copies.WAYS, 1.5 * (1e-5 + 2**12 / 1e10))
    monkeypatch.setattr(transfers, "at_once_seconds", lambda *_: slow)


@pytest.mark.parametrize("quick", [True, False])
def test_one_of_equal_devices_is_measured_and_all_at_once(quick, equal):
    found = hetero.calibrate(quick)
    assert found.data["links"].keys() == {"cuda:0", "cuda*2"}
    for way in ("upload", "download"):
        assert found.data["links"]["cuda*2"][way].keys() == {"pageable", "pinned"}
        for nbytes in (2**12, 2**28):
            seconds = found.link("cuda*2", way)(nbytes)
            assert seconds == pytest.approx(1.5 * found.link("cuda:0", way)(nbytes), rel=0.01)
    assert found.data["host"]["dispatch"] == {"cuda:0": {"host": 1e-5}, "cuda*2": {}}
    text = report.calibration(found)
    assert "cuda*2 upload, pageable: 15 us + bytes at 6.7 GB/s" in text
    assert "cuda*2 host work" not in text
    assert hetero.machine()["links"]["cuda*2"]["upload, pageable"] == "6.7 GB/s"
