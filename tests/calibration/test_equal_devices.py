"""Several GPUs of one kind: one is measured, and a transfer compares the links of the others."""

from __future__ import annotations

import dataclasses
import math
import time

import pytest
import toys

import hetero
from hetero import registry
from hetero.calibration import machine, worklist
from hetero.calibration.environment import equal_devices, overheads, quiet_links
from hetero.calibration.measure import loop, sampling
from hetero.calibration.measure.workbench import Samples
from hetero.ops.cases import Case, Place, SampleGrid, grid
from hetero.profile import inventory

ONE = {"below": None, "bytes_per_second": 1e9, "seconds_per_byte": 0.0, "seconds": 1e-6}
PACK = {"form": "segments", "constants": [ONE]}
LINKS = {way: {"pageable": PACK, "pinned": PACK} for way in ("upload", "download")}


class Twin(toys.Toy):
    """One of two equal devices; transfers and computing take as long as it is told."""

    slower = slow_links = 0.0

    def enqueue(self, direction, *where):
        super().enqueue(direction, *where)
        if direction == "download":
            return
        time.sleep(self.slower + self.slow_links)

    def synchronize(self, stream=None):
        """Waits for what a slower one has not done yet."""
        time.sleep(self.slower)


@pytest.fixture
def two(monkeypatch, profile_file, hasty):
    """Two toys of one kind, and which of them were measured: (device, operation)."""
    both = [Twin(0), Twin(1)]
    with toys.installed(*both), monkeypatch.context() as patch:
        patch.setattr(
            registry, "_operations", {n: registry._operations[n] for n in ("matvec", "double")}
        )
        taken = []

        def take(case, bench, *_):
            taken.append((bench.device.name if bench.device else "cpu", case.implementation.method))
            return Samples(dict.fromkeys(grid(case.axes), 1e-05))

        patch.setattr(sampling, "take", take)
        patch.setattr(loop.repeating, "settle", lambda *_: (0, 0, 0))
        patch.setattr(quiet_links, "links", lambda *_: LINKS)
        patch.setattr(overheads, "of_calls", lambda *_: ({"host": 1e-5}, {}))
        patch.setattr(overheads, "pack", lambda budget: PACK)
        patch.setattr(machine.compiling, "compile_first", lambda *_: None)
        inventory.changed()
        assert inventory.devices()["toy:1"]["same_as"] == "toy:0"
        yield both, taken
    inventory.changed()


def test_equal_ones_are_measured_once(two, warnings_of):
    both, taken = two
    for device in both:
        device.slower = 0.003  # so that nothing else matters
    found = hetero.calibrate(True)
    assert {name for name, _ in taken} == {"cpu", "toy:0"}
    assert not any("by themselves" in text for text in warnings_of())
    assert found.link("toy:1", "upload")(0) == found.link("toy:0", "upload")(0)
    cost = found.cost("toy:1", "toy", "double", "numpy", "float32", "*")
    assert cost is not None


def test_one_in_a_slower_slot(two, warnings_of):
    both, taken = two
    both[0].slower = both[1].slower = 0.003
    both[1].slow_links = 0.01
    found = hetero.calibrate(True)
    assert {name for name, _ in taken} == {"cpu", "toy:0"}
    (text,) = (t for t in warnings_of() if "by themselves" in t)
    assert text.startswith("the links of toy:1 are measured by themselves: a large upload takes ")
    assert "toy:1" in found.data["links"]
    assert "toy:1|double|numpy|float32|*" not in found.data["models"]


def test_one_that_fails_to_be_probed_is_said(two, warnings_of, monkeypatch):
    both, _ = two

    def broken(*_):
        raise hetero.errors.DeviceError("no memory")

    monkeypatch.setattr(both[1], "pinned", broken)
    hetero.calibrate(True)
    assert any("links on toy:1: no memory" in text for text in warnings_of())


def test_only_what_is_asked_for_is_compared(two, monkeypatch):
    monkeypatch.setattr(equal_devices, "differ", lambda *_: pytest.fail("asked"))
    hetero.calibrate(True, only=["double"])
    hetero.calibrate(True, devices=["toy:0"])


def test_several_together_are_measured_at_few_sizes(two):
    both, _ = two
    (row, *_) = registry.lookup("double")
    sizes = [4**n for n in range(9)]
    case = Case(row, "float32", "*", SampleGrid(), [sizes, [5, 27]], seconds=9.0)
    info = inventory.devices()["toy:0"]
    alone = worklist.few(case, Place("toy:0", info, (both[0],)))
    together = worklist.few(case, Place("toy*2", info, tuple(both)))
    assert alone is case
    assert together.axes == [[1, 4**4, 4**6, 4**7, 4**8], [5, 27]]
    assert together.seconds == pytest.approx(5.0)
    short = dataclasses.replace(case, axes=[sizes[:5]])
    assert worklist.few(short, Place("toy*2", info, tuple(both))) is short
    assert math.isclose(worklist.few(together, Place("toy*2", info, tuple(both))).seconds, 5.0)
