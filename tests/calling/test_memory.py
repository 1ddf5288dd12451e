"""Device memory that outlives a call: who owns it, how it is counted, and that it is given back."""

from __future__ import annotations

import gc

import fakes
import numpy as np
import processes
import pytest

import hetero
from hetero import devices
from hetero.devices.storage import Workspace
from hetero.errors import DeviceError, DeviceNotAvailable


def keep(device, nbytes, purpose="convolution filters"):
    device.storage().get(purpose, nbytes, 8, lambda: Workspace(device, purpose)).allocate(nbytes)


def test_memory_is_told_by_device_and_purpose_and_is_given_back(two):
    keep(two[0], 3_000_000)
    keep(two[0], 500, "solves")
    keep(two[1], 100)
    assert hetero.memory()["cuda:0"] == {"convolution filters": 3_000_000, "solves": 500}
    assert str(hetero.memory()).splitlines()[:5] == [
        "cuda:0: 3 MB",
        "  convolution filters: 3 MB",
        "  solves: 500 bytes",
        "cuda:1: 100 bytes",
        "  convolution filters: 100 bytes",
    ]
    hetero.clear_memory("cuda:0")
    assert hetero.memory()["cuda:0"] == {}
    assert "cuda:0: 0 bytes" in str(hetero.memory())
    assert hetero.memory()["cuda:1"] == {"convolution filters": 100}
    hetero.clear_memory()
    assert [device.live for device in two] == [0, 0]
    for name in ("cuda:7", "cpu"):
        with pytest.raises(DeviceNotAvailable, match=r"'cuda:0', 'cuda:1'.* got"):
            hetero.clear_memory(name)


def test_one_that_fails_does_not_keep_the_others(two, monkeypatch, warnings_of):
    keep(two[1], 100)
    monkeypatch.setattr(two[0], "clear", fakes.raising(DeviceError("ill")))
    hetero.clear_memory()
    assert two[1].live == 0
    (warning,) = warnings_of()
    assert "cuda:0" in warning


def test_a_forked_child_leaves_its_parents_memory_alone(two):
    keep(two[0], 100)

    def all_is_left():
        hetero.clear_memory()
        hetero.clear_memory("cuda:0")
        return hetero.memory()["cuda:0"] == {} and two[0].live == 100

    assert processes.forked(all_is_left)
    assert hetero.memory()["cuda:0"] == {"convolution filters": 100}


IMAGE = np.random.default_rng(0).random((60, 50))
FILTERS = [np.random.default_rng(seed).random((5, 7)) for seed in range(3)]
F = np.random.default_rng(1).random((33, 41))


def kept_by_calls(name):
    """Make calls that leave something on a device; their results."""
    with hetero.use(device=name):
        results = [hetero.convolve2d(IMAGE, filter, method="direct") for filter in FILTERS]
        results.append(hetero.solve_poisson(F, rtol=1e-6, method="multigrid"))
        results.append(hetero.solve_poisson(F, rtol=1e-2, method="jacobi"))
    return results


def test_calls_work_as_ever_after_clear_memory(opencl):
    hetero.clear_memory()
    gc.collect()
    assert hetero.memory()[opencl] == {}
    first = kept_by_calls(opencl)
    gc.collect()
    held = hetero.memory()[opencl]
    assert set(held) == {"convolution filters", "multigrid"}
    assert held["convolution filters"] == sum(f.nbytes for f in FILTERS)
    kept_by_calls(opencl)
    gc.collect()
    assert hetero.memory()[opencl] == held, "the second calls find what the first made"
    hetero.clear_memory(opencl)
    gc.collect()
    assert hetero.memory()[opencl] == {}
    for before, after in zip(first, kept_by_calls(opencl), strict=True):
        np.testing.assert_array_equal(before, after)
    assert not devices.troubles()
