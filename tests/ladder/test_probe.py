"""`hetero probe`: its kernels, its sentences, its command; and the roof."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import runtimes
from kernel_runs import BufferRunner

from hetero.kernels.common import launch as probes
from hetero.ladder import probe
from hetero.ladder.probe import PROBES


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(probe, "_BYTES_OTHERS", 1 << 20)
    monkeypatch.setattr(probe, "_ROUNDS_OTHERS", 2)


@pytest.mark.parametrize(("piece", "stride"), [(1, 1), (1, 4), (1, 1024), (64, 1), (64, 32)])
def test_each_element_is_read_once_by_neighbours_a_stride_apart(piece, stride):
    own, elements = runtimes.opencl_device(), 1 << 16
    launch = probes.strided(piece, stride, elements, own.block_limit)
    data = np.random.default_rng(0).integers(0, 100, elements).astype(np.float32)
    sums = np.zeros(elements // 16, np.float32)
    plan = SimpleNamespace(launches=[launch], workspace=0)
    BufferRunner(own._device).run(plan, data=data, out=sums)
    by_columns = data.reshape(-1, stride, piece).swapaxes(0, 1).reshape(-1)
    steps = by_columns.reshape(launch.grid, 16, launch.block)
    np.testing.assert_array_equal(sums, steps.sum(axis=1).reshape(-1))


@pytest.mark.parametrize(
    ("name", "ratios", "said"),
    [
        ("banks", (1, 31, 1.01, 32), "stride 2: 31x slower: 2 banks"),
        ("coalescing", (1, 3.9, 7.4, 8), "stride 4: 7.4x slower: 16 bytes are moved for"),
        ("camping", (1, 1, 1, 7.9), "stride 8: 7.9x slower: reads that far apart meet"),
        ("camping", (1.0, 1.02, 0.98, 1), "no camping seen: worst/best 1.04"),
    ],
)
def test_one_sentence_says_what_the_figures_mean(name, ratios, said):
    """From the smallest stride on that takes about as long as the worst one."""
    rows = [{"stride": 1 << i, "ratio": ratio} for i, ratio in enumerate(ratios)]
    assert probe.means(PROBES[name], rows, on_cpu=False).startswith(said)
    on_cpu = probe.means(PROBES[name], rows, on_cpu=True)
    assert on_cpu.startswith(said.rpartition(":")[0])


@pytest.mark.parametrize("name", PROBES)
def test_a_probe_is_run_and_drawn(name, data, opencl, tmp_path):
    file = tmp_path / "a.svg"
    result = data("probe", name, "--device", opencl, "--plot", file)
    assert [row["stride"] for row in result["rows"]] == [*PROBES[name].strides]
    assert result["rows"][0]["ratio"] == 1.0
    assert all(row["seconds"] > 0 for row in result["rows"])
    assert file.read_text("utf-8").lstrip().startswith("<?xml")
    printed = probe.text(result)
    assert printed.count("\n| ") == 1 + len(result["rows"])
    assert printed.endswith(result["means"])
