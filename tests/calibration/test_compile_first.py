"""What is compiled before a calibration measures."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from hetero import profile, registry
from hetero.calibration import compiling, worklist
from hetero.calibration.request import QUICK
from hetero.devices.kinds import traits
from hetero.kernels.common.launch import Target
from hetero.ops.cases import Place

INFO = profile.shipped("h100").devices["cuda:0"]


def test_kernels_of_products_are_compiled_at_once():
    limits = {name: INFO[name] for name in ("multiprocessors", "block_limit", "shared_limit")}
    asked = []
    device = SimpleNamespace(
        kind="cuda",
        name="cuda:0",
        dialect="cuda",
        traits=traits("cuda"),
        target=Target(limits["multiprocessors"], limits["block_limit"], True),
        capability=(9, 0),
        compile_ahead=asked.extend,
        **limits,
    )
    work = worklist.all_cases(
        registry.operations(), [Place("cuda:0", INFO, (device,))], QUICK, failures := []
    )
    assert not failures
    compiling.compile_first(work)
    files = {source for source, _ in asked}
    assert {"matvec.cu", "matmul_pipelined.cu", "matmul_tensor.cu"} <= files
    assert len(asked) > 80


@pytest.mark.parametrize("on_cpu", [True, False])
def test_the_cpus_loops_are_compiled_where_it_is_measured(on_cpu, monkeypatch):
    asked = []
    monkeypatch.setattr(compiling.loops, "ensure", lambda names, progress: asked.extend(names))
    place = Place("cpu", {"kind": "cpu"}, ())
    compiling.compile_first([worklist.WorkItem(registry.operation("cg"), place, ())] * on_cpu)
    assert ("convolutions in float64" in asked) == on_cpu
