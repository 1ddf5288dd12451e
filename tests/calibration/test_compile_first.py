"""What is compiled before a calibration measures."""

from __future__ import annotations

import pytest

from hetero.calibration import machine, worklist
from hetero.ops.cases import Place


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_cpus_loops_are_compiled_where_it_is_measured(on_cpu, monkeypatch):
    asked = []
    monkeypatch.setattr(machine.loops, "ensure", lambda names, progress: asked.extend(names))
    place = Place("cpu", {"kind": "cpu"}, ())
    machine.compile_first([worklist.WorkItem(place, None)] * on_cpu)
    assert ("convolutions in float64" in asked) == on_cpu
